"""When a function of time first becomes negative."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from ._base import Scalar
from ._gates import nonzero


# Times are found up to so many powers of 2 of the precision, relative to a part.
_LOST_BITS = 6


class _Bracket(eqx.Module):
    """Where a value falls below 0: between two times; and what is known at the later."""

    low: Scalar
    high: Scalar
    at_low: Scalar
    at_high: Scalar
    looks: Int[Array, ""]
    known: Any


def first_time(
    event: Callable[[Scalar], tuple[Scalar, Any]], size: Scalar, parts: int, nothing: Any
) -> tuple[Scalar, Any]:
    """The first time in (0, size] at which a value is negative, from above, and what is
    known of it there; `size` and `nothing` if there is none. `event` gives both at a time.

    Looked for at the ends of equal parts of the step, then in the first that has one by the
    ITP method (Oliveira & Takahashi 2020): the secant's root, moved a little to the middle,
    no further from it than bisection would be. In a single loop, so that `event` is
    compiled once.
    """
    width = size / parts
    halvings = jnp.finfo(size.dtype).nmant - _LOST_BITS
    resolution = width * 2.0**-halvings

    def going(b: _Bracket) -> Array:
        found = b.at_high < 0
        return jnp.where(found, b.high - b.low > resolution, b.looks <= parts)

    def look(b: _Bracket) -> _Bracket:
        found = b.at_high < 0
        part = jnp.minimum(b.looks, parts).astype(size.dtype) / parts
        time = jnp.where(found, _itp(b, width, resolution, halvings), part * size)
        value, seen = event(time)
        beyond = value < 0
        # Looks are counted from where the bracket was found.
        looks = jnp.where(beyond & ~found, 0, b.looks + 1)
        return _Bracket(
            low=jnp.where(beyond, b.low, time),
            high=jnp.where(beyond, time, b.high),
            at_low=jnp.where(beyond, b.at_low, value),
            at_high=jnp.where(beyond, value, b.at_high),
            looks=looks,
            known=jax.tree.map(lambda s, k: jnp.where(beyond, s, k), seen, b.known),
        )

    zero, infinite = jnp.zeros_like(size), jnp.full_like(size, jnp.inf)
    start = _Bracket(zero, size, infinite, infinite, jnp.asarray(0), nothing)
    found = jax.lax.while_loop(going, look, start)
    return jnp.maximum(found.high, resolution), found.known


def _itp(b: _Bracket, width: Scalar, resolution: Scalar, halvings: int) -> Scalar:
    """Where to look next in a bracket that was this wide at first, and needs so many
    halvings to be down to the resolution."""
    middle, span = 0.5 * (b.low + b.high), b.high - b.low
    fraction = b.at_low / nonzero(b.at_low - b.at_high)
    secant = b.low + jnp.where(jnp.isfinite(fraction), fraction, 0.5) * span
    to_middle = middle - secant
    # At least so far that the root may be between this look and the last.
    moved = jnp.maximum(0.2 / width * span**2, 0.5 * resolution)
    moved = jnp.minimum(moved, jnp.abs(to_middle))
    truncated = secant + jnp.sign(to_middle) * moved
    left = (halvings - b.looks).astype(span.dtype)
    reach = jnp.maximum(resolution * 2.0**left - 0.5 * span, 0.0)
    return jnp.clip(truncated, middle - reach, middle + reach)
