"""When one of several functions of time first becomes negative."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import nonzero
from .._types import Scalar


# Times are found up to so many powers of 2 of the precision, relative to the bracket.
_LOST_BITS = 4


class Bracket(eqx.Module):
    """Two times between which one of some values falls below 0, and the values there.

    NaN is what is not known yet. If none at the later time is negative, nothing falls.
    """

    low: Scalar
    high: Scalar
    at_low: Float[Array, "*values"]
    at_high: Float[Array, "*values"]


def first_part(values: Float[Array, " times *values"], size: Scalar) -> Bracket:
    """The first of equal parts of [0, size] at whose end a value is negative, the last one
    if there is none; from the values at the ends of all parts, the start among them."""
    parts = len(values) - 1
    negative = jnp.any(values[1:].reshape(parts, -1) < 0, axis=1)
    part = jnp.where(jnp.any(negative), jnp.argmax(negative), parts - 1)
    before = part.astype(size.dtype)
    # (parts / parts) · size is the size itself.
    low, high = before / parts * size, (before + 1) / parts * size
    return Bracket(low, high, values[part], values[part + 1])


class _Search(eqx.Module):
    """A bracket that becomes narrower, what is known at its later end, and of where it
    began, and whether there is no last look, or it was taken."""

    bracket: Bracket
    looks: Int[Array, ""]
    known: Any
    at_first: Any
    concluded: Bool[Array, ""]


def first_time(
    event: Callable[[Scalar], tuple[Array, Any]],
    bracket: Bracket,
    nothing: Any,
    digits: float = 1.0,
) -> tuple[Scalar, Any, Any]:
    """The first time in a bracket at which a value is negative, from above, what is known
    of it there, and what is known of where the bracket begins.

    `event` gives the values and what is known at a time. If nothing falls, that is the end
    of the bracket and `nothing`, twice; the start is looked at only if it is not known
    there. What is no number counts as negative.
    The time is found to this part of all digits.

    By the ITP method (Oliveira & Takahashi 2020): the first root of the secants of what
    falls, moved a little to the middle, no further from it than bisection would be.
    """
    never = jnp.asarray(False)
    return _searched(lambda time, *_: event(time), bracket, nothing, digits, never, ~never)


def first_time_with_last_look(
    event: Callable[[Scalar, Any, Bool[Array, ""]], tuple[Array, Any]],
    bracket: Bracket,
    nothing: Any,
    surely: Bool[Array, ""],
    digits: float = 1.0,
) -> tuple[Scalar, Any, Any]:
    """The same, with a last look at the time found, if something falls, or surely.

    `event` is given what is known of the later end of the bracket, and whether it is looked
    at for the last time: what is seen then is what is known in the end.
    """
    return _searched(event, bracket, nothing, digits, surely, jnp.asarray(False))


def _searched(
    event: Callable[[Scalar, Any, Bool[Array, ""]], tuple[Array, Any]],
    bracket: Bracket,
    nothing: Any,
    digits: float,
    surely: Bool[Array, ""],
    concluded: Bool[Array, ""],
) -> tuple[Scalar, Any, Any]:
    """The same; without a last look if it is `concluded` before."""
    width = bracket.high - bracket.low
    halvings = int(digits * (jnp.finfo(width.dtype).nmant - _LOST_BITS))
    resolution = width * 2.0**-halvings

    def searching(s: _Search) -> Array:
        b = s.bracket
        far = _any_fallen(b.at_high) & (b.high - b.low > resolution)
        return _unknown(b.at_high) & (s.looks == 0) | far

    def found_at(s: _Search) -> Scalar:
        return jnp.maximum(s.bracket.high, resolution)

    def going(s: _Search) -> Array:
        return searching(s) | (~s.concluded & (surely | _any_fallen(s.bracket.at_high)))

    def look(s: _Search) -> _Search:
        b = s.bracket
        last = ~searching(s)
        later = _unknown(b.at_high)
        first = ~later & _unknown(b.at_low)
        inside = _itp(s, width, resolution, halvings)
        time = jnp.where(later, b.high, jnp.where(first, b.low, inside))
        time = jnp.where(last, found_at(s), time)
        value, seen = event(time, s.known, last)
        # What is no number has fallen: where it was one last is the time.
        value = jnp.where(jnp.isnan(value), -jnp.inf, value)
        beyond = ~first & _any_fallen(value)
        ends = later | beyond
        after = Bracket(
            low=jnp.where(ends, b.low, time),
            high=jnp.where(ends, time, b.high),
            at_low=jnp.where(ends, b.at_low, value),
            at_high=jnp.where(ends, value, b.at_high),
        )
        after = jax.tree.map(lambda now, old: jnp.where(last, old, now), after, b)
        known, at_first = (
            jax.tree.map(lambda now, old, new=new: jnp.where(new, now, old), seen, before)
            for new, before in ((beyond | last, s.known), (first & ~last, s.at_first))
        )
        return _Search(after, s.looks + 1, known, at_first, s.concluded | last)

    start = _Search(bracket, jnp.asarray(0), nothing, nothing, concluded)
    found = jax.lax.while_loop(going, look, start)
    return found_at(found), found.known, found.at_first


def _itp(s: _Search, width: Scalar, resolution: Scalar, halvings: int) -> Scalar:
    """Where to look next in a bracket that was this wide at first, and needs so many
    halvings to be down to the resolution."""
    b = s.bracket
    middle, span = 0.5 * (b.low + b.high), b.high - b.low
    fraction = b.at_low / nonzero(b.at_low - b.at_high)
    fraction = jnp.where(jnp.isfinite(fraction), fraction, 0.5)
    first = jnp.min(jnp.where(b.at_high < 0, fraction, 1.0)).astype(span.dtype)
    secant = b.low + first * span
    to_middle = middle - secant
    # At least so far that the root may be between this look and the last.
    moved = jnp.maximum(0.2 / width * span**2, 0.5 * resolution)
    moved = jnp.minimum(moved, jnp.abs(to_middle))
    truncated = secant + jnp.sign(to_middle) * moved
    left = (halvings - s.looks).astype(span.dtype)
    reach = jnp.maximum(resolution * 2.0**left - 0.5 * span, 0.0)
    inside = jnp.clip(truncated, middle - reach, middle + reach)
    # What is negative where the bracket begins says nothing of how it falls.
    return jnp.where(_any_fallen(b.at_low), b.low + resolution, inside)


def _any_fallen(values: Array) -> Bool[Array, ""]:
    return jnp.any(values < 0)


def _unknown(values: Array) -> Bool[Array, ""]:
    return jnp.all(jnp.isnan(values))
