"""The exact flow: kinks located, crossed or slid along, event by event."""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..flows import AbstractFlow, State
from ._adaptive import Adaptive
from ._base import AbstractSolver, Events, Scalar, Step
from ._gates import (
    GateState,
    Mask,
    Sites,
    any_of,
    count,
    kinked,
    live_gates,
    masked,
    preactivations,
    shared_kinks,
    smallest,
    with_sharers,
)
from ._sliding import back_to_kinks, motion


# Parts of a step at whose ends events are looked for, and bisections of a part.
_PARTS = 4
_BISECTIONS = 46
# What counts as rounding, in units of the precision: of z, relative to the largest of its
# layer; and how far beyond its range a gate may stand, as a power of the precision.
_Z_ROUNDING = 500.0
_OPENNESS_POWER = 2 / 3


class ExactKinks(AbstractSolver):
    """The exact gradient flow of a ReLU network, through crossings and sliding modes.

    Inside a step every gate is fixed, so that the field is smooth and the method keeps its
    order. A step ends at the first kink that is reached; the velocities of z on its two
    sides then decide: the gate flips, or, where both lead back, its neuron slides along the
    kink (Filippov) until the value of the gate leaves the range between its slope and 1.

    One step for each event: for small networks, at any tolerance. Derivatives through it,
    forward and reverse, are those of the flow, with its jump at each crossing and capture.

    Where the velocity is not unique (a start exactly on a kink that repels from both
    sides), the gate is off, as ReLU's derivative at 0 has it.

    Args:
        method: an explicit diffrax pair.
        rtol: relative tolerance per step, as in `Adaptive`.
        atol: absolute tolerance per step, as in `Adaptive`.
    """

    steps: Adaptive

    def __init__(
        self,
        rtol: float | Scalar = 1e-6,
        atol: float | Scalar = 1e-12,
        method: dfx.AbstractSolver | None = None,
    ):
        """Choose the tolerances and the method.

        Raises:
            TypeError: if `method` is not a diffrax solver.
            ValueError: as `Adaptive`.
        """
        self.steps = Adaptive(method, rtol, atol)

    def init(
        self, flow: AbstractFlow, state: State, dt0: Scalar | None
    ) -> tuple["_KinkState", Scalar]:
        """The gates as they are at the start."""
        smooth, size = self.steps.init(flow, state, dt0)
        return _KinkState(smooth, live_gates(flow, state.position)), size

    def with_scan_kind(self, kind: str) -> "ExactKinks":
        """The same solver, differentiable in the mode that goes with this kind of loop."""
        return eqx.tree_at(lambda s: s.steps, self, self.steps.with_scan_kind(kind))

    def step(
        self, flow: AbstractFlow, state: State, size: Scalar, solver_state: "_KinkState"
    ) -> Step:
        """A step under fixed gates, cut at the first event, and the event."""
        gates = solver_state.gates
        field = _FixedGates(flow, gates)
        # The field may have jumped since the last step, whose end the method remembers.
        smooth = self.steps.attempt(
            flow, field, state, size, solver_state.smooth, made_jump=True
        )
        span = _Span(flow, gates, smooth, state)
        # What is decided has no derivative; what depends on when it happens has.
        decide = _constant(span)
        reached = decide.first_release(decide.first_crossing(_constant(size)))
        whole = reached == size
        crossed = decide.furthest(decide.smooth.at(reached).position)
        reached = jnp.where(whole, size, span.with_derivative(reached, crossed))
        inside = smooth.at(reached)
        end = jax.tree.map(lambda a, b: jnp.where(whole, a, b), smooth.state, inside)
        position = back_to_kinks(flow, flow.retract(end.position), gates)
        after, events = decide.resolve(_constant(end.position), _constant(position))
        happened = events.crossings + events.slides + events.releases > 0
        accepted = smooth.accepted
        kept = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), after, gates)
        return Step(
            accepted=accepted,
            finite=smooth.finite,
            size=jnp.where(accepted, reached, size),
            next_size=jnp.where(happened & accepted, size, smooth.next_size),
            events=events,
            state=State(position, end.dissipated),
            interpolation=smooth.interpolation,
            solver_state=_KinkState(smooth.solver_state, kept),
            num_field_evaluations=smooth.num_field_evaluations + span.evaluations(events),
        )


def _constant(tree: Any) -> Any:
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.tree.map(jax.lax.stop_gradient, arrays), rest)


class _KinkState(eqx.Module):
    smooth: Any
    gates: GateState


class _FixedGates(eqx.Module):
    """The field under fixed gates, along the kinks that slide."""

    flow: AbstractFlow
    gates: GateState

    def __call__(self, position: Any) -> State:
        return motion(self.flow, position, self.gates).velocity


class _Span(eqx.Module):
    """A step under fixed gates, and where in it they stop being right."""

    flow: AbstractFlow
    gates: GateState
    smooth: Step
    start: State

    @property
    def shared(self) -> Array:
        """Which samples share their kinks in the first layer."""
        return shared_kinks(self.flow.problem.data.x)

    def margins(self, position: Any) -> Sites:
        """How far each pre-activation is on its gate's side of the kink."""
        z = preactivations(self.flow, position, self.gates)
        return tuple(
            jnp.where(on, zl, -zl) for on, zl in zip(self.gates.on, z, strict=True)
        )

    def overshoot(self, position: Any) -> tuple[Mask, Sites]:
        """The sites that have crossed there, and by how much (negative).

        A site that starts beyond its kink by a rounding error crosses if it goes on.
        """
        before, now = self.margins(self.start.position), self.margins(position)
        beyond = tuple(
            m1
            - jnp.minimum(m0, -_Z_ROUNDING * jnp.finfo(m0.dtype).eps * jnp.max(jnp.abs(m0)))
            for m0, m1 in zip(before, now, strict=True)
        )
        layers = kinked(self.flow.point(position))
        crossed = tuple(
            (b < 0) & ~s & k
            for b, s, k in zip(beyond, self.gates.sliding, layers, strict=True)
        )
        return crossed, beyond

    def furthest(self, position: Any) -> Mask:
        """Of the crossed sites the one furthest beyond its kink, and all that share it.

        The others follow at once in steps of next to no length, each decided under the
        gates that those before it have set.
        """
        crossed, beyond = self.overshoot(position)
        lowest = smallest(crossed, beyond)
        first = tuple(c & (b <= lowest) for c, b in zip(crossed, beyond, strict=True))
        return with_sharers(first, self.shared)

    def first_crossing(self, size: Scalar) -> Scalar:
        """The time of the first crossing, `size` if there is none."""

        def bad(time: Scalar) -> Bool[Array, ""]:
            return any_of(self.overshoot(self.smooth.at(time).position)[0])

        return _first_time(bad, size)

    def first_release(self, size: Scalar) -> Scalar:
        """The time before `size` at which a sliding gate lets go, `size` if none does."""

        def bad(time: Scalar) -> Bool[Array, ""]:
            return any_of(self.released(self.smooth.at(time).position)[0])

        return jax.lax.cond(
            any_of(self.gates.sliding), lambda: _first_time(bad, size), lambda: size
        )

    def released(self, position: Any) -> tuple[Mask, Sites]:
        """The sliding sites whose gate has left its range there, and all openness."""
        openness = motion(self.flow, position, self.gates).openness
        margin = jnp.finfo(self.smooth.size.dtype).eps ** _OPENNESS_POWER
        outside = tuple(
            s & ((o < -margin) | (o > 1 + margin))
            for s, o in zip(self.gates.sliding, openness, strict=True)
        )
        return with_sharers(outside, self.shared), openness

    def with_derivative(self, time: Scalar, crossed: Mask) -> Scalar:
        """The same time, as the implicit function of the state that it is at a crossing.

        z(t*) = 0 gives dt* = −dz/z', and with it the derivative of the flow its jump (the
        saltation matrix). At a release the velocity is continuous and nothing jumps.
        """

        def margin(time: Scalar) -> Scalar:
            margins = masked(crossed, self.margins(self.smooth.at(time).position))
            return jnp.sum(jnp.stack([jnp.sum(m) for m in margins]))

        value, rate = jax.jvp(margin, (time,), (jnp.ones_like(time),))
        rate = jax.lax.stop_gradient(jnp.where(rate == 0, 1.0, rate))
        return time - (value - jax.lax.stop_gradient(value)) / rate

    def evaluations(self, events: Events) -> Array:
        """Field evaluations beside the method's own: a fresh start, a look at the range of
        the sliding gates, the bisection of a release, the far side of a crossing."""
        looked = any_of(self.gates.sliding).astype(jnp.int32) * (_PARTS + 1)
        bisected = (events.releases > 0).astype(jnp.int32) * _BISECTIONS
        judged = (events.crossings + events.slides > 0).astype(jnp.int32)
        return 1 + looked + bisected + judged

    def resolve(self, reached: Any, position: Any) -> tuple[GateState, Events]:
        """The gates after the event, and what happened.

        `reached` is where the event was found, `position` the same back on the kinks.
        """
        gates, crossed = self.gates, self.furthest(reached)
        none = tuple(jnp.zeros_like(c) for c in crossed)

        flipped = tuple(o ^ c for o, c in zip(gates.on, crossed, strict=True))

        def classify() -> Mask:
            # This side led to the kink; it attracts if the side beyond leads back.
            beyond = motion(self.flow, position, GateState(flipped, gates.sliding)).z_rate
            back = tuple(
                c & (jnp.where(o, rate, -rate) > 0)
                for c, o, rate in zip(crossed, gates.on, beyond, strict=True)
            )
            return with_sharers(back, self.shared)

        captured = jax.lax.cond(any_of(crossed), classify, lambda: none)
        zeros = tuple(jnp.zeros_like(m) for m in self.margins(position))
        released, openness = jax.lax.cond(
            any_of(gates.sliding), lambda: self.released(reached), lambda: (none, zeros)
        )
        on = tuple(
            (f & ~s) | (r & (v > 0.5))
            for f, s, r, v in zip(flipped, captured, released, openness, strict=True)
        )
        sliding = tuple(
            (s | c) & ~r for s, c, r in zip(gates.sliding, captured, released, strict=True)
        )
        slides = count(captured)
        events = Events(count(crossed) - slides, slides, count(released))
        return GateState(on, sliding), events


def _first_time(bad: Callable[[Scalar], Bool[Array, ""]], size: Scalar) -> Scalar:
    """The first time in (0, size] at which `bad` holds, from above; `size` if none does.

    Looked for at the ends of some parts of the step, then by bisection in the first bad
    one.
    """
    ends = size * jnp.arange(1, _PARTS + 1, dtype=size.dtype) / _PARTS
    is_bad = jax.lax.map(bad, ends)
    part = jnp.argmax(is_bad).astype(size.dtype)
    low, high = size * part / _PARTS, size * (part + 1) / _PARTS

    def halve(_: Array, bounds: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = bounds
        middle = 0.5 * (low + high)
        is_bad = bad(middle)
        return jnp.where(is_bad, low, middle), jnp.where(is_bad, middle, high)

    def bisect() -> Scalar:
        return jax.lax.fori_loop(0, _BISECTIONS, halve, (low, high))[1]

    return jax.lax.cond(jnp.any(is_bad), bisect, lambda: size)
