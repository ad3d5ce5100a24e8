"""A step under fixed gates, where in it they stop being right, and what became of it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..flows import AbstractFlow, State
from ._base import Scalar
from ._gates import (
    GateState,
    Mask,
    Sites,
    any_of,
    masked,
    per_layer,
    preactivations,
    rounding_of,
    smallest,
    without,
)
from ._lines import Lines
from ._runge_kutta import Leg
from ._sliding import Motion, motion


# Parts of a step at whose ends events are looked for, and bisections of a part.
_PARTS = 4
_BISECTIONS = 46
# How far beyond its range a gate may stand by rounding, as a power of the precision.
_OPENNESS_POWER = 2 / 3
# The part of its rounding by which z may creep on in a step if it is beyond already.
_SLACK = 0.1


class Allowance(eqx.Module):
    """The errors that the multipliers of sliding gates may leave behind."""

    gradient: Scalar
    position: Scalar


class Outcome(eqx.Module):
    """What became of a step at its kinks."""

    accepted: Bool[Array, ""]
    size: Scalar
    # The next size, relative to this one, that kinks allow
    factor: Scalar
    state: State
    gates: GateState
    motion: Motion
    # How long before its end gates have changed; and on the average, by their jumps
    since: Sites
    mean_since: Scalar
    # The sites at whose kinks it was cut, and those left beyond theirs
    crossed: Mask
    stranded: Mask
    # In field evaluations
    cost: Scalar


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


def kinked_path(leg: Leg, outcome: Outcome) -> KinkedPath:
    """The path of a step to what its kinks have made of it; over all of it where that is
    only rounding and drift."""
    size, mean = outcome.size, outcome.mean_since
    shift = jax.tree.map(jnp.subtract, outcome.state, leg.at(size))
    at_kinks = jnp.where(mean > 0, jnp.minimum(mean, size), size)
    duration = jnp.where(at_kinks > 0, at_kinks, 1.0)
    return KinkedPath(leg.interpolation, shift, size, jax.lax.stop_gradient(duration))


class Span(eqx.Module):
    """A step under fixed gates, from where it starts to where it leads.

    The *margin* of a site is how far its pre-activation is on its gate's side of the kink.
    A site crosses where its margin falls below 0, or below what it was at the start if
    that was negative already; a stranded one crosses at the start.
    """

    flow: AbstractFlow
    gates: GateState
    lines: Lines
    start: State
    first: Motion
    leg: Leg
    size: Scalar
    allowance: Allowance
    # How far the velocity jumps where each gate flips
    jumps: Sites
    # The sites that the step before has left beyond their kinks
    stranded: Mask

    def margins(self, z: Sites) -> Sites:
        """How far each gate that is frozen still is from crossing; ∞ at other sites."""

        def margin(
            on: Array, before: Array, now: Array, watched: Array, stranded: Array
        ) -> Array:
            sign = jnp.where(on, 1.0, -1.0).astype(now.dtype)
            rounding = rounding_of(before)
            allowed = jnp.minimum(sign * before - _SLACK * rounding, -rounding)
            allowed = jnp.where(stranded, -rounding, allowed)
            allowed = jax.lax.stop_gradient(allowed)
            return jnp.where(watched, sign * now - allowed, jnp.inf)

        gates = self.gates
        watched = without(gates.frozen, gates.sliding)
        return per_layer(margin, gates.on, self.first.z, z, watched, self.stranded)

    def margins_at(self, time: Scalar) -> Sites:
        """The margins within the step."""
        position = self.leg.at(time).position
        return self.margins(preactivations(self.flow, position, self.gates))

    def beyond(self) -> tuple[Mask, Sites]:
        """The sites beyond their kinks at the end, and for how long each was there."""
        fractions = jnp.arange(1, _PARTS, dtype=self.size.dtype) / _PARTS
        inner = jax.lax.map(lambda f: self.margins_at(f * self.size), fractions)
        first, last = self.margins(self.first.z), self.margins(self.leg.motion.z)

        def time_beyond(first: Array, inner: Array, last: Array) -> Array:
            looks = jnp.concatenate([first[None], inner, last[None]])
            parts = _negative_part(looks[:-1], looks[1:])
            return self.size / _PARTS * jnp.sum(parts, axis=0)

        times = per_layer(time_beyond, first, inner, last)
        return per_layer(lambda m: m < 0, last), times

    def crossed(self, margins: Sites) -> Mask:
        """Of the sites beyond their kinks the one furthest beyond, and all that share it.

        In the first layer that has any: those above may be there only because a gate below
        has not flipped yet. The others follow at once in steps of next to no length, each
        decided under the gates that those before it have set.
        """
        beyond, found = [], jnp.asarray(False)
        for m in margins:
            beyond.append((m < 0) & ~found)
            found = found | jnp.any(m < 0)
        lowest = smallest(tuple(beyond), margins)
        first = per_layer(lambda b, m: b & (m <= lowest), tuple(beyond), margins)
        return self.lines.with_sharers(first)

    def first_crossing(self) -> Scalar:
        """The time of the first crossing, `size` if there is none."""

        def beyond(time: Scalar) -> tuple[Bool[Array, ""], None]:
            return any_of(per_layer(lambda m: m < 0, self.margins_at(time))), None

        return _first_time(beyond, self.size, None)[0]

    def first_release(self, before: Scalar) -> tuple[Scalar, GateState]:
        """The time before `before` at which sliding gates let go, and the gates after that;
        `before` and the gates as they are if none does."""

        def out_at(time: Scalar) -> tuple[Bool[Array, ""], GateState]:
            openness = self.openness_at(self.leg.at(time).position)
            out = out_of_range(self.gates.sliding, openness)
            after = release(self.gates, self.lines.with_sharers(out), openness)
            return any_of(out), after

        return jax.lax.cond(
            any_of(self.gates.sliding),
            lambda: _first_time(out_at, before, self.gates),
            lambda: (before, self.gates),
        )

    def openness_at(self, position: Any) -> Sites:
        """Where the sliding gates stand at a position of the step."""
        here = motion(
            self.flow,
            position,
            self.gates,
            self.lines,
            self.leg.motion.nu,
            self.allowance.gradient,
        )
        return here.openness(self.flow.point(position), self.lines)

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


def out_of_range(sliding: Mask, openness: Sites) -> Mask:
    """The sliding sites whose gate has left the range between off and on."""

    def outside(slides: Array, o: Array) -> Array:
        margin = jnp.finfo(o.dtype).eps ** _OPENNESS_POWER
        return slides & ((o < -margin) | (o > 1 + margin))

    return per_layer(outside, sliding, openness)


def release(gates: GateState, out: Mask, openness: Sites) -> GateState:
    """The gates with some sliding ones let go, to the side where they stand."""
    on = per_layer(lambda r, o, g: jnp.where(r, o > 0.5, g), out, openness, gates.on)
    return GateState(on, without(gates.sliding, out), gates.frozen)


def _negative_part(a: Array, b: Array) -> Array:
    """The part of an interval on which the line from a to b is negative."""
    low, high = jnp.minimum(a, b), jnp.maximum(a, b)
    across = (low < 0) & (high > 0)
    finite = across & jnp.isfinite(high)
    width = jnp.where(finite, high - low, 1.0)
    part = jnp.where(finite, -low, 0.0) / width
    return jnp.where(across, part, jnp.where(low < 0, 1.0, 0.0))


def _first_time(
    event: Callable[[Scalar], tuple[Bool[Array, ""], Any]], size: Scalar, nothing: Any
) -> tuple[Scalar, Any]:
    """The first time in (0, size] at which there is an event, from above, and what is known
    of it there; `size` and `nothing` if there is none.

    Looked for at the ends of some parts of the step, then by bisection in the first that
    has one; in a single loop, so that `event` is compiled once.
    """

    def going(carry: tuple[Array, Scalar, Scalar, Array, Any]) -> Array:
        i, _, _, found, _ = carry
        return i < jnp.where(found, _PARTS + _BISECTIONS, _PARTS)

    def look(
        carry: tuple[Array, Scalar, Scalar, Array, Any],
    ) -> tuple[Array, Scalar, Scalar, Array, Any]:
        i, low, high, found, known = carry
        end = size * (i + 1).astype(size.dtype) / _PARTS
        time = jnp.where(found, 0.5 * (low + high), end)
        is_there, seen = event(time)
        low = jnp.where(is_there, low, time)
        high = jnp.where(is_there, time, high)
        known = jax.tree.map(lambda s, k: jnp.where(is_there, s, k), seen, known)
        return i + 1, low, high, found | is_there, known

    start = (jnp.asarray(0), jnp.zeros_like(size), size, jnp.asarray(False), nothing)
    _, _, time, _, known = jax.lax.while_loop(going, look, start)
    return time, known
