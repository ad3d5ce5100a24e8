"""Flows that move the parameters themselves, in no other coordinates."""

import equinox as eqx
from jaxtyping import Array, Float

from ..nets import AbstractNet
from ..problem import Problem
from ._base import root_mean_squares
from ._unconstrained import AbstractUnconstrainedFlow


class AbstractParameterFlow(AbstractUnconstrainedFlow):
    """A flow whose position is θ."""

    problem: eqx.AbstractVar[Problem]

    def start(self, net: AbstractNet) -> AbstractNet:
        """θ itself."""
        return net

    def net(self, position: AbstractNet) -> AbstractNet:
        """θ itself."""
        return position

    def with_point(self, position: AbstractNet, net: AbstractNet) -> AbstractNet:
        """The net."""
        return net

    def error_blocks(
        self, error: AbstractNet, reference: AbstractNet
    ) -> tuple[Float[Array, " blocks"], Float[Array, " blocks"]]:
        """The root mean square of each weight matrix, of the error and of θ."""
        return root_mean_squares(error), root_mean_squares(reference)
