"""Gradient descent played on the network blown up at a point."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int8

from ._normals import Row, holding
from ._regime import KinkRegime
from ._slots import BLOCK, OFF, ON, SLIDING
from ._tangent import TangentNetwork


# Rounds in which a site comes to its kink, or has gone from it.
_APPROACH = 50
# A gate that stays for so many rounds does not sway; one that was watched for so many times
# the longest of its stays sways to the end. As stays in which it does not settle are
# shorter, that is known after the rounds of the longest play.
_SETTLED, _WATCHED = 300, 32
LONGEST_PLAY = (_WATCHED + 1) * _SETTLED
# What rests at its kink is this part of the largest step beyond it if no play has left it
# there.
_BESIDE = 0.1


class Played(eqx.Module):
    """Where gradient descent settles: the states, how far from its kink each site is, and
    which sites sway between both sides to the end."""

    state: Int8[Array, " sites"]
    offset: Row
    sways: Bool[Array, " sites"]


def offset_of(t: TangentNetwork, there: KinkRegime, left_at: Row) -> Row:
    """How far from its kink each site is in a regime, z in units of a step of descent.

    What moves is on its side, as far as it goes in some steps. What slides is where the
    last play has left it, `left_at`, in units of the largest step that it makes; what else
    is at rest as well, but on its side; and what moves away is there at least. For what is
    at rest to be there θ has moved along the normals of that, and where normals depend on
    each other all sites move together.
    """
    side, speed = jnp.where(there.state == ON, 1.0, -1.0), jnp.abs(there.rate)
    slides = there.state == SLIDING
    rests = t.present & (slides | (speed <= t.rounding))
    left = t.scale * jnp.where(side * left_at > 0, jnp.abs(left_at), 0.0)
    gone = jnp.where(side * there.rate > 0, left, 0.0)
    moved = jnp.where(rests, 0.0, side * jnp.maximum(gone, _APPROACH * speed))
    beside = side * jnp.where(left > 0, left, _BESIDE * t.scale)
    at_rest = jnp.where(slides, left_at * t.scale, beside)
    alone = parameters_alone(t, moved)
    off = parameters_alone(t, jnp.where(rests, at_rest, moved)) - alone
    x = alone + t.gram @ holding(t.gram, rests).damped(off)
    return preactivations_of(t, x)


def parameters_alone(t: TangentNetwork, offset: Row) -> Row:
    """How far the parameters alone would take each site, x = p − W max(p, 0)."""
    x = offset - t.passed @ jnp.maximum(offset, 0.0)
    return jnp.where(t.has_normal, x, 0.0)


def preactivations_of(t: TangentNetwork, x: Row) -> Row:
    """How far it is with what others pass, p = x + W max(p, 0)."""
    p = x
    for _ in range(t.layers - 1):
        p = x + t.passed @ jnp.maximum(p, 0.0)
    return p


def part_of_step(t: TangentNetwork, offset: Row) -> Row:
    """The same in units of the largest step that each site makes, one at most."""
    return jnp.clip(offset / jnp.where(t.scale > 0, t.scale, 1.0), -1.0, 1.0)


def play(
    t: TangentNetwork,
    offset: Row,
    rounds: Int[Array, ""],
    asked: Bool[Array, " sites"],
) -> Played:
    """Gradient descent of unit steps, from where the sites are; until none of those asked
    about sways, or it is known of all sites whether they do, as one that comes to its kink
    slowly may move the others; or until all rounds have been played."""
    return _with_first(BLOCK, t, offset, rounds, asked)


def _with_first(
    places: int,
    t: TangentNetwork,
    offset: Row,
    rounds: Int[Array, ""],
    asked: Bool[Array, " sites"],
) -> Played:
    """The same with the first places alone, or with four times as many where others are
    taken, and so on."""
    few, rest = t.first(places), t.present.size - places
    if rest <= 0:
        return _played(t, offset, rounds, asked)

    beyond = jnp.any(t.present[places:])

    # Under vmap all are played, those that are not needed for no round.
    def with_more() -> Played:
        more = jnp.where(beyond, rounds, 0)
        return _with_first(4 * places, t, offset, more, asked)

    def with_few() -> Played:
        fewer = jnp.where(beyond, 0, rounds)
        played = _played(few, offset[:places], fewer, asked[:places])
        return jax.tree.map(lambda a: jnp.pad(a, (0, rest)), played)

    return jax.lax.cond(beyond, with_more, with_few)


def _played(
    t: TangentNetwork,
    offset: Row,
    rounds: Int[Array, ""],
    asked: Bool[Array, " sites"],
) -> Played:
    """The same with all places."""

    def velocity(open_: Array) -> Row:
        mu = jnp.where(open_, t.signal, 0.0)
        for _ in range(t.layers - 1):
            mu = jnp.where(open_, t.signal + mu @ t.passed, 0.0)
        return t.rate - t.gram @ mu

    def going(carry: tuple) -> Array:
        k, *_, last, _, longest = carry
        settled, watched = k - last >= _SETTLED, k >= _SETTLED + _WATCHED * longest
        unknown = jnp.any(asked & ~settled) & jnp.any(t.present & ~settled & ~watched)
        return (k < rounds) & unknown

    def step(carry: tuple) -> tuple:
        k, x, open_, last, before, longest = carry
        x = x + velocity(open_)
        now = preactivations_of(t, x) > t.rounding
        changed = now != open_
        longest = jnp.maximum(longest, k - last)
        before = jnp.where(changed, last, before)
        return k + 1, x, now, jnp.where(changed, k, last), before, longest

    x = parameters_alone(t, offset)
    begin = jnp.zeros_like(rounds)
    never = jnp.zeros(x.shape, rounds.dtype)
    open_ = preactivations_of(t, x) > t.rounding
    carry = (begin, x, open_, never, never - 1, never)
    k, x, open_, last, before, _ = jax.lax.while_loop(going, step, carry)
    state = jnp.where(2 * before >= k, SLIDING, jnp.where(open_, ON, OFF))
    sways = asked & (k - last < _SETTLED)
    return Played(jnp.where(t.present, state, OFF), preactivations_of(t, x), sways)
