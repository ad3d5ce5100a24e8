"""Connections whose weights come after maps without any: averages, another order."""

import abc
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Matrix
from ._connections import AbstractConnection, Units


class AbstractFixedMap(eqx.Module):
    """A linear map of units without weights, each channel to itself."""

    @property
    @abc.abstractmethod
    def in_units(self) -> int:
        """The number of units that it comes from."""

    @property
    @abc.abstractmethod
    def out_units(self) -> int:
        """The number of units that it leads to."""

    @abc.abstractmethod
    def __call__(self, a: Units) -> Units:
        """The image of each row."""

    @abc.abstractmethod
    def of_squares(self, q: Units) -> Units:
        """The image of each row under the map with its coefficients squared."""


class ChannelsLast(AbstractFixedMap):
    """Channels, then positions, become positions, then channels.

    Attributes:
        in_shape: (channels, *positions).
    """

    in_shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def in_units(self) -> int:
        """All."""
        return math.prod(self.in_shape)

    @property
    def out_units(self) -> int:
        """As many."""
        return self.in_units

    def __call__(self, a: Units) -> Units:
        """The units in the other order."""
        return jnp.moveaxis(a.reshape(len(a), *self.in_shape), 1, -1).reshape(len(a), -1)

    def of_squares(self, q: Units) -> Units:
        """The same: its coefficients are 0 and 1."""
        return self(q)


class AveragePool(AbstractFixedMap):
    """Means over windows, a window at the edge with zeros beyond it.

    Attributes:
        in_shape: (*positions, channels).
        window: the size of a window.
        strides: one for each dimension.
        padding: zeros before and behind, a pair for each dimension.
    """

    in_shape: tuple[int, ...] = eqx.field(static=True)
    window: tuple[int, ...] = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)
    padding: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __check_init__(self):
        if min(self.out_positions) < 1:
            raise ValueError(
                f"a window {self.window} does not fit into the grid "
                f"{self.in_shape[:-1]} with padding={self.padding}."
            )

    @property
    def out_positions(self) -> tuple[int, ...]:
        """The size of the grid that it leads to."""
        grid = self.in_shape[:-1]
        parts = zip(grid, self.padding, self.window, self.strides, strict=True)
        return tuple(
            (n + low + high - w) // stride + 1 for n, (low, high), w, stride in parts
        )

    @property
    def in_units(self) -> int:
        """Positions times channels."""
        return math.prod(self.in_shape)

    @property
    def out_units(self) -> int:
        """Positions times channels."""
        return math.prod(self.out_positions) * self.in_shape[-1]

    def __call__(self, a: Units) -> Units:
        """The means of each row."""
        return self._sums(a) / math.prod(self.window)

    def of_squares(self, q: Units) -> Units:
        """Sums over windows of k units, divided by k²."""
        return self._sums(q) / math.prod(self.window) ** 2

    def _sums(self, a: Units) -> Units:
        # A sum is known, and differentiated, by a start from a 0 that is no tracer.
        sums = jax.lax.reduce_window(
            a.reshape(len(a), *self.in_shape),
            np.zeros((), a.dtype),
            jax.lax.add,
            (1, *self.window, 1),
            (1, *self.strides, 1),
            ((0, 0), *self.padding, (0, 0)),
        )
        return sums.reshape(len(a), -1)


class Composed(AbstractConnection):
    """Fixed maps, one after the other, then a connection with weights."""

    fixed: tuple[AbstractFixedMap, ...]
    then: AbstractConnection

    @property
    def mixes(self) -> bool:
        """As the connection does; fixed maps do the same to all channels."""
        return self.then.mixes

    def __call__(self, a: Units) -> Units:
        """The image of each row."""
        return self.then(passed(self.fixed, a))

    def out_units(self, in_units: int) -> int:
        """Those of the connection.

        Raises:
            ValueError: if one map does not fit the one before.
        """
        for step in self.fixed:
            if step.in_units != in_units:
                raise ValueError(
                    f"{type(step).__name__} of {step.in_units} units comes from {in_units}."
                )
            in_units = step.out_units
        return self.then.out_units(in_units)

    def incoming(self, channels: int) -> Matrix:
        """Those of the connection."""
        return self.then.incoming(channels)

    def outgoing(self, channels: int) -> Matrix:
        """Those of the connection: fixed maps keep channels apart."""
        return self.then.outgoing(channels)

    def scaled(self, factor: Float[Array, " channels"]) -> "Composed":
        """The connection scaled."""
        return Composed(self.fixed, self.then.scaled(factor))


def passed(fixed: Sequence[AbstractFixedMap], a: Units) -> Units:
    """The image of each row under the maps, one after the other."""
    for step in fixed:
        a = step(a)
    return a


def own_squares(connection: AbstractConnection, a: Units) -> Units:
    """‖∂(image of a)/∂(its weights)‖², unit by unit."""
    if isinstance(connection, Composed):
        return own_squares(connection.then, passed(connection.fixed, a))
    count = jax.tree.map(jnp.ones_like, connection)(a**2)
    return count if connection.trained else jnp.zeros_like(count)


def passed_squares(connection: AbstractConnection, q: Units) -> Units:
    """Σ w² q over what enters each unit."""
    if isinstance(connection, Composed):
        for step in connection.fixed:
            q = step.of_squares(q)
        connection = connection.then
    return jax.tree.map(jnp.square, connection)(q)
