"""An adaptive solve that changes to a stabilised method where stability limits steps."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax

from .._types import Scalar
from ..flows import AbstractFlow, State
from ..nets import AbstractNet
from ._adaptive import Adaptive
from ._base import AbstractSolver, Step
from ._chebyshev import ERROR_ORDER, chebyshev_step, error_of
from ._dense_output import of_ends, of_tsit5
from ._stiffness import Stiffness, not_stiff, radius_seen


class Stabilised(AbstractSolver):
    r"""Runge–Kutta with error control, for smooth flows that may be stiff.

    Along a plateau the flow is slow, yet steps of `Adaptive()` are held to $3.3/\varrho$ by
    stability, $\varrho$ the largest eigenvalue of the Hessian in size. There this solver
    goes on by the Runge–Kutta–Chebyshev method, whose $s$ stages take a step of
    $0.65\,s^2/\varrho$; elsewhere by Tsit5. It sees from each step which of the two is the
    cheaper. Blind to kinks, as `Adaptive` is, and with the same error control.

    Args:
        rtol: relative tolerance per step, as in `Adaptive`.
        atol: absolute tolerance per step, as in `Adaptive`.
    """

    steps: Adaptive
    loop_kind: str

    def __init__(self, rtol: float | Scalar = 1e-6, atol: float | Scalar = 1e-12):
        """Choose the tolerances.

        Raises:
            ValueError: as `Adaptive`.
        """
        self.steps = Adaptive(dfx.Tsit5(), rtol, atol)
        self.loop_kind = "checkpointed"

    @property
    def tolerance(self) -> float | Scalar:
        """`rtol`, relative, per step."""
        return self.steps.rtol

    def check(self, flow: AbstractFlow, net: AbstractNet) -> None:
        """Raise on a flow that chatters everywhere; any network will do.

        Raises:
            ValueError: on a flow that switches signs.
        """
        self.steps.check(flow, net)

    def init(
        self, flow: AbstractFlow, state: State, dt0: Scalar | None
    ) -> tuple["_StabilisedState", Scalar]:
        """As `Adaptive`, by Tsit5 at first."""
        steps, size = self.steps.init(flow, state, dt0)
        return _StabilisedState(steps, not_stiff(state.position, size)), size

    def follows_kinks(self, net: AbstractNet) -> bool:
        """No: to it each gate is the sign of its pre-activation."""
        return False

    def gates_of(self, solver_state: Any) -> None:
        """None."""

    def verifies(self, solver_state: Any) -> bool:
        """No."""
        return False

    def with_scan_kind(self, kind: str) -> "Stabilised":
        """The same solver, differentiable in the mode that goes with this kind of loop."""
        return eqx.tree_at(
            lambda s: (s.loop_kind, s.steps), self, (kind, self.steps.with_scan_kind(kind))
        )

    def step(
        self,
        flow: AbstractFlow,
        state: State,
        size: Scalar,
        solver_state: "_StabilisedState",
    ) -> Step:
        """One step of the method that runs."""
        first = flow.velocity(state.position)
        stiffness, cost = solver_state.stiffness.up_to_date(flow.velocity, state.position)
        step = jax.lax.cond(
            stiffness.stiff,
            lambda: self._by_chebyshev(
                flow, state, size, first, solver_state.steps, stiffness
            ),
            lambda: self._by_tsit5(flow, state, size, first, solver_state.steps, stiffness),
        )
        evaluations = step.num_field_evaluations + cost
        return eqx.tree_at(lambda s: s.num_field_evaluations, step, evaluations)

    def _by_tsit5(
        self,
        flow: AbstractFlow,
        state: State,
        size: Scalar,
        first: State,
        before: Any,
        stiffness: Stiffness,
    ) -> Step:
        """A step of Tsit5 as `Adaptive` takes it."""
        step = self.steps.step_from(flow, state, size, first, before)
        stages: Any = step.interpolation.k
        seen = radius_seen(stages.position, size)
        after = stiffness.after_tsit5(seen, step.accepted, size)
        output = of_tsit5(stages, state, size)
        return eqx.tree_at(
            lambda s: (s.solver_state, s.interpolation),
            step,
            (_StabilisedState(step.solver_state, after), output),
        )

    def _by_chebyshev(
        self,
        flow: AbstractFlow,
        state: State,
        size: Scalar,
        first: State,
        before: Any,
        stiffness: Stiffness,
    ) -> Step:
        """A step of as many stages as its stability takes."""
        size = stiffness.within_stability(size)
        stages = stiffness.stages(size)
        end, (last, _) = chebyshev_step(
            lambda position, _: (flow.velocity(position), None),
            state,
            (first, None),
            size,
            stages,
            self.loop_kind,
        )
        error = error_of(state, end, first, last, size)
        verdict = self.steps.judge(
            flow, error, state, end, size, before.controller, error_order=ERROR_ORDER
        )
        after = stiffness.after_chebyshev(verdict.accepted, verdict.next_size)
        steps = self.steps.started(flow.velocity, end, size, verdict.controller)
        return Step(
            accepted=verdict.accepted,
            finite=verdict.finite,
            size=size,
            next_size=verdict.next_size,
            state=end,
            interpolation=of_ends(state, end, first, last, size),
            solver_state=_StabilisedState(steps, after),
            num_field_evaluations=1 + stages,
        )


class _StabilisedState(eqx.Module):
    steps: Any
    stiffness: Stiffness
