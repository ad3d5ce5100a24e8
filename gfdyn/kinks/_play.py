"""Gradient descent played on the network blown up at a point."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int8

from ._normals import Row
from ._regime import KinkRegime
from ._slots import BLOCK, OFF, ON, SLIDING
from ._tangent import TangentNetwork


# Rounds in which a site comes to its kink, or has gone from it.
_APPROACH = 50
# A gate that stays for so many rounds does not sway.
_SETTLED = 300
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
    """How far from its kink each site is in a regime, on its side of it: z in units of a
    step of descent.

    What slides is where the last play has left it, `left_at`, in units of the largest step
    that it makes. What does not is there at least, or as far as it goes in some steps.
    """
    side, speed = jnp.where(there.state == ON, 1.0, -1.0), jnp.abs(there.rate)
    beside = jnp.where(speed <= t.rounding, _BESIDE, 0.0)
    part = jnp.where(side * left_at > 0, jnp.abs(left_at), beside)
    apart = side * jnp.maximum(part * t.scale, _APPROACH * speed)
    return jnp.where(there.state == SLIDING, left_at * t.scale, apart)


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
    about sways, or all rounds have been played."""
    few = t.first(BLOCK)
    if few.present.size == t.present.size:
        return _played(t, offset, rounds, asked)

    beyond = jnp.any(t.present[BLOCK:])
    rest = (0, t.present.size - BLOCK)

    # Under vmap both are played, the one that is not needed for no round.
    def with_all() -> Played:
        return _played(t, offset, jnp.where(beyond, rounds, 0), asked)

    def with_few() -> Played:
        fewer = jnp.where(beyond, 0, rounds)
        played = _played(few, offset[:BLOCK], fewer, asked[:BLOCK])
        return jax.tree.map(lambda a: jnp.pad(a, rest), played)

    return jax.lax.cond(beyond, with_all, with_few)


def _played(
    t: TangentNetwork,
    offset: Row,
    rounds: Int[Array, ""],
    asked: Bool[Array, " sites"],
) -> Played:
    """The same with all places."""

    # x is how far the parameters alone would take each site.
    def offsets(x: Row) -> Row:
        p = x
        for _ in range(t.layers - 1):
            p = x + t.passed @ jnp.maximum(p, 0.0)
        return p

    def velocity(open_: Array) -> Row:
        mu = jnp.where(open_, t.signal, 0.0)
        for _ in range(t.layers - 1):
            mu = jnp.where(open_, t.signal + t.passed.T @ mu, 0.0)
        return t.rate - t.gram @ mu

    def going(carry: tuple) -> Array:
        k, *_, last, _ = carry
        return (k < rounds) & jnp.any(asked & (k - last < _SETTLED))

    def step(carry: tuple) -> tuple:
        k, x, open_, last, before = carry
        x = x + velocity(open_)
        now = offsets(x) > t.rounding
        changed = now != open_
        before = jnp.where(changed, last, before)
        return k + 1, x, now, jnp.where(changed, k, last), before

    x = offset - t.passed @ jnp.maximum(offset, 0.0)
    x = jnp.where(t.has_normal, x, 0.0)
    begin = jnp.zeros_like(rounds)
    never = jnp.zeros(x.shape, rounds.dtype)
    carry = (begin, x, offsets(x) > t.rounding, never, never - 1)
    k, x, open_, last, before = jax.lax.while_loop(going, step, carry)
    state = jnp.where(2 * before >= k, SLIDING, jnp.where(open_, ON, OFF))
    sways = asked & (k - last < _SETTLED)
    return Played(jnp.where(t.present, state, OFF), offsets(x), sways)
