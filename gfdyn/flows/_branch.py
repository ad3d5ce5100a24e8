"""Gradient flow of branches side by side, each in polar coordinates of its own."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .._tracing import is_concrete
from .._trees import axpy
from .._types import Branch, Scalar
from ..nets import AbstractNet, branch_dot, check_branches, scale_branches, scale_outputs
from ..problem import Problem, check_fit, check_problem
from ._base import Field, State, degree_of
from ._coasting import holding_time
from ._polar import AbstractPolarFlow


class Branches(eqx.Module):
    """θ_b = r_b ρ_b for each branch b, with ρ_b on the sphere of radius √L."""

    direction: AbstractNet
    log_radii: Branch


class BranchFlow(AbstractPolarFlow):
    r"""Gradient flow of a sum of branches of degree $L$, $f = \sum_b r_b^L f_{\rho_b}$, as
    $\theta_b = r_b\rho_b$, $\|\rho_b\|^2 = L$, in the clock $dt = r^{2-L} d\tau$ with
    $r^2 = \sum_b r_b^2$ over the branches that are not `resting`.

    $$g_b = J_{\rho_b}^\top \nabla C(f(X)), \quad
      \frac{d\rho_b}{d\tau} = -\Big(\frac{r_b}{r}\Big)^{L-2}
      \Big(I - \frac{\rho_b\rho_b^\top}{L}\Big) g_b, \quad
      \frac{d\log r_b}{d\tau} = -\Big(\frac{r_b}{r}\Big)^{L-2}
      \frac{\langle\rho_b, g_b\rangle}{L}$$

    The same trajectory as `GradientFlow`, with the error of each branch relative to that
    branch, however far it is below others. Branches at e^-200 wait at a saddle while
    others have learned, and are the next to leave it: from the origin the flow passes all
    saddles to the fit. Branches are the neurons of two-layer networks, whatever their
    activation; deeper networks are linear, with diagonal hidden layers
    (`gf.escape.spectral`), and wait for r^(2−L): `gf.escape.chain` passes those waits.
    What parts branches that have come to share a direction is below its tolerance.

    Attributes:
        problem: R.
        resting: which branches are held: such as have come to rest, while others, as yet
            too small to move them, grow. None of them if None.
    """

    problem: Problem
    resting: Bool[Array, " branches"] | None = None

    def __check_init__(self):
        check_problem(self.problem)

    @property
    def description(self) -> str:
        """With its clock."""
        return "Gradient flow of branches in τ, dt = r^(2−L) dτ"

    @property
    def is_polar(self) -> bool:
        """Not as one: each branch is."""
        return False

    def check(self, net: AbstractNet) -> None:
        """Raise unless the net fits the problem and is a sum of branches.

        Raises:
            ValueError: on any other net, on kinks in a deep one, or on a branch whose
                weights are 0.
        """
        check_fit(self.problem, net)
        check_branches(net)
        if net.has_kinks and net.degree != 2:
            raise ValueError(
                f"net has kinks and {net.degree} layers, but a BranchFlow follows kinks of "
                "two-layer networks alone; use gf.EscapeFlow."
            )
        squares = branch_dot(net, net)
        if is_concrete(squares) and not (squares > 0).all():
            at = int(jnp.argmin(squares))
            raise ValueError(
                f"net has weights of norm 0 (but for underflow, {squares.dtype}) in branch "
                f"{at}, and so no direction there; draw it larger, or in float64."
            )

    def start(self, net: AbstractNet) -> Branches:
        """(ρ_b, log r_b) of a net."""
        radii = jnp.sqrt(branch_dot(net, net) / degree_of(net))
        return Branches(scale_branches(1 / radii, net), jnp.log(radii))

    def net(self, position: Branches) -> AbstractNet:
        """θ_b = r_b ρ_b; underflows where r_b does."""
        return scale_branches(jnp.exp(position.log_radii), position.direction)

    def direction(self, position: Branches) -> AbstractNet:
        """θ over the largest r_b."""
        largest = jnp.max(position.log_radii)
        return scale_branches(jnp.exp(position.log_radii - largest), position.direction)

    def log_norm(self, position: Branches) -> Scalar:
        """log ‖θ‖."""
        degree = degree_of(position.direction)
        return _log_length(position.log_radii) + 0.5 * math.log(degree)

    def point(self, position: Branches) -> AbstractNet:
        """All ρ_b."""
        return position.direction

    def with_point(self, position: Branches, net: AbstractNet) -> Branches:
        """All ρ_b replaced, the r_b as they were."""
        return Branches(net, position.log_radii)

    def cotangent(
        self, position: Branches, outputs: Float[Array, "samples outputs"]
    ) -> Float[Array, "samples outputs"]:
        """∇C(Σ_b r_b^L f_b), whatever the outputs of the ρ_b alone."""
        # Whatever their gates, too: at a kink a neuron brings nothing, be it on or off.
        del outputs
        return self.problem.cost_gradient(self._outputs(position))

    def assemble(
        self,
        position: Branches,
        outputs: Float[Array, "samples outputs"],
        gradient: AbstractNet,
    ) -> State:
        """d(ρ_b, log r_b)/dτ, and the rate −dR/dτ = r^(2−L) Σ_b r_b^(2L−2) ‖g_b‖²."""
        del outputs
        rho, degree = position.direction, degree_of(position.direction)
        log_clock = self.log_time_rate(position)
        free = self._moving(position.log_radii)
        pace = free * jnp.exp((degree - 2) * position.log_radii + log_clock)
        radial = branch_dot(rho, gradient)
        inward = scale_branches(-radial / branch_dot(rho, rho), rho)
        tangent = axpy(jnp.ones_like(log_clock), inward, gradient)
        square = branch_dot(gradient, gradient)
        falling = jnp.exp((2 * degree - 2) * position.log_radii + log_clock) * square
        return State(
            Branches(scale_branches(-pace, tangent), -pace * radial / degree),
            jnp.sum(free * falling),
        )

    def coasting_time(
        self, position: Branches, velocity: State, field: Field, tolerance: Scalar
    ) -> Scalar:
        """How long the ρ_b may be held for an error of at most `tolerance` · ‖ρ_b‖.

        Along a plateau they have converged and only the r_b move, for long. Branches that
        rest do not deviate.
        """
        rho, unravel = jax.flatten_util.ravel_pytree(position.direction)
        moves: Branches = velocity.position
        here, _ = jax.flatten_util.ravel_pytree(moves.direction)

        def tangent(v: AbstractNet) -> AbstractNet:
            along = branch_dot(position.direction, v)
            along /= branch_dot(position.direction, position.direction)
            outward = scale_branches(along, position.direction)
            turning = axpy(-jnp.ones_like(tolerance), outward, v)
            return scale_branches(self._moving(position.log_radii), turning)

        def change(displacement: Array) -> Array:
            moved = axpy(
                jnp.ones_like(tolerance),
                tangent(unravel(displacement)),
                position.direction,
            )
            there: Branches = field(Branches(moved, position.log_radii)).position
            flat, _ = jax.flatten_util.ravel_pytree(there.direction)
            turned, _ = jax.flatten_util.ravel_pytree(tangent(unravel(flat - here)))
            return turned

        rate = jnp.max(jnp.abs(moves.log_radii))
        allowed = tolerance * math.sqrt(degree_of(position.direction))
        return holding_time(here, change, rate, allowed)

    def _moving(self, like: Branch) -> Branch:
        """1 for the branches that move, 0 for those that rest."""
        ones = jnp.ones_like(like)
        return ones if self.resting is None else jnp.where(self.resting, 0.0, ones)

    def held(self, velocity: State) -> State:
        """The velocity with all ρ_b held: only the log r_b move."""
        position: Any = velocity.position
        still = jax.tree.map(jnp.zeros_like, position.direction)
        return State(Branches(still, position.log_radii), velocity.dissipated)

    def retract(self, position: Branches) -> Branches:
        """Each ρ_b back to the sphere of radius √L."""
        rho = position.direction
        factors = jnp.sqrt(degree_of(rho) / branch_dot(rho, rho))
        return Branches(scale_branches(factors, rho), position.log_radii)

    def risk(self, position: Branches) -> Scalar:
        """R(θ)."""
        return self.problem.cost(self._outputs(position))

    def log_time_rate(self, position: Branches) -> Scalar:
        """(2 − L) log r, r² the sum of r_b² over the branches that do not rest."""
        log_radii = position.log_radii
        if self.resting is not None:
            log_radii = jnp.where(self.resting, -jnp.inf, log_radii)
        return (2.0 - degree_of(position.direction)) * _log_length(log_radii)

    def invariants(self, position: Branches) -> tuple[PyTree[Array], Scalar]:
        """Those of θ over the largest r_b, to be scaled by its square."""
        largest = jnp.max(position.log_radii)
        return self.direction(position).invariants(), 2.0 * largest

    def error_blocks(
        self, error: Branches, reference: Branches
    ) -> tuple[Float[Array, " blocks"], Float[Array, " blocks"]]:
        """‖·‖ of each ρ_b, and each log r_b on the scale 1."""
        log_radii = jnp.abs(error.log_radii)
        sizes = jnp.sqrt(branch_dot(error.direction, error.direction))
        scales = jnp.sqrt(branch_dot(reference.direction, reference.direction))
        return (
            jnp.concatenate([sizes, log_radii]),
            jnp.concatenate([scales, jnp.ones_like(log_radii)]),
        )

    def _outputs(self, position: Branches) -> Float[Array, "samples outputs"]:
        degree = degree_of(position.direction)
        scales = jnp.exp(degree * position.log_radii)
        return self.problem.outputs(scale_outputs(scales, position.direction))


def _log_length(log_radii: Branch) -> Scalar:
    """log of the root of the sum of r_b²."""
    return 0.5 * jax.nn.logsumexp(2.0 * log_radii)
