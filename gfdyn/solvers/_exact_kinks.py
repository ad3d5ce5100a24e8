"""The exact flow: kinks corrected for all at once, or located one by one."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..flows import AbstractFlow, State
from ._adaptive import Adaptive
from ._base import AbstractSolver, Events, Scalar, Step, no_events
from ._gates import (
    GateState,
    Sites,
    any_of,
    count,
    kink_sizes,
    linearise,
    live_gates,
    preactivations,
    without,
)
from ._lines import Lines, lines_of
from ._runge_kutta import FixedGates, explicit_step
from ._settle import settle
from ._sliding import Motion, constant, motion, z_rates
from ._span import Span, rounding_of


# A gate whose jump over the step is below this part of the tolerance on ‖θ‖ stays live,
# and a sliding one below this part of that is let go.
_RELEVANCE = 0.03
_LEAVING = 0.1
# The part of the tolerance that may be spent on the multipliers of sliding gates.
_SLIDING_FRACTION = 1e-3
# Up to so many sliding sites their multipliers are solved for at each stage.
_SOLVED_SITES = 16
_COASTING_FRACTION = 0.1


class ExactKinks(AbstractSolver):
    """The exact gradient flow of a ReLU network, through crossings and sliding modes.
    """

    steps: Adaptive
    loop_kind: str

    def __init__(
        self,
        rtol: float | Scalar = 1e-6,
        atol: float | Scalar = 1e-12,
        method: dfx.AbstractSolver | None = None,
    ):
        """Choose the tolerances and the method.

        Raises:
            TypeError: if `method` is not a diffrax solver.
            ValueError: as `Adaptive`, and on a method that is not explicit.
        """
        self.steps = Adaptive(method, rtol, atol)
        if not isinstance(self.steps.method, dfx.AbstractERK):
            raise ValueError(
                f"method={type(self.steps.method).__name__}() is not an explicit "
                "Runge-Kutta pair; use diffrax.Tsit5(), Dopri5() or Dopri8()."
            )
        self.loop_kind = "checkpointed"

    def init(
        self, flow: AbstractFlow, state: State, dt0: Scalar | None
    ) -> tuple["_KinkState", Scalar]:
        """The gates as they are at the start."""
        gates = live_gates(flow, state.position)
        lines = lines_of(flow.problem.data.x)
        dtype = flow.problem.data.x.dtype
        nothing = tuple(jnp.zeros(o.shape, dtype) for o in gates.on)
        first = motion(flow, state.position, gates, lines, nothing, jnp.zeros((), dtype))
        if dt0 is None:
            dt0 = self.steps.first_size(flow, state, first.velocity)
        dt0 = jax.lax.stop_gradient(dt0)
        controller = self.steps.start_controller(dt0)
        return _KinkState(controller, gates, lines, first, nothing, jnp.asarray(False)), dt0

    def with_scan_kind(self, kind: str) -> "ExactKinks":
        """The same solver, differentiable in the mode that goes with this kind of loop."""
        return eqx.tree_at(lambda s: s.loop_kind, self, kind)

    def step(
        self, flow: AbstractFlow, state: State, size: Scalar, solver_state: "_KinkState"
    ) -> Step:
        """A step under fixed gates, and what the kinks that it meets make of it."""
        before = solver_state
        tolerance = jnp.asarray(_SLIDING_FRACTION * self.steps.rtol, size.dtype)
        gates, jumps = self.freeze(flow, state.position, size, before)
        slides = count(gates.sliding)
        solving = slides <= _SOLVED_SITES
        longest = flow.coasting_time(
            state.position,
            before.first.velocity,
            jnp.asarray(_COASTING_FRACTION * self.steps.rtol, size.dtype),
        )
        coasting = (size <= longest) & (slides == 0)
        tolerance = jnp.where(solving, 0.0, tolerance)
        field = FixedGates(
            flow, gates, before.lines, before.nu_rate, solving, coasting, tolerance
        )
        method: Any = self.steps.method
        leg = explicit_step(method, field, state, before.first, size)
        verdict = self.steps.judge(
            flow, leg.error, state, leg.end, size, before.controller
        )
        span = Span(
            flow, gates, before.lines, state, before.first, leg, size, tolerance, jumps
        )
        last, times = span.beyond()
        met = any_of(tuple(t > 0 for t in times)) | any_of(gates.sliding)

        def smooth() -> _Outcome:
            position = flow.retract(leg.end.position)
            return _Outcome(
                accepted=jnp.asarray(True),
                size=size,
                factor=jnp.full_like(size, jnp.inf),
                state=State(position, leg.end.dissipated),
                gates=gates,
                first=leg.motion,
                events=no_events(),
                evaluations=jnp.asarray(0, jnp.int32),
                last=last, ratio=jnp.zeros_like(size)
            )

        def kinked() -> _Outcome:
            corrected = self.correct(span, last, times)
            localising = (~corrected.accepted) & solving
            return jax.lax.cond(
                localising,
                lambda: self.localise(span, corrected, before.pressed),
                lambda: corrected,
            )

        out = jax.lax.cond(verdict.accepted & met, kinked, smooth)
        accepted = verdict.accepted & out.accepted
        next_size = jnp.minimum(verdict.next_size, size * out.factor)
        next_size = jnp.where(coasting, jnp.minimum(next_size, longest), next_size)
        rates = tuple(
            jnp.where(s1 & s0, (n1 - n0) / size, 0.0)
            for s0, s1, n0, n1 in zip(
                gates.sliding,
                out.gates.sliding,
                before.first.nu,
                out.first.nu,
                strict=True,
            )
        )
        rates = jax.lax.stop_gradient(rates)
        after = _KinkState(
            verdict.controller, out.gates, before.lines, out.first, rates, jnp.asarray(False)
        )
        kept = _KinkState(
            verdict.controller, before.gates, before.lines, before.first, before.nu_rate,
            verdict.accepted
        )
        return Step(
            accepted=accepted,
            finite=verdict.finite,
            size=jnp.where(accepted, out.size, size),
            next_size=jax.lax.stop_gradient(next_size),
            events=out.events,
            state=out.state,
            interpolation=leg.interpolation,
            solver_state=jax.tree.map(
                lambda a, b: jnp.where(accepted, a, b), after, kept
            ),
            num_field_evaluations=leg.evaluations + 1 + out.evaluations,
        )

    def freeze(
        self, flow: AbstractFlow, position: Any, size: Scalar, before: "_KinkState"
    ) -> tuple[GateState, Sites]:
        """The gates of a step of this size: those that matter frozen, the others live."""
        first, gates = constant(before.first), before.gates
        net = flow.point(position)
        reach = size * _norm(flow.point(first.velocity.position))
        sizes = kink_sizes(
            flow, constant(position), first.z, first.signal, gates, reach
        )
        gain = flow.gain(first.gradient)
        sizes = tuple(gain * s for s in sizes)
        squares = jnp.stack([jnp.sum(w**2) for w in jax.tree.leaves(constant(net))])
        threshold = _RELEVANCE * self.steps.rtol * jnp.sqrt(jnp.sum(squares))
        threshold = threshold + self.steps.atol
        matters = tuple(
            (size * s > jnp.where(sliding, _LEAVING * threshold, threshold))
            & (not sigma.is_linear)
            for s, sliding, sigma in zip(
                sizes, gates.sliding, net.activations, strict=True
            )
        )
        frozen = before.lines.with_sharers(matters)
        sliding = tuple(s & f for s, f in zip(gates.sliding, frozen, strict=True))
        on = tuple(
            jnp.where(was, o, z > 0)
            for was, o, z in zip(gates.frozen, gates.on, first.z, strict=True)
        )
        return GateState(on, sliding, frozen), sizes

    def correct(self, span: Span, last: tuple[Array, ...], times: Sites) -> "_Outcome":
        """The end of the step, corrected for all crossings at once."""
        flow, gates, end, leg = span.flow, span.gates, span.leg.end, span.leg
        net = flow.point(end.position)
        slopes = [sigma.slope for sigma in net.activations]
        at = linearise(flow, end.position, gates)
        nowhere = jnp.zeros_like(at.outputs)
        last, times = _without_shadows(span, last, times)
        # What a flip of each gate adds to the gradient, along ∇z
        flips = tuple(
            jnp.where(on, -1.0, 1.0) * (1 - slope) * c
            for on, slope, c in zip(gates.on, slopes, leg.motion.signal, strict=True)
        )
        shift, _ = at.pullback(
            nowhere, tuple(t * f for t, f in zip(times, flips, strict=True))
        )
        jump, _ = at.pullback(
            nowhere, tuple(jnp.where(c, f, 0.0) for c, f in zip(last, flips, strict=True))
        )
        moved = _displaced(flow, end, leg.motion, shift, jump)
        flipped = GateState(
            tuple(o ^ c for o, c in zip(gates.on, last, strict=True)),
            gates.sliding,
            gates.frozen,
        )
        z = preactivations(flow, moved.position, flipped)
        back = tuple(
            c & jnp.where(on, zl > 0, zl < 0)
            for c, on, zl in zip(last, gates.on, z, strict=True)
        )
        back = span.lines.with_sharers(back)
        tried = GateState(
            tuple(o & ~b for o, b in zip(flipped.on, back, strict=True)),
            tuple(s | b for s, b in zip(gates.sliding, back, strict=True)),
            gates.frozen,
        )
        settled = settle(
            flow,
            moved.position,
            tried,
            span.lines,
            leg.motion,
            span.tolerance,
            self.loop_kind,
        )
        after = settled.gates
        released = tuple(
            s & ~t for s, t in zip(gates.sliding, after.sliding, strict=True)
        )
        change = tuple(
            jnp.where(
                r, 0.0, (a.astype(c.dtype) - b.astype(c.dtype)) * (1 - slope) * c + n1 - n0
            )
            for r, a, b, slope, c, n1, n0 in zip(
                released,
                after.on,
                gates.on,
                slopes,
                leg.motion.signal,
                settled.motion.nu,
                leg.motion.nu,
                strict=True,
            )
        )
        added, _ = at.pullback(nowhere, change)
        expected = flow.assemble(
            end.position,
            leg.motion.outputs,
            jax.tree.map(jnp.add, leg.motion.gradient, added),
        )
        rest = jax.tree.map(jnp.subtract, settled.motion.velocity, expected)
        shift, _ = at.pullback(
            nowhere, tuple(t * f for t, f in zip(times, change, strict=True))
        )
        spent = _displaced(flow, end, leg.motion, shift, added).dissipated
        mean = _norm(shift) / jnp.where(_norm(jump) > 0, _norm(jump), 1.0)
        mean = jnp.where(_norm(jump) > 0, jnp.minimum(mean, span.size), 0.0)
        # A flip whose effect is not known yet: of the first gate of a dead sample
        unknown = jnp.stack([
            jnp.max(jnp.where(f == 0, t, 0.0)) for f, t in zip(flips, times, strict=True)
        ])
        mean = jnp.maximum(mean, jnp.max(unknown))
        since = jnp.where(
            any_of(released) | any_of(gates.sliding), span.size, mean
        )
        error = jax.tree.map(lambda r: since * r, rest)
        ratio = self.steps.error_ratio(
            flow, error.position, span.start.position, settled.position
        )
        wrong = self.wrong_sides(span, settled.motion.z, after)
        ratio = jnp.maximum(ratio, wrong)
        ratio = jnp.where(jnp.isfinite(ratio) & settled.in_range, ratio, 1e10)
        import os
        if os.environ.get('NOBATCH'): ratio = ratio*0+1e10*(any_of(last)|any_of(released))*(jnp.asarray(float(os.environ['NOBATCH'])))
        captured = tuple(
            t & ~s for s, t in zip(gates.sliding, after.sliding, strict=True)
        )
        crossings = count(tuple(c & ~s for c, s in zip(last, captured, strict=True)))
        return _Outcome(
            accepted=ratio <= 1,
            size=span.size,
            factor=jnp.clip(0.9 / jnp.sqrt(jnp.maximum(ratio, 1e-10)), 0.2, 5.0),
            state=State(settled.position, spent),
            gates=after,
            first=settled.motion,
            events=Events(crossings, count(captured), count(released)),
            evaluations=3 + settled.evaluations,
            last=last, ratio=ratio
        )

    def wrong_sides(self, span: Span, z: Sites, after: GateState) -> Array:
        """The error, in units of the tolerance, from gates that stand on the wrong side
        after all: their jumps, for as long as they have stood there."""
        squares = []
        for watch, on, before, now, jump in zip(
            without(after.frozen, after.sliding), after.on, span.first.z, z, span.jumps,
            strict=True,
        ):
            wrong = watch & (jnp.where(on, now, -now) < -rounding_of(now))
            total = jnp.abs(now) + jnp.abs(before)
            part = jnp.where(wrong, jnp.abs(now) / jnp.where(total > 0, total, 1.0), 0.0)
            squares.append(jnp.sum((span.size * part * jump) ** 2))
        point = span.flow.point(span.start.position)
        return jnp.sqrt(sum(squares)) / (self.steps.rtol * _norm(point))

    def localise(self, span: Span, corrected: "_Outcome", pressed: Array) -> "_Outcome":
        """The step cut at its first event, if that lies far enough."""
        decide = constant(span)
        crossing = decide.first_crossing()
        reached = decide.first_release(crossing)
        whole = reached == span.size
        flow, gates, lines = span.flow, span.gates, span.lines
        found = decide.leg.at(reached).position
        z = preactivations(flow, found, gates)
        crossed = decide.crossed(decide.margins(z))
        number = count(corrected.last) + corrected.events.releases
        worthwhile = ~whole & (
            (reached >= 0.5 * corrected.factor * span.size) | (number <= 8) | pressed)

        def cut() -> _Outcome:
            time = span.with_derivative(reached, crossed)
            inside = span.leg.at(time)
            nothing = tuple(jnp.zeros_like(m) for m in gates.sliding)
            # Back on the kinks under the old gates, to decide on the new ones
            let_go = jax.lax.cond(
                any_of(gates.sliding), lambda: decide.released(found), lambda: gates
            )
            there = settle(
                flow,
                constant(inside.position),
                let_go,
                lines,
                constant(span.leg.motion),
                span.tolerance,
                self.loop_kind,
                one_by_one=True,
            )
            flipped = tuple(o ^ c for o, c in zip(there.gates.on, crossed, strict=True))

            def captures() -> tuple[Array, ...]:
                # This side led to the kink; it attracts if the side beyond leads back.
                beyond = GateState(flipped, there.gates.sliding, gates.frozen)
                here = motion(
                    flow, there.position, beyond, lines, there.motion.nu, span.tolerance
                )
                rates = z_rates(flow, there.position, beyond, here.velocity)
                back = tuple(
                    c & (jnp.where(o, rate, -rate) > 0)
                    for c, o, rate in zip(crossed, gates.on, rates, strict=True)
                )
                return lines.with_sharers(back)

            captured = jax.lax.cond(any_of(crossed), captures, lambda: nothing)
            tried = constant(
                GateState(
                    tuple(f & ~c for f, c in zip(flipped, captured, strict=True)),
                    tuple(
                        s | c
                        for s, c in zip(there.gates.sliding, captured, strict=True)
                    ),
                    gates.frozen,
                )
            )
            settled = settle(
                flow,
                inside.position,
                tried,
                lines,
                span.leg.motion,
                span.tolerance,
                self.loop_kind,
                one_by_one=True,
            )
            slides = count(captured)
            released = count(
                tuple(
                    s & ~t
                    for s, t in zip(gates.sliding, settled.gates.sliding, strict=True)
                )
            )
            return _Outcome(
                accepted=jnp.asarray(True),
                size=time,
                factor=jnp.full_like(span.size, jnp.inf),
                state=State(settled.position, inside.dissipated),
                gates=settled.gates,
                first=settled.motion,
                events=Events(count(crossed) - slides, slides, released),
                evaluations=corrected.evaluations
                + there.evaluations
                + settled.evaluations
                + 20,
                last=corrected.last, ratio=corrected.ratio
            )

        return jax.lax.cond(worthwhile, cut, lambda: corrected)


class _KinkState(eqx.Module):
    controller: Any
    gates: GateState
    lines: Lines
    # The motion where the next step starts, and how fast its multipliers change
    first: Motion
    nu_rate: Sites
    # Whether the last attempt was rejected for its kinks
    pressed: Array


class _Outcome(eqx.Module):
    """What became of a step at its kinks."""

    accepted: Bool[Array, ""]
    size: Scalar
    # The next size, relative to this one, that kinks allow
    factor: Scalar
    state: State
    gates: GateState
    first: Motion
    events: Events
    evaluations: Int[Array, ""]
    last: Any = None
    ratio: Any = None


def _without_shadows(
    span: Span, last: tuple[Array, ...], times: Sites
) -> tuple[tuple[Array, ...], Sites]:
    """The crossings but for those of a sample that dies on the way: where the last unit of
    a layer lets it go, z of all units above it would change sign, but stays at 0."""
    flipped = GateState(
        tuple(o ^ c for o, c in zip(span.gates.on, last, strict=True)),
        span.gates.sliding,
        span.gates.frozen,
    )
    z = preactivations(span.flow, span.leg.end.position, flipped)
    shadows = tuple(c & (jnp.abs(zl) <= rounding_of(zl)) for c, zl in zip(last, z, strict=True))
    kept = tuple(c & ~s for c, s in zip(last, shadows, strict=True))
    return kept, tuple(jnp.where(s, 0.0, t) for s, t in zip(shadows, times, strict=True))


def _displaced(
    flow: AbstractFlow, end: State, at_end: Motion, shift: Any, jump: Any
) -> State:
    """The end of a step moved by ∫ of what flips add to the velocity.

    The mean of the derivatives of the velocity in the gradient before and after the flips:
    exact for the dissipated energy, which is quadratic in it.
    """

    def assembled(gradient: Any) -> State:
        return flow.assemble(end.position, at_end.outputs, gradient)

    after = jax.tree.map(jnp.add, at_end.gradient, jump)
    _, before = jax.jvp(assembled, (at_end.gradient,), (shift,))
    _, beyond = jax.jvp(assembled, (after,), (shift,))
    return jax.tree.map(lambda y, a, b: y + 0.5 * (a + b), end, before, beyond)


def _norm(tree: Any) -> Array:
    squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(jnp.maximum(sum(squares), jnp.finfo(squares[0].dtype).tiny))
