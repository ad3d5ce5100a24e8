"""The end of a step corrected for all crossings in it at once."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._numerics import nonzero
from .._types import Mask, Scalar, Sites
from ..flows import AbstractFlow, State
from ..kinks import (
    GateState,
    Linearisation,
    Motion,
    any_of,
    back_to_kinks,
    both,
    constant,
    drift,
    either,
    flipped,
    flips,
    linearise,
    masked,
    no_alternative,
    nowhere,
    preactivations,
    rounding_of,
    slack,
    standing,
    values_of,
    without,
)
from ..nets import AbstractNet, norm, per_layer
from ._adaptive import Adaptive
from ._settle import Arrival, Settled
from ._span import CREEP, Outcome, Span


# The part of the tolerance that is for errors made at kinks.
_SHARE = 0.5
# What the size of the next step is held below, relative to what the error allows, and how
# fast it may change.
_SAFETY = 0.7
_SMALLEST, _LARGEST = 0.2, 1.3
# A gate may have been caught if its own flip drives z back by this part of the way.
_PUSH = 0.5


class Correction(eqx.Module):
    r"""The end of a step, moved by what the gates that flip on the way add to it.

    The flip of gate $a$ changes the gradient by $\pm c_a \nabla z_a$, so that one pull-back
    of $\pm\,(t - t_a)\,c_a$ gives the displacement for all of them. Where it leads back
    over the kink, the kink attracts from both sides: the gate is captured and slides.

    Second order in the step. The error is estimated by what the velocity after it differs
    from the velocity before it with all jumps added, times how long it has done so.
    """

    span: Span
    # The sites beyond their kinks at the end, and for how long each has been there
    last: Mask
    times: Sites
    # The net at the end, and what the flips add to the gradient there, along ∇z
    at: Linearisation
    turned: Sites
    arrival: Arrival

    def outcome(self, settled: Settled, tolerances: Adaptive) -> Outcome:
        """What became of the step, settled at the end that was moved."""
        span, last, times = self.span, self.last, self.times
        flow, gates, end, leg = span.flow, span.gates, span.leg.end, span.leg
        net = flow.point(end.position)
        after, motion = settled.gates, settled.motion
        released = without(gates.sliding, after.sliding)

        # The gradient expected there: with the jumps, and the multipliers as they are now.
        change = per_layer(
            lambda let_go, old, new, turn, nu0, nu1: jnp.where(
                let_go, 0.0, jnp.where(old ^ new, turn, 0.0) + nu1 - nu0
            ),
            released,
            gates.on,
            after.on,
            self.turned,
            leg.motion.nu,
            motion.nu,
        )
        jump, _ = self.at.pullback_of_sites(change)
        gradient = jax.tree.map(jnp.add, leg.motion.gradient, jump)
        expected = flow.assemble(end.position, leg.motion.outputs, gradient)
        rest = jax.tree.map(jnp.subtract, motion.velocity, expected)
        so_far, _ = self.at.pullback_of_sites(per_layer(jnp.multiply, times, change))
        spent = _displaced(flow, end, leg.motion, so_far, jump)

        mean = _mean_time(last, times, span.jumps)
        since = _time_wrong(span, mean, self.turned, times, released)
        ratio = since * tolerances.error_ratio(
            flow, rest.position, span.start.position, settled.position
        )
        # Sites beside sliding ones have been taken back along with these.
        off = per_layer(drift, leg.motion.z, gates.sliding)
        wrong = _wrong_sides(motion.z, after, span.allowance.leeway, off)

        # The rest grows from 0 over that time: half of it has been missed.
        position = jax.tree.map(
            lambda y, r: y + 0.5 * mean * r, settled.position, rest.position
        )
        allowed_error = tolerances.rtol * norm(constant(net))
        back = _put_back(
            span,
            flow.retract(position),
            any_of(last),
            after,
            wrong,
            motion.z,
            off,
            _SHARE * allowed_error,
        )
        ratio = jnp.maximum(ratio, back.error / allowed_error) / _SHARE
        ratio = jnp.where(jnp.isfinite(ratio) & settled.in_range, ratio, 1e10)
        allowed = _SAFETY / jnp.sqrt(jnp.maximum(ratio, 1e-10))
        return Outcome(
            accepted=ratio <= 1,
            size=span.size,
            factor=jnp.clip(allowed, _SMALLEST, _LARGEST),
            state=State(back.position, spent.dissipated),
            gates=after,
            lines=settled.lines,
            motion=eqx.tree_at(lambda m: m.z, motion, back.z),
            since=constant(times),
            mean_since=mean,
            crossed=nowhere(after),
            stranded=back.stranded,
            # The linearisation, three ways back through it, a look at z
            cost=settled.cost + 3,
            others=no_alternative(after),
        )


def correction_of(span: Span, last: Mask, times: Sites) -> Correction:
    """The correction for the sites beyond their kinks at the end of a step, where each has
    been for a time."""
    flow, gates, end, leg = span.flow, span.gates, span.leg.end, span.leg
    net = flow.point(end.position)
    at = linearise(net, flow.problem.data.x, gates)
    last, times = _without_shadows(span, last, times)
    turned = flips(net, gates, leg.motion.signal)
    shift, _ = at.pullback_of_sites(per_layer(jnp.multiply, times, turned))
    moved = _displaced(flow, end, leg.motion, shift)
    arrival = Arrival(
        moved,
        span.size,
        flipped(gates, last),
        last,
        catchable=both(last, _holding(span, turned, times)),
        whole=jnp.asarray(True),
    )
    return Correction(span, last, times, at, turned, arrival)


def _holding(span: Span, turned: Sites, times: Sites) -> Mask:
    """The sites that their own flip drives back, by a good part of how far they are beyond
    their kinks; others return because of all flips together, and do not slide."""
    net, z = constant((span.flow.point(span.leg.end.position), span.leg.motion.z))
    x = span.flow.problem.data.x
    norms = net.gradient_norms(x, values_of(net, standing(span.gates, z), x.dtype))

    def holds(
        on: Array, turn: Array, time: Array, jump: Array, n: Array, z: Array
    ) -> Array:
        attracts = jnp.where(on, -turn, turn) >= 0
        return attracts & (time * jump * n >= _PUSH * jnp.abs(z))

    return per_layer(holds, span.gates.on, turned, times, span.jumps, norms, z)


def _without_shadows(span: Span, last: Mask, times: Sites) -> tuple[Mask, Sites]:
    """The crossings but for those of a sample that dies on the way: where the last unit of
    a layer lets it go, z of all units above it would change sign, but stays at 0."""
    beyond = flipped(span.gates, last)
    z = preactivations(span.flow, span.leg.end.position, beyond)
    shadows = per_layer(lambda c, zl: c & (jnp.abs(zl) <= rounding_of(zl)), last, z)
    lit = per_layer(jnp.logical_not, shadows)
    return without(last, shadows), masked(lit, times)


def _displaced(
    flow: AbstractFlow, end: State, at_end: Motion, shift: Any, jump: Any = None
) -> State:
    """The end of a step moved by the time integral of an addition to the gradient.

    If the addition at the end is given, with the mean of the derivatives before and after
    it: exact for the dissipated energy, which is quadratic in the gradient.
    """

    def moved(gradient: AbstractNet) -> State:
        def assembled(g: AbstractNet) -> State:
            return flow.assemble(end.position, at_end.outputs, g)

        return jax.jvp(assembled, (gradient,), (shift,))[1]

    before = moved(at_end.gradient)
    if jump is None:
        return jax.tree.map(jnp.add, end, before)
    after = moved(jax.tree.map(jnp.add, at_end.gradient, jump))
    return jax.tree.map(lambda y, a, b: y + 0.5 * (a + b), end, before, after)


def _mean_time(last: Mask, times: Sites, jumps: Sites) -> Scalar:
    """How long ago the crossings happened, weighted by the squares of their jumps."""
    weights = per_layer(lambda c, j: jnp.where(c, j**2, 0.0), last, jumps)
    total = jnp.sum(jnp.stack([jnp.sum(w) for w in weights]))
    products = per_layer(lambda w, t: jnp.sum(w * t), weights, times)
    return constant(jnp.sum(jnp.stack(products)) / jnp.where(total > 0, total, 1.0))


def _time_wrong(
    span: Span, mean: Scalar, turned: Sites, times: Sites, released: Mask
) -> Scalar:
    """For how long the velocity has been wrong by what it is wrong by at the end.

    After crossings it grows from 0 at once; after a release from when that was; while gates
    slide with given multipliers, like the square of time. The first gate that lets a dead
    sample through jumps by what is not known before.
    """
    unknown = per_layer(lambda f, t: jnp.max(jnp.where(f == 0, t, 0.0)), turned, times)
    times_wrong = [
        0.5 * mean,
        jnp.max(jnp.stack(unknown)),
        jnp.where(any_of(released), span.size / 2, 0.0),
        jnp.where(any_of(span.gates.sliding), span.size / 3, 0.0),
    ]
    return jnp.max(jnp.stack(times_wrong))


def _wrong_sides(
    z: Sites, after: GateState, leeway: Scalar, off: Sites, part: float = 1.0
) -> Mask:
    """The sites that are beyond their kinks after all, by more than (a part of) what those
    that slide were off theirs before they were put back."""

    def beyond(watched: Array, on: Array, slides: Array, off: Array, now: Array) -> Array:
        allowed = slack(now, slides, leeway, off, part)
        return watched & (jnp.where(on, now, -now) < -allowed)

    watched = without(after.frozen, after.sliding)
    return per_layer(beyond, watched, after.on, after.sliding, off, z)


def _error_of(span: Span, wrong: Mask, z: Sites) -> Scalar:
    """The error from gates that have come to the wrong side: their jumps, for as long as
    they have been there."""

    def square(wrong: Array, before: Array, now: Array, jump: Array) -> Array:
        total = jnp.abs(now) + jnp.abs(before)
        part = jnp.abs(now) / nonzero(total)
        return jnp.sum(jnp.where(wrong, span.size * part * jump, 0.0) ** 2)

    squares = per_layer(square, wrong, span.first.z, z, span.jumps)
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))


class _PutBack(eqx.Module):
    position: Any
    z: Sites
    error: Scalar
    stranded: Mask


def _put_back(
    span: Span,
    position: Any,
    crossed: Bool[Array, ""],
    after: GateState,
    wrong: Mask,
    z: Sites,
    off: Sites,
    furthest: Scalar,
) -> _PutBack:
    """The position with the sites of the mask back on their kinks: left beyond them, they
    would count as an error again in every step until they return.

    How far that is counts as an error if this step has taken them there, and so does the
    time for which they were there; but neither does if nothing has crossed in it: then only
    that sliding sites were put back on their kinks has moved them along. These, and those
    that were there before, or within what they may creep on by in a step, are put back only
    if near.
    """
    flow = span.flow
    before = _wrong_sides(span.first.z, after, span.allowance.leeway, off, 1 / CREEP)
    fresh = without(wrong, before)
    has_fresh = crossed & any_of(fresh)
    chosen = per_layer(lambda f, w: jnp.where(has_fresh, f, w), fresh, wrong)
    held = GateState(after.on, either(after.sliding, chosen), after.frozen)

    def moved() -> _PutBack:
        fixed = constant(position)
        back, _ = back_to_kinks(flow, fixed, held, span.lines, span.allowance.position)
        way = jax.tree.map(jnp.subtract, constant(flow.retract(back)), fixed)
        distance = norm(flow.point(way))
        taken = has_fresh | (distance <= furthest)
        there = jax.tree.map(lambda p, w: p + jnp.where(taken, w, 0.0), position, way)
        missed = jnp.where(crossed, constant(_error_of(span, wrong, z)), 0.0)
        error = jnp.maximum(missed, jnp.where(has_fresh, distance, 0.0))
        now = preactivations(flow, there, after)
        return _PutBack(
            there, now, error, _wrong_sides(now, after, span.allowance.leeway, off)
        )

    def stays() -> _PutBack:
        return _PutBack(position, z, jnp.zeros_like(furthest), nowhere(after))

    return jax.lax.cond(any_of(wrong), moved, stays)
