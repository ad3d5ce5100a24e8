"""The sign flow exactly: switches of sign located, and what slides held there."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from .._types import Scalar
from ..flows import AbstractFlow, State
from ..kinks import GateState, live_gates
from ..nets import AbstractNet
from ._adaptive import Adaptive
from ._base import AbstractSolver, Step
from ._sign_limits import LOOKS, ROUNDING, Limits, first_switch, switched
from ._sign_mode import FrozenRisk, Mode, SignField, settled


# A dense Hessian says how fast parameters slide: of networks of up to so many.
_LARGEST = 2000
# So that no two switches hide between looks, a step moves θ by no more than this part of
# its root mean square.
_LONGEST = 0.02


class SignSwitches(AbstractSolver):
    r"""Steps up to the next switch of the sign flow, each of them located to rounding.

    While signs and gates stand, θ moves along a straight line. Where a derivative $g_i$
    reaches 0 and would be driven back if its sign switched, $\theta_i$ slides, and so do
    with it all whose derivatives are proportional to it: at a common speed μ, from 1 to -1
    times their signs, that keeps $g_i = 0$, $E^\top H E \mu = -E^\top H u$ with E the signs
    of each group and u what does not slide, up to the moment when some |μ| reaches 1
    (Filippov's solution, and the mean of the steps of sign descent). A pre-activation that
    passes 0 switches its gate; if the signs behind that drive it back, the neuron would
    slide along its kink: the solve ends with `RESULTS.no_regime`.

    Not differentiable: the times of switches are not followed.

    Args:
        rtol: relative tolerance per step.
        atol: absolute tolerance per step, for the root mean square entry of a matrix.
    """

    steps: Adaptive

    def __init__(self, rtol: float | Scalar = 1e-6, atol: float | Scalar = 1e-12):
        """Choose the tolerances.

        Raises:
            ValueError: unless rtol > 0 and atol ≥ 0 are finite.
        """
        self.steps = Adaptive(dfx.Tsit5(), rtol, atol)

    @property
    def tolerance(self) -> float | Scalar:
        """`rtol`, relative, per step."""
        return self.steps.rtol

    def check(self, flow: AbstractFlow, net: AbstractNet) -> None:
        """Raise unless the flow is one of signs, of a network that it can take.

        Raises:
            ValueError: on another flow, on a network that was wrapped as it is, or on a
                large one.
        """
        if flow.jumps_at != "signs":
            raise ValueError(
                f"solver=SignSwitches(): a {type(flow).__name__} does not switch signs; "
                "use gf.solvers.ExactKinks()."
            )
        if not net.knows_kinks:
            raise ValueError(
                "SignSwitches does not see where a wrapped model bends; build the network "
                "with gf.nets.MLP or gf.nets.sequential."
            )
        size = sum(leaf.size for leaf in jax.tree.leaves(net))
        if size > _LARGEST:
            raise ValueError(
                f"SignSwitches takes up to {_LARGEST} parameters, for it solves with a "
                f"dense Hessian; this network has {size}. Use sign descent: "
                "gf.descend(flow, net, rate, steps)."
            )

    def init(
        self, flow: AbstractFlow, state: State, dt0: Scalar | None
    ) -> tuple["_SwitchState", Scalar]:
        """The signs and gates at the start."""
        net = flow.point(state.position)
        on = live_gates(flow, state.position).on
        frozen = FrozenRisk(flow, on, net)
        gradient = frozen.gradient(frozen.start)
        largest = jnp.max(jnp.abs(gradient))
        alone = Mode(jnp.ones_like(gradient), jnp.arange(len(gradient)), on)
        controller = self.steps.start_controller(flow, state, jnp.ones_like(largest))
        begun = _SwitchState(controller, alone, largest)
        mode = settled(frozen, frozen.start, alone, begun.rounding)
        if dt0 is None:
            dt0 = _longest(net)
        return eqx.tree_at(lambda s: s.mode, begun, mode), dt0

    def with_scan_kind(self, kind: str) -> "SignSwitches":
        """The same solver."""
        return self

    def follows_kinks(self, net: AbstractNet) -> bool:
        """No: it keeps no log of them."""
        return False

    def gates_of(self, solver_state: Any) -> GateState | None:
        """None."""

    def verifies(self, solver_state: Any) -> bool:
        """No."""
        return False

    def step(
        self, flow: AbstractFlow, state: State, size: Scalar, solver_state: "_SwitchState"
    ) -> Step:
        """A step under fixed signs and gates, cut short where the first switches."""
        before = solver_state
        mode = before.mode
        field = SignField(flow, mode)
        started = self.steps.started(field, state, size, before.controller)
        trial = self.steps.attempt(flow, field, state, size, started)
        limits = Limits(flow, mode, before.rounding)
        least = limits.tolerated(state.position, self.steps.rtol * before.largest)
        fraction = jax.lax.cond(
            trial.accepted,
            lambda: first_switch(limits, trial, least, size),
            lambda: jnp.ones_like(size),
        )
        switches = fraction < 1
        end = jax.tree.map(
            lambda cut, whole: jnp.where(switches, cut, whole),
            trial.at(fraction * size),
            trial.state,
        )
        # The first in order, so that switches which follow at once come to an end (Murty).
        which = jnp.argmax(limits.room(end.position) < least)
        after, goes_on = jax.lax.cond(
            switches & trial.accepted,
            lambda: switched(limits, end.position, which),
            lambda: (mode, jnp.asarray(True)),
        )
        goes_on &= SignField(flow, after).is_stable(end.position)
        position = SignField(flow, mode).back(end.position)
        end = eqxi.nondifferentiable(
            State(position, end.dissipated), name="gf.solvers.SignSwitches"
        )
        return Step(
            accepted=trial.accepted,
            finite=trial.finite,
            size=fraction * size,
            next_size=jnp.minimum(
                jnp.where(switches, size, trial.next_size), _longest(position)
            ),
            state=end,
            interpolation=trial.interpolation,
            solver_state=_SwitchState(
                trial.solver_state.controller,
                jax.tree.map(
                    lambda new, old: jnp.where(trial.accepted, new, old), after, mode
                ),
                before.largest,
            ),
            num_field_evaluations=trial.num_field_evaluations + 1 + LOOKS,
            verified=goes_on,
        )


class _SwitchState(eqx.Module):
    controller: Any
    mode: Mode
    # The largest derivative at the start
    largest: Scalar

    @property
    def rounding(self) -> Scalar:
        """Derivatives that count as 0."""
        return ROUNDING * jnp.finfo(self.largest.dtype).eps * self.largest


def _longest(net: AbstractNet) -> Scalar:
    row, _ = ravel_pytree(net)
    return _LONGEST * jnp.sqrt(jnp.mean(row**2))
