"""Where a descent stands, as trajectories keep it and files hold it."""

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, UInt32

from .._types import Count, Scalar
from ..nets import AbstractNet
from ._certificate import Ledger


class DescentState(eqx.Module):
    """Where a descent stands: the net, its momentum, the step, the seed, the ledger.

    `gf.descend` goes on from a trajectory's `checkpoint` as if it had not stopped.
    """

    net: AbstractNet
    # The leaves of what the optimizer carries, and the bits of the key: arrays alone, which
    # files hold.
    optimizer_state: tuple[Array, ...]
    step: Count
    time: Scalar
    dissipated: Scalar
    ledger: Ledger
    initial_norm: Scalar
    key_data: UInt32[Array, "*batch words"]
    key_kind: str = eqx.field(static=True)

    @property
    def key(self) -> PRNGKeyArray:
        """The seed of the batches."""
        return jr.wrap_key_data(self.key_data, impl=self.key_kind)

    @property
    def velocity(self) -> AbstractNet:
        """v of the heavy ball.

        Raises:
            ValueError: if the descent has no momentum.
        """
        structure = jax.tree.structure(self.net)
        if structure.num_leaves != len(self.optimizer_state):
            raise ValueError("the descent carries no velocity; give descend a momentum.")
        return jax.tree.unflatten(structure, self.optimizer_state)
