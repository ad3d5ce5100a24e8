"""When branches have come to rest, and when those that rest are moved again."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..._types import Branch, Outputs, Scalar
from ...nets import AbstractNet, branch_dot, scale_branches
from ...problem import Problem
from ...stopping import AbstractStop, Observation


def forces(problem: Problem, net: AbstractNet) -> Branch:
    r"""$\|g_b\|$ of each branch b, $g_b = J_{\rho_b}^\top \nabla C(f(X))$, over the largest
    of them with ∇C(0) for ∇C(f(X)): the force on a branch, whatever its size, as a part of
    what moves branches at the origin."""
    directions = _directions(net)

    def norms(cotangent: Outputs) -> Branch:
        gradient = _pulled_back(problem, directions, cotangent)
        return jnp.sqrt(branch_dot(gradient, gradient))

    here = norms(problem.cost_gradient(problem.outputs(net)))
    return here / jnp.max(norms(problem.cost_gradient_at_zero))


def shares(net: AbstractNet) -> Branch:
    """‖θ_b‖^L of each branch, which bounds its outputs, over the largest of them."""
    logs = log_radii(net)
    return jnp.exp(len(net.weights) * (logs - jnp.max(logs)))


def speeds(problem: Problem, net: AbstractNet) -> Branch:
    r"""$s_b = -\langle\rho_b, g_b\rangle/L$ of each branch, the speed at which it leaves:
    d log r_b/dt = s_b r_b^(L−2)."""
    directions = _directions(net)
    cotangent = problem.cost_gradient(problem.outputs(net))
    gradient = _pulled_back(problem, directions, cotangent)
    return -branch_dot(directions, gradient) / len(net.weights)


def still_at_rest(
    force: Branch, resting: Bool[Array, " branches"], rest: Scalar, release: Scalar
) -> Bool[Array, " branches"]:
    """Which branches rest under these forces, given those that rested before."""
    return (force <= rest) | (resting & (force <= release))


class Settled(AbstractStop):
    """All branches have come to rest or are negligible, and one has newly come to rest.

    Attributes:
        resting: those that rested before.
        rest: the force below which a branch comes to rest.
        release: that below which it stays there.
        share: `shares` at which one is negligible.
    """

    resting: Bool[Array, " branches"]
    rest: Scalar
    release: Scalar
    share: Scalar

    def init(self, dtype: Any) -> None:
        """Nothing to remember."""
        del dtype

    def update(self, memory: None, seen: Observation) -> tuple[None, Bool[Array, ""]]:
        """Whether they have."""
        force = forces(seen.problem, seen.net)
        rests = still_at_rest(force, self.resting, self.rest, self.release)
        small = shares(seen.net) <= self.share
        return memory, jnp.all(rests | small) & jnp.any(rests & ~self.resting)


class Released(AbstractStop):
    """A branch that rested is moved by what the others have learned.

    Attributes:
        resting: those that rest.
        force: `forces` at which one is released.
    """

    resting: Bool[Array, " branches"]
    force: Scalar

    def init(self, dtype: Any) -> None:
        """Nothing to remember."""
        del dtype

    def update(self, memory: None, seen: Observation) -> tuple[None, Bool[Array, ""]]:
        """Whether it is."""
        moved = forces(seen.problem, seen.net) > self.force
        return memory, jnp.any(moved & self.resting)


class Grown(AbstractStop):
    """A branch has grown to its target.

    Attributes:
        log_radii: the targets of log r_b, ∞ for none.
    """

    log_radii: Branch

    def init(self, dtype: Any) -> None:
        """Nothing to remember."""
        del dtype

    def update(self, memory: None, seen: Observation) -> tuple[None, Bool[Array, ""]]:
        """Whether one has."""
        return memory, jnp.any(log_radii(seen.net) >= self.log_radii)


def log_radii(net: AbstractNet) -> Branch:
    """log r_b of each branch, r_b = ‖θ_b‖/√L."""
    return 0.5 * jnp.log(branch_dot(net, net) / len(net.weights))


def _directions(net: AbstractNet) -> AbstractNet:
    return scale_branches(jnp.exp(-log_radii(net)), net)


def _pulled_back(problem: Problem, net: AbstractNet, cotangent: Outputs) -> AbstractNet:
    _, pull = jax.vjp(problem.outputs, net)
    return pull(cotangent)[0]
