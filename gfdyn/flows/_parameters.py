"""Flows that move the parameters themselves, in no other coordinates."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._problem import Problem
from ..nets import AbstractNet, norm
from ._base import AbstractFlow, Field, Scalar, State, root_mean_squares


class AbstractParameterFlow(AbstractFlow):
    """A flow whose position is θ."""

    problem: eqx.AbstractVar[Problem]

    @property
    def comes_to_rest(self) -> bool:
        """At its end alone."""
        return False

    def start(self, net: AbstractNet) -> AbstractNet:
        """θ itself."""
        return net

    def net(self, position: AbstractNet) -> AbstractNet:
        """θ itself."""
        return position

    def direction(self, position: AbstractNet) -> AbstractNet:
        """θ itself."""
        return position

    def log_norm(self, position: AbstractNet) -> Scalar:
        """log ‖θ‖."""
        return jnp.log(norm(position))

    def point(self, position: AbstractNet) -> AbstractNet:
        """θ."""
        return position

    def with_point(self, position: AbstractNet, net: AbstractNet) -> AbstractNet:
        """The net."""
        return net

    def coasting_time(
        self, position: AbstractNet, velocity: State, field: Field, tolerance: Scalar
    ) -> Scalar:
        """0: θ has no direction of its own in these coordinates."""
        return jnp.zeros_like(tolerance)

    def held(self, velocity: State) -> State:
        """The velocity itself."""
        return velocity

    def retract(self, position: AbstractNet) -> AbstractNet:
        """Nothing to do: θ is unconstrained."""
        return position

    def error_blocks(
        self, error: AbstractNet, reference: AbstractNet
    ) -> tuple[Float[Array, " blocks"], Float[Array, " blocks"]]:
        """The root mean square of each weight matrix, of the error and of θ."""
        return root_mean_squares(error), root_mean_squares(reference)
