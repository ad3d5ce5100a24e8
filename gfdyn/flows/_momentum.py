"""The flow of a ball with friction, of which heavy-ball descent is the discretisation."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._numbers import check_number, is_positive
from .._trees import axpy, dot
from .._types import Scalar
from ..nets import AbstractNet
from ..problem import Problem, check_fit, check_problem
from ._base import Jumps, State, rescale, root_mean_squares
from ._unconstrained import AbstractUnconstrainedFlow


class Moving(eqx.Module):
    """θ and dθ/dt."""

    net: AbstractNet
    velocity: AbstractNet


class MomentumFlow(AbstractUnconstrainedFlow):
    r"""The flow with momentum $\ddot\theta + \gamma\dot\theta = -\nabla R(\theta)$, from
    rest.

    Heavy-ball descent, $\theta_{k+1} = \theta_k + \beta(\theta_k - \theta_{k-1}) - \eta
    \nabla R(\theta_k)$, converges to it at first order in h for $\eta = h^2$, $\beta = 1 -
    \gamma h$ and $t = kh$: see `heavy_ball`. As γ → ∞ it is gradient flow in the time t/γ.

    At a kink its acceleration jumps, but not its velocity: neurons pass kinks and never
    slide, so that `gf.solvers.Adaptive` is right for it. The energy $R +
    \frac12\|\dot\theta\|^2$ falls at the rate $\gamma\|\dot\theta\|^2$. Momentum breaks
    the conservation of balance.
    """

    problem: Problem
    friction: Float[Array, ""]

    def __init__(self, problem: Problem, friction: ArrayLike):
        """Choose the friction γ.

        Raises:
            ValueError: unless γ is positive and finite.
        """
        check_problem(problem)
        remedy = (
            "must be positive and finite; for gradient flow, the limit of large friction, "
            "use gf.GradientFlow."
        )
        check_number("friction", friction, is_positive, remedy)
        self.problem = problem
        self.friction = jnp.asarray(friction, problem.data.x.dtype)

    def heavy_ball(self, step: ArrayLike) -> tuple[Array, Array]:
        """The learning rate h² and the momentum 1 − γh of `gf.descend` whose k-th iterate
        is about θ(kh).

        Its own time axis is that of gradient flow, t/γ.
        """
        h = jnp.asarray(step, self.friction.dtype)
        return h**2, 1 - self.friction * h

    @property
    def clock_name(self) -> str:
        """t."""
        return "t"

    @property
    def description(self) -> str:
        """With its friction."""
        return f"Momentum flow, friction {float(self.friction):.3g}"

    @property
    def jumps_at(self) -> Jumps:
        """Nowhere: at kinks its acceleration does."""
        return "nowhere"

    def check(self, net: AbstractNet) -> None:
        """Raise unless the net fits the problem.

        Raises:
            TypeError: if `net` is no gfdyn network.
            ValueError: on sizes or dtypes that do not agree.
        """
        check_fit(self.problem, net)

    def start(self, net: AbstractNet) -> Moving:
        """θ at rest."""
        return Moving(net, rescale(jnp.zeros_like(self.friction), net))

    def net(self, position: Moving) -> AbstractNet:
        """θ."""
        return position.net

    def with_point(self, position: Moving, net: AbstractNet) -> Moving:
        """θ replaced, its velocity as it was."""
        return Moving(net, position.velocity)

    def cotangent(
        self, position: Moving, outputs: Float[Array, "samples outputs"]
    ) -> Float[Array, "samples outputs"]:
        """∇C."""
        return self.problem.cost_gradient(outputs)

    def assemble(
        self,
        position: Moving,
        outputs: Float[Array, "samples outputs"],
        gradient: AbstractNet,
    ) -> State:
        """d(θ, dθ/dt)/dt, and the rate γ‖dθ/dt‖² at which the energy falls."""
        v = position.velocity
        force = axpy(self.friction, v, gradient)
        pull = rescale(-jnp.ones_like(self.friction), force)
        return State(Moving(v, pull), self.friction * dot(v, v))

    def gain(self, gradient: AbstractNet) -> Scalar:
        """1, of the acceleration."""
        return jnp.ones_like(self.friction)

    def energy(self, position: Moving) -> Scalar:
        """R + ½‖dθ/dt‖²."""
        return self.risk(position) + 0.5 * dot(position.velocity, position.velocity)

    def risk(self, position: Moving) -> Scalar:
        """R, which momentum may carry up as well."""
        return self.problem.risk(position.net)

    def log_time_rate(self, position: Moving) -> Scalar:
        """0: the clock is physical time."""
        return jnp.zeros_like(self.friction)

    def invariants(self, position: Moving) -> tuple[PyTree[Array], Scalar]:
        """None."""
        return (), jnp.zeros_like(self.friction)

    def log_invariant_decay(self, log_time: Scalar) -> Scalar:
        """0."""
        return jnp.zeros_like(log_time)

    def error_blocks(
        self, error: Any, reference: Any
    ) -> tuple[Float[Array, " blocks"], Float[Array, " blocks"]]:
        """The root mean square of each array of θ, and of dθ/dt, on the scale γθ if that is
        larger: friction takes an error e of the velocity before it moves θ by e/γ."""
        sizes = root_mean_squares(reference.net)
        speeds = jnp.maximum(root_mean_squares(reference.velocity), self.friction * sizes)
        errors = [root_mean_squares(part) for part in (error.net, error.velocity)]
        return jnp.concatenate(errors), jnp.concatenate([sizes, speeds])
