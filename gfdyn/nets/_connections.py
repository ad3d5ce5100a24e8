"""Linear maps from the units of one layer to those of another.

The units of a layer are numbered by position, then channel; a layer of plain vectors has
one position, and its channels are its units. Rotating the channels, alike at all
positions, changes nothing if the weights in and out turn with them. Hence two matrices of
each connection: `incoming` has a row for each channel that it leads to, `outgoing` a
column for each channel that it comes from.
"""

import abc
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Matrix


Units = Float[Array, "samples _"]


class AbstractConnection(eqx.Module):
    """A linear map that *is* its weights: every array leaf is trained, and with all leaves
    squared, say, it is the map with squared weights."""

    @property
    @abc.abstractmethod
    def mixes(self) -> bool:
        """Whether it leads from every channel to every other, so that they may rotate."""

    @abc.abstractmethod
    def __call__(self, a: Units) -> Units:
        """The image of each row."""

    @abc.abstractmethod
    def out_units(self, in_units: int) -> int:
        """The number of units that it leads to from so many.

        Raises:
            ValueError: if it does not fit that many.
        """

    @abc.abstractmethod
    def incoming(self, channels: int) -> Matrix:
        """All its weights, by the channel that they lead to: (channels, _)."""

    @abc.abstractmethod
    def outgoing(self, channels: int) -> Matrix:
        """All its weights, by the channel that they come from: (_, channels)."""

    @abc.abstractmethod
    def scaled(self, factor: Float[Array, " channels"]) -> "AbstractConnection":
        """The map followed by a factor for each channel that it leads to."""

    @property
    def trained(self) -> bool:
        """Whether it has weights; without any it is a constant of the network."""
        return bool(jax.tree.leaves(self))


class Dense(AbstractConnection):
    """Every unit to every unit: a ↦ W a."""

    weight: Float[Array, "out in"]

    @property
    def mixes(self) -> bool:
        """Yes."""
        return True

    def __call__(self, a: Units) -> Units:
        """a Wᵀ."""
        return a @ self.weight.T

    def out_units(self, in_units: int) -> int:
        """The rows of W.

        Raises:
            ValueError: unless W has a column for each unit.
        """
        if self.weight.shape[1] != in_units:
            raise ValueError(
                f"Dense has weights {self.weight.shape} but comes from {in_units} units; "
                f"it must have {in_units} columns."
            )
        return self.weight.shape[0]

    def incoming(self, channels: int) -> Matrix:
        """W, its rows of the same channel side by side."""
        if len(self.weight) == channels:
            return self.weight
        by_position = self.weight.reshape(-1, channels, self.weight.shape[1])
        return jnp.moveaxis(by_position, 1, 0).reshape(channels, -1)

    def outgoing(self, channels: int) -> Matrix:
        """W, its columns of the same channel one below the other: (d l, c), not (d, l c)
        as Le & Jegelka print it for what follows a convolution."""
        return self.weight.reshape(-1, channels)

    def scaled(self, factor: Float[Array, " channels"]) -> "Dense":
        """The rows of W, each times the factor of its channel."""
        by_unit = jnp.tile(factor, len(self.weight) // len(factor))
        return Dense(by_unit[:, None] * self.weight)


class Conv(AbstractConnection):
    """A convolution (as in all of deep learning: no reflection) in any dimension.

    Attributes:
        kernel: (*window, in channels, out channels).
        in_positions: the size of the grid that it comes from.
        strides: one for each dimension.
        padding: zeros before and behind, a pair for each dimension.
    """

    kernel: Float[Array, "*window in out"]
    in_positions: tuple[int, ...] = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)
    padding: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __check_init__(self):
        sizes = {
            "window": self.kernel.shape[:-2],
            "strides": self.strides,
            "padding": self.padding,
        }
        for name, size in sizes.items():
            if len(size) != len(self.in_positions):
                raise ValueError(
                    f"{name}={size} has {len(size)} dimensions but the grid "
                    f"{self.in_positions} has {len(self.in_positions)}."
                )
        if min(self.out_positions, default=1) < 1:
            raise ValueError(
                f"a window {sizes['window']} does not fit into the grid "
                f"{self.in_positions} with padding={self.padding}."
            )

    @property
    def mixes(self) -> bool:
        """Yes: channels, at whatever position."""
        return True

    @property
    def out_positions(self) -> tuple[int, ...]:
        """The size of the grid that it leads to."""
        window = self.kernel.shape[:-2]
        parts = zip(self.in_positions, self.padding, window, self.strides, strict=True)
        return tuple(
            (n + low + high - w) // stride + 1 for n, (low, high), w, stride in parts
        )

    def __call__(self, a: Units) -> Units:
        """The convolution of each row."""
        space = "DHW"[-len(self.in_positions) :]
        images = a.reshape(len(a), *self.in_positions, self.kernel.shape[-2])
        layout = (f"N{space}C", f"{space}IO", f"N{space}C")
        out = jax.lax.conv_general_dilated(
            images, self.kernel, self.strides, self.padding, dimension_numbers=layout
        )
        return out.reshape(len(a), -1)

    def out_units(self, in_units: int) -> int:
        """Positions times channels.

        Raises:
            ValueError: unless it comes from as many.
        """
        expected = math.prod(self.in_positions) * self.kernel.shape[-2]
        if expected != in_units:
            raise ValueError(
                f"Conv on a grid {self.in_positions} with {self.kernel.shape[-2]} channels "
                f"has {expected} inputs but comes from {in_units} units."
            )
        return math.prod(self.out_positions) * self.kernel.shape[-1]

    def incoming(self, channels: int) -> Matrix:
        """c × (b a): rows are output channels."""
        return self.kernel.reshape(-1, channels).T

    def outgoing(self, channels: int) -> Matrix:
        """(b c) × a: columns are input channels."""
        return jnp.moveaxis(self.kernel, -2, -1).reshape(-1, channels)

    def scaled(self, factor: Float[Array, " channels"]) -> "Conv":
        """The kernel, times the factors of its output channels."""
        kernel = jnp.broadcast_to(factor, self.kernel.shape) * self.kernel
        return Conv(kernel, self.in_positions, self.strides, self.padding)


class Diagonal(AbstractConnection):
    """Each channel to itself, at every position: a ↦ d ⊙ a."""

    weight: Float[Array, " channels"]

    @property
    def mixes(self) -> bool:
        """No."""
        return False

    def __call__(self, a: Units) -> Units:
        """d ⊙ a."""
        by_channel = a.reshape(-1, len(self.weight)) * self.weight[None, :]
        return by_channel.reshape(a.shape)

    def out_units(self, in_units: int) -> int:
        """As many.

        Raises:
            ValueError: unless these are a multiple of its channels.
        """
        if in_units % len(self.weight):
            raise ValueError(
                f"Diagonal has {len(self.weight)} weights but comes from {in_units} units; "
                "it must have one for each channel."
            )
        return in_units

    def incoming(self, channels: int) -> Matrix:
        """The diagonal matrix."""
        return jnp.diag(self.weight)

    def outgoing(self, channels: int) -> Matrix:
        """The diagonal matrix."""
        return jnp.diag(self.weight)

    def scaled(self, factor: Float[Array, " channels"]) -> "Diagonal":
        """The diagonal, times the factors."""
        return Diagonal(factor * self.weight)


class Identity(AbstractConnection):
    """Each unit to itself, with the constant weight 1: the skip of a residual network."""

    @property
    def mixes(self) -> bool:
        """No."""
        return False

    def __call__(self, a: Units) -> Units:
        """a."""
        return a

    def out_units(self, in_units: int) -> int:
        """As many."""
        return in_units

    def incoming(self, channels: int) -> Matrix:
        """None: it has no weights."""
        return jnp.zeros((channels, 0))

    def outgoing(self, channels: int) -> Matrix:
        """None: it has no weights."""
        return jnp.zeros((0, channels))

    def scaled(self, factor: Float[Array, " channels"]) -> Diagonal:
        """The factors as a diagonal."""
        return Diagonal(factor)


def concatenated(matrices: Sequence[Matrix], axis: int) -> Matrix:
    """The matrices side by side, or one below the other."""
    return matrices[0] if len(matrices) == 1 else jnp.concatenate(matrices, axis=axis)
