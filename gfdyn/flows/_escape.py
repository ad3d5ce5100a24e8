"""Gradient flow in polar coordinates and reparametrised time, for saddle escape."""

import math

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._tracing import is_concrete
from .._trees import axpy, dot
from .._types import Scalar
from ..nets import AbstractNet, norm
from ..problem import Problem, check_fit, check_problem
from ._base import (
    Field,
    State,
    degree_of,
    rescale,
    root_mean_squares,
)
from ._coasting import holding_time
from ._polar import AbstractPolarFlow


class Polar(eqx.Module):
    """θ = r ρ with ρ on the sphere of radius √L, r = ‖θ‖/√L."""

    direction: AbstractNet
    log_radius: Scalar


class EscapeFlow(AbstractPolarFlow):
    r"""Gradient flow of a net of degree $L$ as $\theta = r\rho$, $\|\rho\|^2 = L$, in
    the clock $dt = r^{2-L} d\tau$.

    $$g = J_\rho^\top \nabla C(r^L f_\rho(X)), \quad
      \frac{d\rho}{d\tau} = -\Big(I - \frac{\rho\rho^\top}{\rho^\top\rho}\Big) g, \quad
      \frac{d\log r}{d\tau} = -\frac{\langle\rho, g\rangle}{L}$$

    The same trajectory as `GradientFlow`, at every scale of initialisation. What leaves the
    next saddle that it comes to may be below the tolerance of ρ; `BranchFlow` keeps it.

    With `localized=True`, ∇C(0) stands for ∇C: the flow of the localized loss, whose
    d log r/dτ = −L₀(ρ) is the escape speed. Bantzis et al., Prop. A.1; their unit-sphere
    time is s = L^(L/2−1) τ, and their ‖θ(s)‖ and t(s) lack a factor L in the exponent.
    """

    problem: Problem
    localized: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_problem(self.problem)

    @property
    def description(self) -> str:
        """With its clock."""
        name = "Localized escape flow" if self.localized else "Escape flow"
        return f"{name} in τ, dt = r^(2−L) dτ"

    @property
    def is_polar(self) -> bool:
        """It is: θ = rρ."""
        return True

    def check(self, net: AbstractNet) -> None:
        """Raise unless the net fits the problem and is homogeneous.

        Raises:
            ValueError: on a net without a degree, or that is 0.
        """
        check_fit(self.problem, net)
        length = norm(net)
        if is_concrete(length) and not (length > 0).all():
            raise ValueError(
                f"net has norm {float(jnp.min(length))}, and so no direction in which to "
                "escape; draw one of any positive size."
            )
        if net.degree is None:
            raise ValueError(
                f"net is a {type(net).__name__} that is not positively homogeneous in its "
                "parameters (degree is None: a bias, say), so it has no polar coordinates; "
                "use gf.GradientFlow."
            )

    def start(self, net: AbstractNet) -> Polar:
        """(ρ, log r) of a net."""
        length = norm(net)
        direction = rescale(math.sqrt(degree_of(net)) / length, net)
        return Polar(direction, jnp.log(length) - 0.5 * math.log(degree_of(net)))

    def net(self, position: Polar) -> AbstractNet:
        """θ = r ρ; underflows where r does."""
        return rescale(jnp.exp(position.log_radius), position.direction)

    def direction(self, position: Polar) -> AbstractNet:
        """ρ."""
        return position.direction

    def log_norm(self, position: Polar) -> Scalar:
        """log ‖θ‖ = log r + ½ log L."""
        return position.log_radius + 0.5 * math.log(degree_of(position.direction))

    def point(self, position: Polar) -> AbstractNet:
        """ρ."""
        return position.direction

    def with_point(self, position: Polar, net: AbstractNet) -> Polar:
        """ρ replaced, r as it was."""
        return Polar(net, position.log_radius)

    def cotangent(
        self, position: Polar, outputs: Float[Array, "samples outputs"]
    ) -> Float[Array, "samples outputs"]:
        """∇C(r^L f_ρ(X)), or ∇C(0) when localized."""
        if self.localized:
            return self.problem.cost_gradient_at_zero
        return self.problem.cost_gradient(self._output_scale(position) * outputs)

    def assemble(
        self,
        position: Polar,
        outputs: Float[Array, "samples outputs"],
        gradient: AbstractNet,
    ) -> State:
        """d(ρ, log r)/dτ, and the rate −dR/dτ = r^L ‖g‖², or ds/dτ when localized."""
        del outputs
        rho, degree = position.direction, degree_of(position.direction)
        radial = dot(rho, gradient)
        tangent = axpy(-radial / dot(rho, rho), rho, gradient)
        if self.localized:
            dissipation = dot(tangent, tangent)
        else:
            scale = jnp.exp(degree * position.log_radius)
            dissipation = scale * dot(gradient, gradient)
        minus = -jnp.ones_like(radial)
        return State(Polar(rescale(minus, tangent), -radial / degree), dissipation)

    def coasting_time(
        self, position: Polar, velocity: State, field: Field, tolerance: Scalar
    ) -> Scalar:
        r"""How long ρ may be held where it is for an error of at most `tolerance` · ‖ρ‖.

        On the long way out of a saddle ρ has converged and only r moves, but an explicit
        method is held to steps of 1/s by its stability.
        """
        rho, unravel = jax.flatten_util.ravel_pytree(position.direction)
        moves: Polar = velocity.position
        here, _ = jax.flatten_util.ravel_pytree(moves.direction)

        def tangent(v: Array) -> Array:
            return v - rho * (rho @ v) / (rho @ rho)

        def change(displacement: Array) -> Array:
            moved = Polar(unravel(rho + tangent(displacement)), position.log_radius)
            there: Polar = field(moved).position
            flat, _ = jax.flatten_util.ravel_pytree(there.direction)
            return tangent(flat - here)

        rate = jnp.abs(moves.log_radius)
        allowed = tolerance * math.sqrt(degree_of(position.direction))
        return holding_time(here, change, rate, allowed)

    def held(self, velocity: State) -> State:
        """The velocity with ρ held: only log r moves."""
        position = velocity.position
        still = jax.tree.map(jnp.zeros_like, position.direction)
        return State(Polar(still, position.log_radius), velocity.dissipated)

    def retract(self, position: Polar) -> Polar:
        """ρ back to the sphere of radius √L."""
        rho = position.direction
        factor = jnp.sqrt(degree_of(rho) / dot(rho, rho))
        return Polar(rescale(factor, rho), position.log_radius)

    def risk(self, position: Polar) -> Scalar:
        """R(r ρ), or L₀(ρ) when localized."""
        outputs = self.problem.outputs(position.direction)
        if self.localized:
            return jnp.sum(self.problem.cost_gradient_at_zero * outputs)
        return self.problem.cost(self._output_scale(position) * outputs)

    def log_time_rate(self, position: Polar) -> Scalar:
        """(2 − L) log r."""
        return (2.0 - degree_of(position.direction)) * position.log_radius

    def invariants(self, position: Polar) -> tuple[PyTree[Array], Scalar]:
        """The invariants of ρ, to be scaled by r²."""
        return position.direction.invariants(), 2.0 * position.log_radius

    def error_blocks(
        self, error: Polar, reference: Polar
    ) -> tuple[Float[Array, " blocks"], Float[Array, " blocks"]]:
        """The root mean square of each weight matrix of ρ, and log r on the scale 1:
        an error of log r is a relative error of r."""
        log_r = jnp.abs(error.log_radius)[None]
        sizes = jnp.concatenate([root_mean_squares(error.direction), log_r])
        scales = root_mean_squares(reference.direction)
        return sizes, jnp.concatenate([scales, jnp.ones_like(log_r)])

    def _output_scale(self, position: Polar) -> Scalar:
        return jnp.exp(degree_of(position.direction) * position.log_radius)
