"""Gradient flow of the risk, in physical time or in a clock that outlives it.

The only minus sign of the package is here and in `_escape.py`: dθ/dt = −∇R(θ).
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._problem import Problem, check_fit
from .._tracing import is_concrete
from ..nets import AbstractNet, norm
from ._base import (
    AbstractFlow,
    Scalar,
    State,
    axpy,
    dot,
    rescale,
    root_mean_squares,
)


Clock = Literal["physical", "loss", "arc"]


class GradientFlow(AbstractFlow):
    r"""Gradient flow $d\theta/dt = -\nabla E(\theta)$ of $E = R + \lambda\|\theta\|^2$.

    The penalty is that of Galanti & Poggio, eq. (2): its gradient is $2\lambda\theta$. The
    clock τ in which it is integrated:

    * `"physical"`: τ = t.
    * `"loss"`: dτ = E dt, which makes it the gradient flow of log E, computed in log
      domain. For exponential-tailed losses, whose norms grow like log t.
    * `"arc"`: dτ = ‖dθ/dt‖ dt, the arc length of the trajectory.
    """

    problem: Problem
    weight_decay: Float[Array, ""] | float
    clock: str = eqx.field(static=True)

    def __init__(
        self, problem: Problem, weight_decay: ArrayLike = 0.0, clock: Clock = "physical"
    ):
        """Choose the penalty λ and the clock.

        Raises:
            ValueError: on an unknown clock or a negative weight decay.
        """
        if clock not in ("physical", "loss", "arc"):
            raise ValueError(f"clock={clock!r}; use 'physical', 'loss' or 'arc'.")
        if is_concrete(weight_decay) and not np.asarray(weight_decay) >= 0:
            raise ValueError(f"weight_decay={weight_decay} must be 0 or positive.")
        self.problem = problem
        # A plain zero stays one, so that without a penalty none is computed; any other
        # value is an argument of the compiled solve.
        absent = isinstance(weight_decay, int | float) and weight_decay == 0
        dtype = problem.data.x.dtype
        self.weight_decay = 0.0 if absent else jnp.asarray(weight_decay, dtype)
        self.clock = clock

    @property
    def clock_name(self) -> str:
        """t in physical time, τ otherwise."""
        return "t" if self.clock == "physical" else "tau"

    def check(self, net: AbstractNet) -> None:
        """Raise unless the net fits the problem."""
        check_fit(self.problem, net)

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

    def cotangent(
        self, position: AbstractNet, outputs: Float[Array, "samples outputs"]
    ) -> Float[Array, "samples outputs"]:
        """∇C, or (R/E) ∇ log C in the clock of the loss."""
        if not self._in_logs:
            return self.problem.cost_gradient(outputs)
        log_cost, cotangent = jax.value_and_grad(self.problem.log_cost)(outputs)
        if not self._has_decay:
            return cotangent
        return jnp.exp(log_cost - self._log_penalised(log_cost, position)) * cotangent

    def assemble(
        self,
        position: AbstractNet,
        outputs: Float[Array, "samples outputs"],
        gradient: AbstractNet,
    ) -> State:
        """dθ/dτ, and the rate −dE/dτ (physical, arc) or −d log E/dτ (loss)."""
        if self._has_decay:
            decay = 2 * jnp.asarray(self.weight_decay)
            if self._in_logs:
                log_cost = self.problem.log_cost(outputs)
                decay = decay * jnp.exp(-self._log_penalised(log_cost, position))
            gradient = axpy(decay, position, gradient)
        square = dot(gradient, gradient)
        if self.clock == "arc":
            length = jnp.sqrt(square)
            speed = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)
            return State(rescale(-speed, gradient), length)
        return State(rescale(-jnp.ones_like(square), gradient), square)

    def gain(self, gradient: AbstractNet) -> Scalar:
        """1, or 1/‖∇E‖ in arc length."""
        square = dot(gradient, gradient)
        if self.clock != "arc":
            return jnp.ones_like(square)
        return 1 / jnp.sqrt(jnp.where(square > 0, square, 1.0))

    def coasting_time(
        self, position: AbstractNet, velocity: State, tolerance: Scalar
    ) -> Scalar:
        """0: θ has no direction of its own in these coordinates."""
        return jnp.zeros_like(tolerance)

    def held(self, velocity: State) -> State:
        """The velocity itself."""
        return velocity

    def retract(self, position: AbstractNet) -> AbstractNet:
        """Nothing to do: θ is unconstrained."""
        return position

    def energy(self, position: AbstractNet) -> Scalar:
        """E = R + λ‖θ‖² (physical, arc) or log E (loss)."""
        return self._log_energy(position) if self._in_logs else self.risk(position)

    def risk(self, position: AbstractNet) -> Scalar:
        """E = R + λ‖θ‖², the objective."""
        return self._penalised(self.problem.risk(position), position)

    def log_time_rate(self, position: AbstractNet) -> Scalar:
        """0 (physical), −log E (loss), −log ‖∇E‖ (arc)."""
        if self.clock == "physical":
            return jnp.zeros((), self.problem.data.x.dtype)
        if self.clock == "loss":
            return -self._log_energy(position)
        return -jnp.log(self.velocity(position).dissipated)

    def invariants(self, position: AbstractNet) -> tuple[PyTree[Array], Scalar]:
        """The net's invariants; decaying as e^(−4λt) under weight decay."""
        return position.invariants(), jnp.zeros((), self.problem.data.x.dtype)

    def log_invariant_decay(self, log_time: Scalar) -> Scalar:
        """−4λt, 0 without weight decay."""
        if not self._has_decay:
            return jnp.zeros_like(log_time)
        return -4 * self.weight_decay * jnp.exp(log_time)

    def error_blocks(
        self, error: AbstractNet, reference: AbstractNet
    ) -> tuple[Float[Array, " blocks"], Float[Array, " blocks"]]:
        """The root mean square of each weight matrix, of the error and of θ."""
        return root_mean_squares(error), root_mean_squares(reference)

    @property
    def _in_logs(self) -> bool:
        return self.clock == "loss"

    @property
    def _has_decay(self) -> bool:
        return not (isinstance(self.weight_decay, float) and self.weight_decay == 0)

    def _penalised(self, risk: Scalar, net: AbstractNet) -> Scalar:
        return risk + self.weight_decay * dot(net, net) if self._has_decay else risk

    def _log_energy(self, net: AbstractNet) -> Scalar:
        log_risk = self.problem.log_risk(net)
        return self._log_penalised(log_risk, net) if self._has_decay else log_risk

    def _log_penalised(self, log_risk: Scalar, net: AbstractNet) -> Scalar:
        """log E, E = R + λ‖θ‖²; the weights of ∇ log E = (R/E) ∇ log R + (2λ/E) θ."""
        return jnp.logaddexp(log_risk, jnp.log(self.weight_decay * dot(net, net)))
