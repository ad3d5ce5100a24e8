"""A step under fixed gates, where in it they stop being right, and what became of it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._by_layer import in_one_row, per_layer
from .._types import Mask, Scalar, Sites
from ..flows import AbstractFlow, State
from ..kinks import (
    FieldEvaluation,
    GateState,
    Openness,
    SharedKinks,
    States,
    any_of,
    both,
    evaluate_field,
    masked,
    preactivations,
    slack,
    smallest,
    standing,
    without,
)
from ._first_time import Bracket, first_part, first_time
from ._runge_kutta import SmoothStep


# The margins at the ends of the parts of a step, its start among them, layer by layer
MarginSamples = tuple[Float[Array, "times samples _"], ...]

# Parts of a step at whose ends events are looked for.
_PARTS = 4
# The factor by which z may creep on in a step if it is beyond its kink already.
CREEP = 2.0


class Allowance(eqx.Module):
    """The errors that sliding gates may leave behind."""

    # By their multipliers
    gradient: Scalar
    position: Scalar
    # How far beyond its kink a site may be where others slide on its sample, relative to
    # the largest z of its unit
    leeway: Scalar


class Outcome(eqx.Module):
    """What became of a step at its kinks."""

    accepted: Bool[Array, ""]
    size: Scalar
    # The next size, relative to this one, that kinks allow
    factor: Scalar
    state: State
    gates: GateState
    shared: SharedKinks
    evaluation: FieldEvaluation
    # How long before its end gates have changed; and on the average, by their jumps
    time_left: Sites
    mean_time_left: Scalar
    # The sites at whose kinks it was cut, and those left beyond theirs
    crossed: Mask
    on_wrong_side: Mask
    # In field evaluations
    cost: Scalar
    # States as right as those after, where the flow is not unique; whether these are
    # verified
    others: States
    verified: Bool[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(True))
    # How far from its kink the last play has left each site (`gfdyn.kinks.decide`); empty
    # if regimes are not verified
    left_at: Sites = ()
    # Whether there were places for all sites at kinks that matter
    fits: Bool[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(True))


class KinkedPath(eqx.Module):
    """The dense output of a step, with what its kinks have moved its end by added to it,
    in proportion to the time since then."""

    smooth: Any
    shift: State
    size: Scalar
    duration: Scalar

    def evaluate(self, time: Scalar) -> State:
        """The state `time` after the start."""
        part = jnp.clip(1 - (self.size - time) / self.duration, 0.0, 1.0)
        at = self.smooth.evaluate(time)
        return jax.tree.map(lambda y, s: y + part * s, at, self.shift)


def kinked_path(smooth: SmoothStep, outcome: Outcome) -> KinkedPath:
    """The path of a step to what its kinks have made of it; over all of it where that is
    only rounding and drift."""
    size, mean = outcome.size, outcome.mean_time_left
    shift = jax.tree.map(jnp.subtract, outcome.state, smooth.at(size))
    at_kinks = jnp.where(mean > 0, jnp.minimum(mean, size), size)
    duration = jnp.where(at_kinks > 0, at_kinks, 1.0)
    return KinkedPath(smooth.interpolation, shift, size, jax.lax.stop_gradient(duration))


class TrialStep(eqx.Module):
    """A step under fixed gates, from where it starts to where it leads.

    The *margin* of a site is how far its pre-activation is on its gate's side of the kink,
    with `slack` added. A site crosses where its margin falls below 0. One that was beyond
    its kink already, as its capture was refused, crosses again where it is twice as far
    beyond; one on the wrong side at the start.
    """

    flow: AbstractFlow
    gates: GateState
    # One sliding site of each kink
    held: Mask
    shared: SharedKinks
    start: State
    first: FieldEvaluation
    smooth: SmoothStep
    size: Scalar
    allowance: Allowance
    # How far the velocity jumps where each gate flips
    jumps: Sites
    # A jump of the velocity that does not matter
    least_jump: Scalar
    # How far θ may be off
    tolerance: Scalar
    # The sites that the step before has left beyond their kinks
    on_wrong_side: Mask
    # How far from its kink the last play has left each site; empty if regimes are not
    # verified
    left_at: Sites
    # How many sites at kinks are looked at together
    places: int = eqx.field(static=True)

    def margins(self, z: Sites) -> Sites:
        """How far each gate that is frozen still is from crossing; ∞ at other sites."""

        def margin(
            on: Array,
            slides: Array,
            watched: Array,
            on_wrong_side: Array,
            before: Array,
            now: Array,
        ) -> Array:
            sign = jnp.where(on, 1.0, -1.0).astype(now.dtype)
            nearest = -slack(now, slides, self.allowance.leeway)
            allowed = jnp.minimum(CREEP * sign * before, nearest)
            allowed = jnp.where(on_wrong_side, nearest, allowed)
            if self.left_at:
                # Regimes are verified: what goes further by the tolerance is decided on.
                largest = jnp.max(jnp.abs(now), axis=0, keepdims=True)
                stood = jnp.minimum(sign * before, 0.0)
                furthest = jnp.minimum(nearest, stood - self.allowance.leeway * largest)
                allowed = jnp.maximum(allowed, furthest)
            allowed = jax.lax.stop_gradient(allowed)
            return jnp.where(watched, sign * now - allowed, jnp.inf)

        gates = self.gates
        watched = without(gates.frozen, gates.sliding)
        return per_layer(
            margin,
            gates.on,
            gates.sliding,
            watched,
            self.on_wrong_side,
            self.first.z,
            z,
        )

    def margins_at(self, time: Scalar) -> Sites:
        """The margins within the step."""
        position = self.smooth.at(time).position
        return self.margins(preactivations(self.flow, position, self.gates))

    def margin_samples(self) -> MarginSamples:
        """The margins at the ends of the step's parts."""
        times = self.size * jnp.arange(1, _PARTS, dtype=self.size.dtype) / _PARTS
        inner = jax.lax.map(self.margins_at, times)
        first, last = self.margins(self.first.z), self.margins(self.smooth.evaluation.z)
        return per_layer(
            lambda f, i, e: jnp.concatenate([f[None], i, e[None]]), first, inner, last
        )

    def beyond(self, margin_samples: MarginSamples) -> tuple[Mask, Sites]:
        """The sites beyond their kinks at the end, and for how long each was there."""

        def time_beyond(margins: Array) -> Array:
            parts = _negative_part(margins[:-1], margins[1:])
            return self.size / _PARTS * jnp.sum(parts, axis=0)

        return per_layer(lambda m: m[-1] < 0, margin_samples), per_layer(
            time_beyond, margin_samples
        )

    def crossed(self, z: Sites) -> Mask:
        """Of the sites beyond their kinks the one furthest beyond, and all that share it.

        In the first layer that has any: those above may be there only because a gate below
        has not flipped yet. The others follow at once in steps of next to no length, each
        decided under the gates that those before it have set. Where a sample dies, as the
        last units of a layer that let it through close, z of all units above is 0 with
        theirs: by rounding, one of these may seem to cross before them.
        """
        margins = self.margins(z)

        def on_kink(m: Array, slides: Array, zl: Array) -> Array:
            return m <= 2 * slack(zl, slides, self.allowance.leeway)

        near = per_layer(on_kink, margins, self.gates.sliding, z)
        on = standing(self.gates, z)
        closing = per_layer(
            lambda n, o: n & o & ~jnp.any(o & ~n, axis=1, keepdims=True), near, on
        )
        above = jnp.zeros((len(z[0]), 1), bool)
        crossing = []
        for m, c in zip(reversed(margins), reversed(closing), strict=True):
            crossing.append((m < 0) | (c & above))
            above = above | jnp.any(m < 0, axis=1, keepdims=True)
        beyond, found = [], jnp.asarray(False)
        for c in reversed(crossing):
            beyond.append(c & ~found)
            found = found | jnp.any(c)
        lowest = smallest(tuple(beyond), margins)
        first = per_layer(lambda b, m: b & (m <= lowest), tuple(beyond), margins)
        at_end = both(near, on)
        first = per_layer(_with_unit, first, self.gates.sliding, at_end)
        # Where the unit below that lets a sample through is about to close, z is 0 of that
        # sample alone.
        return both(self.shared.with_sharers(first), near)

    def first_crossing(self, margin_samples: MarginSamples) -> Scalar:
        """The time of the first crossing, `size` if there is none."""

        def margins(time: Scalar) -> tuple[Array, None]:
            return in_one_row(self.margins_at(time)), None

        part = first_part(jax.vmap(in_one_row)(margin_samples), self.size)
        return first_time(margins, part, None)[0]

    def first_release(self, before: Scalar) -> tuple[Scalar, GateState]:
        """The time before `before` at which sliding gates let go, and the gates after that;
        `before` and the gates as they are if none does."""

        at_start, slid = self.first_openness, self.gates.sliding

        def least_room(time: Scalar) -> tuple[Scalar, GateState]:
            openness = self.openness_at(self.smooth.at(time).position)
            openness = openness.as_before(at_start, slid)
            out = self.shared.with_sharers(openness.out(slid))
            return _least(openness.room(slid)), openness.release(self.gates, out)

        def search() -> tuple[Scalar, GateState]:
            room = _least(at_start.room(slid))
            whole = Bracket(
                jnp.zeros_like(before), before, room, jnp.full_like(room, jnp.nan)
            )
            return first_time(least_room, whole, self.gates)[:2]

        sliding = any_of(self.gates.sliding)
        return jax.lax.cond(sliding, search, lambda: (before, self.gates))

    def openness_at(self, position: Any) -> Openness:
        """Where the sliding gates stand at a position of the step."""
        here = evaluate_field(
            self.flow,
            position,
            self.gates,
            self.held,
            self.smooth.evaluation.nu,
            self.allowance.gradient,
            self.shared,
        )
        net = self.flow.point(position)
        return here.openness(net, self.shared, self.gates.sliding)

    @property
    def first_openness(self) -> Openness:
        """Where the sliding gates stand at the start of the step."""
        net = self.flow.point(self.start.position)
        return self.first.openness(net, self.shared, self.gates.sliding)

    def with_derivative(self, time: Scalar, crossed: Mask) -> Scalar:
        """The same time, as the implicit function of the state that it is at a crossing.

        z(t*) = 0 gives dt* = −dz/z', and with it the derivative of the flow its jump (the
        saltation matrix). At a release the velocity is continuous and nothing jumps.
        """

        def margin(time: Scalar) -> Scalar:
            margins = masked(crossed, self.margins_at(time))
            return jnp.sum(jnp.stack([jnp.sum(m) for m in margins]))

        value, rate = jax.jvp(margin, (time,), (jnp.ones_like(time),))
        rate = jax.lax.stop_gradient(jnp.where(rate == 0, 1.0, rate))
        return time - (value - jax.lax.stop_gradient(value)) / rate


def _with_unit(first: Array, slides: Array, at_end: Array) -> Array:
    """The first sites of a layer to cross, and those of their units that come to their
    kinks with them: where a unit slides on some samples already, its weights on what comes
    in may all come to 0."""
    units = jnp.any(first, axis=0, keepdims=True) & jnp.any(slides, axis=0, keepdims=True)
    return first | (at_end & units)


def _negative_part(a: Array, b: Array) -> Array:
    """The part of an interval on which the line from a to b is negative."""
    low, high = jnp.minimum(a, b), jnp.maximum(a, b)
    across = (low < 0) & (high > 0)
    finite = across & jnp.isfinite(high)
    width = jnp.where(finite, high - low, 1.0)
    part = jnp.where(finite, -low, 0.0) / width
    return jnp.where(across, part, jnp.where(low < 0, 1.0, 0.0))


def _least(values: Sites) -> Scalar:
    return jnp.min(jnp.stack([jnp.min(v) for v in values]))
