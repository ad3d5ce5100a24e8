"""An ordinary adaptive solve by any of diffrax's solvers."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._numbers import check_number, is_not_negative, is_positive
from .._numerics import nonzero
from .._types import Scalar
from ..flows import AbstractFlow, Field, State
from ..nets import AbstractNet
from ._base import AbstractSolver, Step
from ._controller import AdaptiveState, Coasting, ControllerState, Verdict, all_finite


class Adaptive(AbstractSolver):
    """Runge–Kutta with error control, blind to kinks.

    Right for smooth networks. On a ReLU network whose neurons slide along kinks it
    chatters: see `Trajectory.certificate`. The error of each weight matrix, in Frobenius
    norm, is held below `rtol` of that matrix's norm (plus `atol`, per entry); that of
    log r below `rtol`.

    Derivatives through it are those of the discretised map, which do not converge to the
    flow's where a pre-activation changes sign.

    Args:
        method: any diffrax solver with an error estimate; an implicit one with the
            tolerances of its root finder.
        rtol: relative tolerance per step.
        atol: absolute tolerance per step, for the root mean square entry of a matrix.
        pcoeff: proportional coefficient of the step size controller.
        icoeff: its integral coefficient.
        max_size: no step is longer than this, in the flow's clock.
    """

    method: dfx.AbstractSolver
    rtol: float | Scalar
    atol: float | Scalar
    pcoeff: float | Scalar
    icoeff: float | Scalar
    max_size: float | Scalar | None

    def __init__(
        self,
        method: dfx.AbstractSolver | None = None,
        rtol: float | Scalar = 1e-6,
        atol: float | Scalar = 1e-12,
        pcoeff: float | Scalar = 0.3,
        icoeff: float | Scalar = 0.3,
        max_size: float | Scalar | None = None,
    ):
        """Choose the method and the tolerances.

        Raises:
            TypeError: if `method` is not a diffrax solver, or another argument no number.
            ValueError: unless rtol > 0 and atol ≥ 0 are finite, the coefficients too, and
                `max_size` is positive; on a method without error estimate.
        """
        method = dfx.Tsit5() if method is None else method
        if not isinstance(method, dfx.AbstractSolver):
            raise TypeError(
                f"method must be a diffrax solver such as diffrax.Tsit5(), got {method!r}."
            )
        _check_method(method)
        positive = "must be positive and finite"
        check_number("rtol", rtol, is_positive, f"{positive}, such as 1e-6.")
        remedy = "must be finite and not negative, such as 1e-12."
        check_number("atol", atol, is_not_negative, remedy)
        for name, value in (("pcoeff", pcoeff), ("icoeff", icoeff)):
            remedy = "must be finite and not negative, such as 0.3."
            check_number(name, value, is_not_negative, remedy)
        if max_size is not None:
            check_number("max_size", max_size, is_positive, f"{positive}, or None.")
        self.method = method
        self.rtol = rtol
        self.atol = atol
        self.pcoeff = pcoeff
        self.icoeff = icoeff
        self.max_size = max_size

    @property
    def tolerance(self) -> float | Scalar:
        """`rtol`, relative, per step."""
        return self.rtol

    def check(self, flow: AbstractFlow, net: AbstractNet) -> None:
        """Raise on a flow that chatters everywhere; any network will do.

        Raises:
            ValueError: on a flow that switches signs.
        """
        if flow.jumps_at == "signs":
            raise ValueError(
                f"solver=Adaptive(): a {type(flow).__name__} jumps wherever a derivative "
                "changes sign, and would chatter; use gf.solvers.SignSwitches()."
            )

    def init(
        self, flow: AbstractFlow, state: State, dt0: Scalar | None
    ) -> tuple["AdaptiveState", Scalar]:
        """Start the method and its controller; a first step that moves θ by 1 %."""
        if dt0 is None:
            dt0 = self.first_size(flow, state, flow.velocity(state.position))
        dt0 = jax.lax.stop_gradient(dt0)
        field = Coasting(flow, jnp.asarray(False))
        controller = self.start_controller(flow, state, dt0)
        return self.started(field, state, dt0, controller), dt0

    def started(
        self, field: Field, state: State, size: Scalar, controller: "ControllerState"
    ) -> "AdaptiveState":
        """The method's state where a field begins."""
        method_state = self.method.init(_TERM, 0.0 * size, size, state, field)
        return AdaptiveState(method_state, controller)

    def first_size(self, flow: AbstractFlow, state: State, velocity: State) -> Scalar:
        """A step that moves θ by 1 %."""
        moves, scales = flow.error_blocks(velocity.position, state.position)
        fastest = jnp.max(moves / jnp.where(scales > 0, scales, 1.0))
        return jax.lax.stop_gradient(0.01 / jnp.where(fastest > 0, fastest, 1.0))

    def step(
        self,
        flow: AbstractFlow,
        state: State,
        size: Scalar,
        solver_state: "AdaptiveState",
    ) -> Step:
        """One step of the method, along converged directions without stability limit."""
        velocity = flow.velocity(state.position)
        return self.step_from(flow, state, size, velocity, solver_state)

    def step_from(
        self,
        flow: AbstractFlow,
        state: State,
        size: Scalar,
        velocity: State,
        solver_state: "AdaptiveState",
    ) -> Step:
        """One step from where the velocity is known."""
        longest_coast = self.longest_coast(flow, state, velocity, flow.velocity)
        coasting = size <= longest_coast
        field = Coasting(flow, coasting)
        step = self.attempt(flow, field, state, size, solver_state)
        next_size = jnp.minimum(step.next_size, longest_coast)
        next_size = jnp.where(coasting, next_size, step.next_size)
        evaluations = step.num_field_evaluations + int(flow.is_polar)
        return eqx.tree_at(
            lambda s: (s.next_size, s.num_field_evaluations), step, (next_size, evaluations)
        )

    def attempt(
        self,
        flow: AbstractFlow,
        field: Field,
        state: State,
        size: Scalar,
        solver_state: "AdaptiveState",
    ) -> Step:
        """One step of the method in a field, judged by its embedded error estimate."""
        zero = jnp.zeros_like(size)
        end, error, dense_info, method_state, result = self.method.step(
            _TERM, zero, size, state, field, solver_state.method, made_jump=False
        )
        assert error is not None
        defined = result == dfx.RESULTS.successful
        verdict = self.judge(
            flow, error, state, end, size, solver_state.controller, defined
        )
        kept = jax.tree.map(
            lambda new, old: jnp.where(verdict.accepted, new, old),
            method_state,
            solver_state.method,
        )
        return Step(
            accepted=verdict.accepted,
            finite=verdict.finite,
            size=size,
            next_size=verdict.next_size,
            state=end,
            interpolation=self.method.interpolation_cls(t0=zero, t1=size, **dense_info),
            solver_state=AdaptiveState(kept, verdict.controller),
            num_field_evaluations=jnp.asarray(self._stages, jnp.int32),
        )

    def longest_coast(
        self, flow: AbstractFlow, state: State, velocity: State, field: Field
    ) -> Scalar:
        """How long a step may be during which the direction of θ is held."""
        tolerance = _COASTING_FRACTION * jnp.asarray(self.rtol, state.dissipated.dtype)
        return flow.coasting_time(state.position, velocity, field, tolerance)

    def start_controller(
        self, flow: AbstractFlow, state: State, dt0: Scalar
    ) -> "ControllerState":
        """The state of the step size controller before the first step."""
        unit = jnp.ones_like(dt0)
        _, sizes = self._controller.init(
            _TERM, 0.0 * dt0, dt0, unit, dt0, None, _no_field, self.error_order
        )
        energy = jnp.abs(flow.energy(jax.lax.stop_gradient(state.position)))
        return ControllerState(sizes, jax.lax.stop_gradient(energy))

    def judge(
        self,
        flow: AbstractFlow,
        error: State,
        start: State,
        end: State,
        size: Scalar,
        controller: "ControllerState",
        defined: Bool[Array, ""] | bool = True,
        error_order: float | Scalar | None = None,
    ) -> "Verdict":
        """Whether a step is accepted, and the size of the next one, from its error, of an
        order that is the method's if None."""
        if error_order is None:
            error_order = self.error_order
        zero = jnp.zeros_like(size)
        ratio = self.error_ratio(flow, error.position, start.position, end.position)
        dissipation = self._dissipation_error(error, end, controller.energy)
        ratio = jnp.maximum(ratio, dissipation)
        finite = all_finite(end) & defined
        # A step into a region where the field is not defined shrinks as fast as allowed.
        ratio = jnp.where(finite & jnp.isfinite(ratio), ratio, 1e10)
        accepted, begin, stop, _, sizes, _ = self._controller.adapt_step_size(
            zero, size, zero, zero, None, ratio, error_order, controller.sizes
        )
        next_size = stop - begin
        if self.max_size is not None:
            next_size = jnp.minimum(next_size, self.max_size)
        next_size = jax.lax.stop_gradient(jnp.asarray(next_size))
        after = ControllerState(sizes, controller.energy)
        return Verdict(jnp.asarray(accepted), finite, next_size, after)

    def follows_kinks(self, net: AbstractNet) -> bool:
        """No: to it each gate is the sign of its pre-activation."""
        return False

    def gates_of(self, solver_state: Any) -> None:
        """None."""

    def verifies(self, solver_state: Any) -> bool:
        """No."""
        return False

    def with_scan_kind(self, kind: str) -> "Adaptive":
        """The same solver, differentiable in the mode that goes with this kind of loop."""
        if not hasattr(self.method, "scan_kind"):
            return self
        return eqx.tree_at(
            lambda s: s.method.scan_kind, self, kind, is_leaf=lambda x: x is None
        )

    @property
    def error_order(self) -> float:
        """The order of the method's error estimate in the size of a step."""
        order = self.method.error_order(_TERM)
        if order is None:
            raise ValueError(
                f"method={type(self.method).__name__}() has no error estimate; "
                "use an embedded pair such as diffrax.Tsit5()."
            )
        return float(order)

    @property
    def _stages(self) -> int:
        """Field evaluations of one step; an implicit method's iterations not counted."""
        tableau = getattr(self.method, "tableau", None)
        if isinstance(tableau, dfx.ButcherTableau):
            return tableau.num_stages - int(tableau.fsal)
        return 1 if tableau is None else len(tableau)

    @property
    def _controller(self) -> dfx.PIDController:
        # Works on error ratios: the scales have already been divided out.
        return dfx.PIDController(
            rtol=0.0, atol=1.0, norm=jnp.abs, pcoeff=self.pcoeff, icoeff=self.icoeff
        )

    def _dissipation_error(self, error: State, end: State, energy: Scalar) -> Scalar:
        """The error of the dissipated energy, in units of what a step may make, so that the
        certificate holds also where steps are long, as the direction of θ is held."""
        wrong, dissipated = jax.lax.stop_gradient((error.dissipated, end.dissipated))
        allowed = _DISSIPATION_FACTOR * self.rtol * (energy + dissipated)
        return jnp.where(allowed > 0, jnp.abs(wrong) / nonzero(allowed), 0.0)

    def error_ratio(self, flow: AbstractFlow, error: Any, start: Any, end: Any) -> Scalar:
        """The largest error of a block of the position, in units of its tolerance."""
        errors, before = flow.error_blocks(error, start)
        _, after = flow.error_blocks(error, end)
        return jnp.max(errors / (self.atol + self.rtol * jnp.maximum(before, after)))


def _check_method(method: dfx.AbstractSolver) -> None:
    name = type(method).__name__
    if isinstance(method, dfx.Euler):
        raise ValueError(
            "method=Euler() has no error estimate; for gradient descent use gf.descend."
        )
    if getattr(method.term_structure, "__origin__", None) is dfx.MultiTerm:
        raise ValueError(
            f"method={name}() integrates a sum of two terms, a flow has one; use "
            "diffrax.Tsit5() or another Runge-Kutta pair."
        )
    # diffrax fills it in from its own controller, which is not in play here.
    root_finder = getattr(method, "root_finder", None)
    if root_finder is not None and not eqx.is_inexact_array_like(root_finder.rtol):
        raise ValueError(
            f"method={name}() leaves the tolerance of its root finder open; pass "
            f"diffrax.{name}(root_finder=diffrax.VeryChord(rtol=1e-8, atol=1e-10))."
        )


def _velocity(t: Scalar, state: State, field: Field) -> State:
    del t
    return field(state.position)


def _no_field(*args: Any) -> None:
    raise AssertionError("the first step size is given")


# The part of the tolerance that may be spent on holding a direction that hardly moves.
_COASTING_FRACTION = 0.1
# Relative to the energy, the error of what a step dissipates is held below so many times
# the tolerance on θ.
_DISSIPATION_FACTOR = 100.0
_TERM = dfx.ODETerm(_velocity)  # pyright: ignore[reportArgumentType]
