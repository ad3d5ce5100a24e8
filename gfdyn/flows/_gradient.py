"""Gradient flow of the risk, in physical time or in a clock that outlives it.

The only minus sign of the package is here and in `_escape.py`: dθ/dt = −∇R(θ).
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._numbers import check_number, is_not_negative
from .._trees import axpy, dot
from .._types import Scalar
from ..losses import Linear
from ..nets import AbstractNet
from ..problem import Problem, check_fit, check_problem
from ._base import Jumps, State, rescale
from ._parameters import AbstractParameterFlow


Clock = Literal["physical", "loss", "arc"]


_CLOCKS: dict[Clock, str] = {
    "physical": "t",
    "loss": "τ with dτ = R dt",
    "arc": "τ, the arc length",
}


class GradientFlow(AbstractParameterFlow):
    r"""Gradient flow $d\theta/dt = -\nabla E(\theta)$ of $E = R + \lambda\|\theta\|^2$.

    The penalty is that of Galanti & Poggio, eq. (2): its gradient is $2\lambda\theta$. With
    a `decay_mask` it is of some parameters only. The clock τ in which it is integrated:

    * `"physical"`: τ = t.
    * `"loss"`: dτ = E dt, which makes it the gradient flow of log E, computed in log
      domain. For exponential-tailed losses, whose norms grow like log t.
    * `"arc"`: dτ = ‖dθ/dt‖ dt, the arc length of the trajectory: normalised flow. Its
      tangent −∇E/‖∇E‖ is that of log E, so that it too goes on where losses and gradients
      underflow. The physical time takes ‖∇E‖ with the activations' own gates: while neurons
      slide it is not exact. Normalised gradient descent converges to it, but while neurons
      slide it falls behind on the same path, for part of each step goes across the kink.
    """

    problem: Problem
    weight_decay: Float[Array, ""] | float
    clock: Clock = eqx.field(static=True)
    decay_mask: PyTree[bool] | None = eqx.field(static=True, default=None)

    def __init__(
        self,
        problem: Problem,
        weight_decay: ArrayLike = 0.0,
        clock: Clock = "physical",
        decay_mask: PyTree[bool] | None = None,
    ):
        """Choose the penalty λ, its parameters, and the clock.

        Args:
            problem: R.
            weight_decay: λ.
            clock: `"physical"`, `"loss"` or `"arc"`.
            decay_mask: a net of booleans, such as `gf.nets.weight_mask(net)`: which
                parameters decay. All if None.

        Raises:
            TypeError: if `problem` is none, or `weight_decay` no number.
            ValueError: on an unknown clock or a negative weight decay.
        """
        if clock not in ("physical", "loss", "arc"):
            raise ValueError(f"clock={clock!r}; use 'physical', 'loss' or 'arc'.")
        check_problem(problem)
        remedy = "must be 0 or positive, and finite."
        check_number("weight_decay", weight_decay, is_not_negative, remedy)
        self.problem = problem
        # A plain zero stays one, so that without a penalty none is computed; any other
        # value is an argument of the compiled solve.
        absent = isinstance(weight_decay, int | float) and weight_decay == 0
        dtype = problem.data.x.dtype
        self.weight_decay = 0.0 if absent else jnp.asarray(weight_decay, dtype)
        self.clock = clock
        self.decay_mask = decay_mask

    @property
    def clock_name(self) -> str:
        """t in physical time, τ otherwise."""
        return "t" if self.clock == "physical" else "tau"

    @property
    def description(self) -> str:
        """With its clock and the weight decay."""
        decay = float(self.weight_decay)
        named = f", λ = {decay:.3g}" if decay else ""
        return f"Gradient flow in {_CLOCKS[self.clock]}{named}"

    @property
    def jumps_at(self) -> Jumps:
        """At kinks."""
        return "kinks"

    def check(self, net: AbstractNet) -> None:
        """Raise unless the net fits the problem, and the mask the net.

        Raises:
            TypeError: if `net` is no gfdyn network.
            ValueError: on sizes, dtypes or a `decay_mask` that do not agree.
        """
        check_fit(self.problem, net)
        mask = self.decay_mask
        if mask is None:
            return
        leaves, structure = jax.tree.flatten(mask)
        if structure != jax.tree.structure(net) or not all(type(m) is bool for m in leaves):
            raise ValueError(
                f"decay_mask={mask} must have the structure of the net, with booleans for "
                "its arrays, as jax.tree.map(lambda _: True, net) has."
            )

    def cotangent(
        self, position: AbstractNet, outputs: Float[Array, "samples outputs"]
    ) -> Float[Array, "samples outputs"]:
        """∇C, or (R/E) ∇ log C where logs are taken."""
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
        log_factor, gradient = self._penalty_added(position, outputs, gradient)
        square = dot(gradient, gradient)
        if self.clock == "arc":
            length = jnp.sqrt(square)
            speed = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)
            return State(rescale(-speed, gradient), jnp.exp(log_factor) * length)
        return State(rescale(-jnp.ones_like(square), gradient), square)

    def gain(self, gradient: AbstractNet) -> Scalar:
        """1, or in arc length 1 over the norm."""
        square = dot(gradient, gradient)
        if self.clock != "arc":
            return jnp.ones_like(square)
        return 1 / jnp.sqrt(jnp.where(square > 0, square, 1.0))

    def energy(self, position: AbstractNet) -> Scalar:
        """E (physical, arc) or log E (loss)."""
        if self.clock == "loss":
            return self._log_energy(position)
        return self.risk(position)

    def risk(self, position: AbstractNet) -> Scalar:
        """E = R + λ‖θ‖², the objective."""
        return self._penalised(self.problem.risk(position), position)

    def log_time_rate(self, position: AbstractNet) -> Scalar:
        """0 (physical), −log E (loss), −log ‖∇E‖ (arc)."""
        if self.clock == "physical":
            return jnp.zeros((), self.problem.data.x.dtype)
        if self.clock == "loss":
            return -self._log_energy(position)
        outputs, vjp = jax.vjp(lambda net: net(self.problem.data.x), position)
        (gradient,) = vjp(self.cotangent(position, outputs))
        log_factor, gradient = self._penalty_added(position, outputs, gradient)
        return -log_factor - 0.5 * jnp.log(dot(gradient, gradient))

    def invariants(self, position: AbstractNet) -> tuple[PyTree[Array], Scalar]:
        """The net's invariants; decaying as e^(−4λt) under weight decay. Without those
        that have parameters that do not decay: no law is known of them."""
        kept = zip(position.conserved(), self._decay_as_one(position), strict=True)
        values = tuple(invariant.value for invariant, decays in kept if decays)
        return values, jnp.zeros((), self.problem.data.x.dtype)

    def log_invariant_decay(self, log_time: Scalar) -> Scalar:
        """−4λt, 0 without weight decay."""
        if not self._has_decay:
            return jnp.zeros_like(log_time)
        return -4 * self.weight_decay * jnp.exp(log_time)

    def decayed(self, net: AbstractNet) -> AbstractNet:
        """The parameters that decay, and 0 for the others."""
        if self.decay_mask is None:
            return net
        return jax.tree.map(
            lambda decays, w: w if decays else jnp.zeros_like(w), self.decay_mask, net
        )

    @property
    def _in_logs(self) -> bool:
        """Whether gradients are those of log E, of order one however small E is."""
        signed = isinstance(self.problem.loss, Linear)
        return self.clock == "loss" or (self.clock == "arc" and not signed)

    @property
    def _has_decay(self) -> bool:
        return not (isinstance(self.weight_decay, float) and self.weight_decay == 0)

    def _penalty_added(
        self,
        position: AbstractNet,
        outputs: Float[Array, "samples outputs"],
        gradient: AbstractNet,
    ) -> tuple[Scalar, AbstractNet]:
        """(s, g) with ∇E = eˢ g, from what was pulled back; s = log E, 0 without logs."""
        log_factor = jnp.zeros((), outputs.dtype)
        if self._in_logs:
            log_cost = self.problem.log_cost(outputs)
            has_decay = self._has_decay
            log_factor = self._log_penalised(log_cost, position) if has_decay else log_cost
        if self._has_decay:
            decay = 2 * jnp.asarray(self.weight_decay) * jnp.exp(-log_factor)
            gradient = axpy(decay, self.decayed(position), gradient)
        return log_factor, gradient

    def _decay_as_one(self, net: AbstractNet) -> list[bool]:
        """Of each of the net's invariants, whether all of its parameters do."""
        if not self._has_decay or all(jax.tree.leaves(self.decay_mask)):
            return [True for _ in net.conserved()]
        with jax.ensure_compile_time_eval():
            marks = jax.tree.map(
                lambda decays, w: jnp.full(w.shape, decays, w.dtype), self.decay_mask, net
            )
            return [
                bool(jnp.all(m.incoming == 1) & jnp.all(m.outgoing == 1))
                for m in marks.conserved()
            ]

    def _penalised(self, risk: Scalar, net: AbstractNet) -> Scalar:
        return risk + self._penalty(net) if self._has_decay else risk

    def _penalty(self, net: AbstractNet) -> Scalar:
        decayed = self.decayed(net)
        return self.weight_decay * dot(decayed, decayed)

    def _log_energy(self, net: AbstractNet) -> Scalar:
        log_risk = self.problem.log_risk(net)
        return self._log_penalised(log_risk, net) if self._has_decay else log_risk

    def _log_penalised(self, log_risk: Scalar, net: AbstractNet) -> Scalar:
        """log E, E = R + λ‖θ‖²; the weights of ∇ log E = (R/E) ∇ log R + (2λ/E) θ."""
        return jnp.logaddexp(log_risk, jnp.log(self._penalty(net)))
