"""Nets from layers as other libraries stack them, one after the other.

There an image is (channels, *positions), and so it is flattened. Here positions come
first. Hence the columns of a matrix behind images are put in another order, and those of
an input are reordered before the first convolution.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._activation import PiecewiseLinear, activation as activation_of
from ._composed import AbstractFixedMap, AveragePool, ChannelsLast, Composed
from ._connections import AbstractConnection, Conv, Dense
from ._layered import Layer, LayeredNet
from ._mlp import MLP


# A name, or zeros before and behind, a pair for each dimension
Padding = str | Sequence[tuple[int, int]]


class NoStack(ValueError):
    """Why a model is no net of layers."""


class Stack:
    """A net while its layers are stacked; `shape` is what the next one comes from."""

    shape: tuple[int, ...]

    def __init__(self, in_shape: Sequence[int]):
        """Start from an input, its rows flattened as they are."""
        self.shape = tuple(in_shape)
        self._in_units = math.prod(in_shape)
        self._layers: list[Layer] = []
        self._fixed: tuple[AbstractFixedMap, ...] = ()
        # (channels, *positions) of units that lie with their channels last.
        self._channels_last: tuple[int, ...] | None = None

    def linear(self, weight: Array, bias: Array | None) -> None:
        """Add a layer with a matrix (out, in)."""
        if self.shape != weight.shape[1:]:
            raise NoStack(
                f"weights {weight.shape} of a linear layer do not fit what is before them, "
                f"of shape {self.shape}"
            )
        if (images := self._channels_last) is not None:
            by_channel = weight.reshape(-1, *images)
            weight = jnp.moveaxis(by_channel, 1, -1).reshape(weight.shape)
        self._add(Dense(weight), bias, weight.shape[:1])
        self.shape, self._channels_last = weight.shape[:1], None

    def convolution(
        self, weight: Array, bias: Array | None, strides: Sequence[int], padding: Padding
    ) -> None:
        """Add a layer with weights (out channels, in channels, *window)."""
        channels, *window = weight.shape[1:]
        if len(self.shape) != weight.ndim - 1 or self.shape[0] != channels:
            raise NoStack(
                f"weights {weight.shape} of a convolution do not fit what is before them, "
                f"of shape {self.shape}"
            )
        self._images()
        kernel = jnp.moveaxis(weight, (0, 1), (-1, -2))
        grid, ends = self.shape[1:], self._ends(window, strides, padding)
        try:
            connection = Conv(kernel, grid, tuple(strides), ends)
        except ValueError as error:
            raise NoStack(str(error).removesuffix(".")) from None
        self._add(connection, bias, (*connection.out_positions, len(weight)))
        self.shape = (len(weight), *connection.out_positions)
        self._channels_last = self.shape

    def average_pool(
        self, window: Sequence[int], strides: Sequence[int], padding: Padding
    ) -> None:
        """Have means over windows before the next weights."""
        if len(self.shape) != len(window) + 1:
            raise NoStack(f"means over {tuple(window)} do not fit a shape {self.shape}")
        self._images()
        channels, *grid = self.shape
        ends = self._ends(window, strides, padding)
        try:
            pool = AveragePool((*grid, channels), tuple(window), tuple(strides), ends)
        except ValueError as error:
            raise NoStack(str(error).removesuffix(".")) from None
        self._fixed = (*self._fixed, pool)
        self.shape = (channels, *pool.out_positions)
        self._channels_last = self.shape

    def flatten(self) -> None:
        """Have the same units as a vector."""
        self.reshape((math.prod(self.shape),))

    def reshape(self, shape: Sequence[int]) -> None:
        """Have the same units in another shape: any one of the input, later only flat."""
        if len(shape) != 1 and (self._layers or self._fixed):
            raise NoStack(f"{self.shape} within the model is reshaped to {tuple(shape)}")
        self.shape = tuple(shape)

    def activation(self, sigma: PiecewiseLinear) -> None:
        """Apply it to the layer before."""
        if sigma.is_linear:
            return
        if not self._layers or self._fixed:
            raise NoStack(f"{sigma.name} does not follow a layer with weights")
        last = self._layers[-1]
        if not last.activation.is_linear:
            raise NoStack(f"{sigma.name} follows {last.activation.name}")
        self._layers[-1] = Layer(
            last.connections, last.bias, last.sources, sigma, last.shape
        )

    def net(self) -> MLP | LayeredNet:
        """The net of these layers; an `MLP` if it is one."""
        if not self._layers:
            raise NoStack("it has no layer with weights")
        *hidden, last = self._layers
        if not last.activation.is_linear:
            raise NoStack(f"its output has {last.activation.name}")
        if self._fixed:
            raise NoStack("it ends with means and not with a layer with weights")
        ordered = self._channels_last is None or 1 in (last.channels, last.positions)
        if len(self.shape) != 1 or not ordered:
            raise NoStack("its output is an image of several channels, or not flat")
        connections = [layer.connections[0] for layer in self._layers]
        matrices = [each.weight for each in connections if isinstance(each, Dense)]
        biased = any(layer.bias is not None for layer in self._layers)
        if len(matrices) == len(self._layers) and not biased:
            return MLP.from_weights(matrices, [layer.activation for layer in hidden])
        return LayeredNet((self._in_units,), self._layers)

    def _add(
        self, connection: AbstractConnection, bias: Array | None, shape: tuple[int, ...]
    ) -> None:
        if self._fixed:
            connection = Composed(self._fixed, connection)
        source, linear = len(self._layers), activation_of("identity")
        self._layers.append(Layer((connection,), bias, (source,), linear, shape))
        self._fixed = ()

    def _images(self) -> None:
        """Have the channels of what is here last."""
        if self._channels_last == self.shape:
            return
        if self._layers:
            raise NoStack(f"a vector within the model is reshaped to {self.shape}")
        self._fixed = (*self._fixed, ChannelsLast(self.shape))
        self._channels_last = self.shape

    def _ends(
        self, window: Sequence[int], strides: Sequence[int], padding: Padding
    ) -> tuple[tuple[int, int], ...]:
        if not isinstance(padding, str):
            return tuple((low, high) for low, high in padding)
        grid = self.shape[1:]
        return tuple(jax.lax.padtype_to_pads(grid, window, strides, padding))
