"""Flows in which θ is under no constraint, and has no direction of its own."""

import abc
from typing import Any

import jax.numpy as jnp

from .._types import Scalar
from ..nets import AbstractNet, norm
from ._base import AbstractFlow, Field, State


class AbstractUnconstrainedFlow(AbstractFlow):
    """A flow whose position has θ as a part, or is it."""

    @abc.abstractmethod
    def net(self, position: Any) -> AbstractNet:
        """The net θ at a position."""

    def direction(self, position: Any) -> AbstractNet:
        """θ itself."""
        return self.net(position)

    def point(self, position: Any) -> AbstractNet:
        """θ."""
        return self.net(position)

    def log_norm(self, position: Any) -> Scalar:
        """log ‖θ‖."""
        return jnp.log(norm(self.net(position)))

    @property
    def is_polar(self) -> bool:
        """It is not."""
        return False

    @property
    def comes_to_rest(self) -> bool:
        """At its end alone."""
        return False

    def coasting_time(
        self, position: Any, velocity: State, field: Field, tolerance: Scalar
    ) -> Scalar:
        """0: θ has no direction of its own in these coordinates."""
        return jnp.zeros_like(tolerance)

    def held(self, velocity: State) -> State:
        """The velocity itself."""
        return velocity

    def retract(self, position: Any) -> Any:
        """Nothing to do: θ is unconstrained."""
        return position
