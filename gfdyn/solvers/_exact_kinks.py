"""The exact flow: kinks corrected for all at once, or located one by one."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._by_layer import per_layer
from .._numbers import check_count
from .._types import Scalar, Sites
from ..flows import AbstractFlow, State
from ..kinks import (
    GateState,
    any_of,
    both,
    constant,
    either,
    evaluate_field,
    kink_sizes,
    live_gates,
    near_kinks,
    nowhere,
    places_among,
    shared_kinks,
    slots_of,
    without,
    zeros_at,
)
from ..nets import AbstractNet, norm
from ._adaptive import Adaptive
from ._at_kinks import at_kinks
from ._base import AbstractSolver, GateChanges, Step
from ._kink_state import KinkState, after_attempt, is_small, is_stacked, num_sites
from ._located import to_first_event
from ._runge_kutta import FixedGates
from ._smooth_step import after_step, before_step, smooth_step
from ._stabilised import Stabilised
from ._stiffness import not_stiff
from ._trial_step import Allowance, TrialStep, kinked_path


# A gate whose jump over the step is below this part of the tolerance on ‖θ‖ stays live;
# one that slides, or that was decided on at its kink, goes free below this part of that.
_RELEVANCE = 0.03
_LEAVING = 0.1
# The part of the tolerance that sliding gates may leave as error.
_SLIDING_FRACTION = 3e-3
# What matters is judged over the longest of the last steps, each forgotten by this factor:
# a step cut short by an event must not set gates free that the next one needs.
_MEMORY = 0.9


class ExactKinks(AbstractSolver):
    r"""The exact gradient flow of a ReLU network, through crossings and sliding modes.

    Inside a step the gates that matter are fixed, so that the field is smooth and the
    method keeps its order. Then the kinks that the step has met are dealt with:

    * all at once, where the estimated error of that allows it: the end of the step is
      moved by what the flips add up to. One step may cross hundreds of kinks. This is
      second order in the step, and its derivative first order.
    * or one by one: the step is cut at the first of them. The velocities of $z$ on its two
      sides decide: the gate flips, or, where both lead back, its neuron slides along the
      kink (Filippov) until the value of the gate leaves the range between its slope and 1,
      or the kink repels, as the signal that arrives there has changed its sign.

    Sites whose kinks coincide have one gate: those of samples on one line through the
    origin, in the first layer; and in an `MLP`, those of samples that pass a layer through
    one and the same unit alone, above it, as long as they do.

    A gate whose jump is far below the tolerance follows the sign of $z$. Linear networks
    have no kinks: there it is `Stabilised`, with Tsit5, or `Adaptive`, with other methods.

    Derivatives through it, forward and reverse, are those of the flow, with its jump at
    each crossing and capture (the saltation matrix).

    Where the velocity is not unique (a start exactly on a kink that repels from both
    sides), the gate is off, as ReLU's derivative at 0 has it. A unit all of whose weights
    on what reaches it come to 0 at once stays there, as long as gates in range can hold it.

    Args:
        method: an explicit diffrax pair.
        rtol: relative tolerance per step, as in `Adaptive`.
        atol: absolute tolerance per step, as in `Adaptive`.
        verified: whether to go on, in networks of up to 4096 gates, only in regimes that
            are verified to be where gradient descent goes on at a kink (see
            `gfdyn.kinks`), rather than to go by the sides of each kink alone, which some
            deep networks deceive. Points at which the flow is not unique are counted in
            `certificate.choices`. By default all flows are but an `EscapeFlow` of several
            layers of kinks, whose directions come to rest where many kinks are all but
            parallel.
        places: how many sites at kinks are then looked at together; 64 in networks of up to
            1024 gates, 128 in larger ones if None. Where more are at their kinks,
            `gf.solve` goes on with twice as many, which compiles again; under
            `jax.jit` and `jax.vmap` it ends in `RESULTS.crowded_kinks`.
    """

    steps: Adaptive
    loop_kind: str
    verified: bool | None = eqx.field(static=True)
    places: int | None = eqx.field(static=True)

    def __init__(
        self,
        rtol: float | Scalar = 1e-6,
        atol: float | Scalar = 1e-12,
        method: dfx.AbstractSolver | None = None,
        verified: bool | None = None,
        places: int | None = None,
    ):
        """Choose the tolerances and the method.

        Raises:
            TypeError: if `method` is not a diffrax solver.
            ValueError: as `Adaptive`, on a method that is not explicit, and on less than
                one place.
        """
        if places is not None:
            remedy = "must be 1 or more sites, or None to go by the network."
            check_count("places", places, 1, remedy)
        self.steps = Adaptive(method, rtol, atol)
        if not isinstance(self.steps.method, dfx.AbstractERK):
            raise ValueError(
                f"method={type(self.steps.method).__name__}() is not an explicit "
                "Runge-Kutta pair; use diffrax.Tsit5(), Dopri5() or Dopri8()."
            )
        self.loop_kind = "checkpointed"
        self.verified = verified
        self.places = places

    @property
    def tolerance(self) -> float | Scalar:
        """`rtol`, relative, per step."""
        return self.steps.rtol

    def check(self, flow: AbstractFlow, net: AbstractNet) -> None:
        """Raise unless the network tells where it bends, and the flow may slide there.

        Raises:
            ValueError: on a network that was wrapped as it is, and on other flows.
        """
        if flow.jumps_at != "kinks":
            signs = flow.jumps_at == "signs"
            raise ValueError(
                f"solver=ExactKinks(): a {type(flow).__name__} "
                + ("jumps elsewhere too" if signs else "slides along no kink")
                + f"; use gf.solvers.{'SignSwitches' if signs else 'Adaptive'}()."
            )
        if not net.knows_kinks:
            reason = getattr(net, "reason", None)
            because = f" ({reason})" if reason else ""
            raise ValueError(
                f"ExactKinks does not see where a wrapped model bends{because}; use "
                "gf.solvers.Adaptive(), exact where it is smooth, or build the network "
                "with gf.nets.MLP or gf.nets.sequential."
            )

    def init(
        self, flow: AbstractFlow, state: State, dt0: Scalar | None
    ) -> tuple[Any, Scalar]:
        """The gates as they are at the start, none frozen."""
        if not flow.point(state.position).has_kinks:
            return self._where_smooth.init(flow, state, dt0)
        gates = live_gates(flow, state.position)
        x = flow.problem.data.x
        shared = shared_kinks(flow.point(state.position), x)
        nothing = zeros_at(x, gates)
        exactly = jnp.zeros((), x.dtype)
        # Nothing slides yet.
        none = nowhere(gates)
        first = evaluate_field(
            flow, state.position, gates, none, nothing, exactly, solving=False
        )
        if dt0 is None:
            dt0 = self.steps.first_size(flow, state, first.velocity)
        dt0 = jax.lax.stop_gradient(dt0)
        controller = self.steps.start_controller(flow, state, dt0)
        tsit5 = isinstance(self.steps.method, dfx.Tsit5)
        start = KinkState(
            controller,
            gates,
            shared,
            evaluation=first,
            nu_rate=nothing,
            horizon=dt0,
            rejected_at_kinks=jnp.asarray(False),
            flipped_this_instant=none,
            kept_live=none,
            on_wrong_side=none,
            left_at=nothing if self._verifies(flow, gates) else (),
            stiffness=not_stiff(state.position, dt0) if tsit5 else None,
        )
        return start, dt0

    @property
    def _where_smooth(self) -> Adaptive | Stabilised:
        """The solver of networks without kinks."""
        if not isinstance(self.steps.method, dfx.Tsit5):
            return self.steps
        return Stabilised(self.steps.rtol, self.steps.atol).with_scan_kind(self.loop_kind)

    def follows_kinks(self, net: AbstractNet) -> bool:
        """Whether the network has kinks."""
        return net.has_kinks

    def gates_of(self, solver_state: Any) -> GateState | None:
        """The gates from where the next step starts; None for a linear network."""
        return solver_state.gates if isinstance(solver_state, KinkState) else None

    def verifies(self, solver_state: Any) -> bool:
        """Where its state tells how far descent has left each site from its kink."""
        return bool(solver_state.left_at)

    def with_more_places(self, solver_state: Any) -> "ExactKinks | None":
        """The same solver with twice as many places for sites at kinks; None if all
        sites have one."""
        sites = num_sites(solver_state.gates)
        places = places_among(sites, self.places)
        if places >= sites:
            return None
        steps = self.steps
        more = ExactKinks(
            steps.rtol, steps.atol, steps.method, self.verified, places=2 * places
        )
        return more.with_scan_kind(self.loop_kind)

    def with_scan_kind(self, kind: str) -> "ExactKinks":
        """The same solver, differentiable in the mode that goes with this kind of loop."""
        return eqx.tree_at(
            lambda s: (s.loop_kind, s.steps),
            self,
            (kind, self.steps.with_scan_kind(kind)),
        )

    def step(
        self, flow: AbstractFlow, state: State, size: Scalar, solver_state: Any
    ) -> Step:
        """A step under fixed gates, and what the kinks that it meets make of it."""
        net = flow.point(state.position)
        if not net.has_kinks:
            return self._where_smooth.step(flow, state, size, solver_state)
        before: KinkState = solver_state
        horizon = jnp.maximum(size, _MEMORY * before.horizon)
        jumps = self._jumps(flow, state.position, horizon, before)
        gates = self._freeze(flow, state.position, horizon, jumps, before)
        held = before.shared.representatives(gates.sliding)
        small = is_small(gates)
        verifying = self._verifies(flow, gates)
        places = places_among(num_sites(gates), self.places)

        def around(position: Any) -> State:
            nu, exactly = before.evaluation.nu, jnp.zeros_like(size)
            near = evaluate_field(flow, position, gates, held, nu, exactly, solving=False)
            return near.velocity

        stiffness, size, cost = before_step(before.stiffness, around, state.position, size)
        allowance = self._allowance(flow, net, size, small, before)
        longest = self.steps.longest_coast(flow, state, before.evaluation.velocity, around)
        coasting = (size <= longest) & ~any_of(gates.sliding)
        field = FixedGates(
            flow,
            gates,
            held,
            before.nu_rate,
            small,
            coasting,
            allowance.gradient,
            slots_of(gates.sliding, places) if verifying else None,
        )
        smooth, error_order, radius = smooth_step(
            self.steps, field, state, before.evaluation, size, stiffness, self.loop_kind
        )
        verdict = self.steps.judge(
            flow,
            smooth.error,
            state,
            smooth.end,
            size,
            before.controller,
            error_order=error_order,
        )
        trial = TrialStep(
            flow,
            gates,
            held,
            before.shared,
            state,
            before.evaluation,
            smooth,
            size,
            allowance,
            jumps,
            _LEAVING * self._threshold(net) / horizon,
            self.steps.rtol * norm(constant(net)),
            before.on_wrong_side,
            before.left_at,
            places,
        )
        if verifying:
            outcome = to_first_event(trial, verdict.accepted)
        else:
            outcome = at_kinks(
                trial,
                verdict.accepted,
                self.steps,
                before.rejected_at_kinks,
                small,
                self.loop_kind,
            )
        next_size = jnp.minimum(verdict.next_size, size * outcome.factor)
        next_size = jnp.where(coasting, jnp.minimum(next_size, longest), next_size)
        accepted = verdict.accepted & outcome.accepted
        stiffness, next_size = after_step(
            stiffness, radius, accepted, outcome.size, next_size
        )
        return Step(
            accepted=accepted,
            finite=verdict.finite,
            converged=outcome.evaluation.converged,
            verified=outcome.verified,
            fits=outcome.fits | ~verdict.accepted,
            size=jnp.where(accepted, outcome.size, size),
            next_size=jax.lax.stop_gradient(next_size),
            state=outcome.state,
            interpolation=kinked_path(smooth, outcome),
            solver_state=after_attempt(
                before, gates, verdict, outcome, size, horizon, stiffness
            ),
            num_field_evaluations=cost
            + jnp.round(smooth.cost + outcome.cost).astype(jnp.int32),
            changes=GateChanges(
                before.gates.sliding,
                gates,
                outcome.gates,
                outcome.time_left,
                outcome.others,
            ),
        )

    def _verifies(self, flow: AbstractFlow, gates: GateState) -> bool:
        """Whether it goes on in verified regimes alone."""
        by_default = not (flow.comes_to_rest and is_stacked(gates))
        wanted = by_default if self.verified is None else self.verified
        return wanted and is_small(gates)

    def _jumps(
        self, flow: AbstractFlow, position: Any, horizon: Scalar, before: "KinkState"
    ) -> Sites:
        """How far the velocity jumps where each gate flips."""
        flow, position, here = constant((flow, position, before.evaluation))
        reach = horizon * norm(flow.point(here.velocity.position))
        sizes = kink_sizes(
            flow,
            position,
            here.z,
            here.signal,
            here.nu,
            before.gates,
            reach,
            at_rest=self._verifies(flow, before.gates),
        )
        gain = flow.gain(here.gradient)
        return constant(per_layer(lambda s: gain * s, sizes))

    def _threshold(self, net: AbstractNet) -> Scalar:
        """How far a gate must move θ to matter."""
        return _RELEVANCE * self.steps.rtol * norm(constant(net)) + self.steps.atol

    def _freeze(
        self,
        flow: AbstractFlow,
        position: Any,
        horizon: Scalar,
        jumps: Sites,
        before: "KinkState",
    ) -> GateState:
        """The gates of a step: those that matter within the horizon frozen, others live.

        Those that slide stay so down to a lower limit; in verified regimes also those that
        were frozen, at their kinks, as what was verified was the regime with all of these.
        """
        net, gates = flow.point(position), before.gates
        threshold = self._threshold(net)
        stays = gates.sliding
        if self._verifies(flow, gates):
            z = before.evaluation.z
            at_kinks = near_kinks(*constant((flow, position, gates, z)))
            stays = either(stays, both(gates.frozen, at_kinks))

        def matters(jump: Array, stays: Array, has_kink: Array) -> Array:
            limit = jnp.where(stays, _LEAVING * threshold, threshold)
            return (horizon * jump > limit) & has_kink

        has_kink = tuple(jnp.asarray(not sigma.is_linear) for sigma in net.activations)
        frozen = per_layer(matters, jumps, stays, has_kink)
        frozen = before.shared.with_sharers(frozen)
        frozen = without(frozen, before.shared.with_sharers(before.kept_live))
        sliding = both(gates.sliding, frozen)
        on = per_layer(
            lambda was, on, z: jnp.where(was, on, z > 0),
            gates.frozen,
            gates.on,
            before.evaluation.z,
        )
        return GateState(on, sliding, frozen)

    def _allowance(
        self,
        flow: AbstractFlow,
        net: AbstractNet,
        size: Scalar,
        small: bool,
        before: "KinkState",
    ) -> Allowance:
        """None for the multipliers in small networks, where they decide on releases to
        rounding."""
        leeway = jnp.asarray(_SLIDING_FRACTION * self.steps.rtol, size.dtype)
        if small:
            return Allowance(jnp.zeros_like(size), jnp.zeros_like(size), leeway)
        position = self._sliding_error(constant(net))
        moves = size * flow.gain(constant(before.evaluation.gradient))
        return Allowance(position / moves, position, leeway)

    def _sliding_error(self, net: AbstractNet) -> Scalar:
        """How far θ may be from where the sliding gates want it."""
        return _SLIDING_FRACTION * self.steps.rtol * norm(net)
