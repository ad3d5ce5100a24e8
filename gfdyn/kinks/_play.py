"""Gradient descent played on the network blown up at a point."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int8

from ._normals import Row
from ._slots import BLOCK, OFF, ON, SLIDING
from ._tangent import TangentNetwork


# Rounds in which a play comes to the kinks.
_APPROACH = 50
# A gate that stays for so many rounds does not sway.
_SETTLED = 300


class Played(eqx.Module):
    """Where gradient descent settles: the states, and which sites sway between both sides
    to the end."""

    state: Int8[Array, " sites"]
    sways: Bool[Array, " sites"]


def play(
    t: TangentNetwork,
    start: Row,
    rounds: Int[Array, ""],
    asked: Bool[Array, " sites"],
) -> Played:
    """Gradient descent of unit steps, from some times `start`; until none of the sites
    asked about sways, or all rounds have been played."""
    few = t.first(BLOCK)
    if few.present.size == t.present.size:
        return _played(t, start, rounds, asked)

    beyond = jnp.any(t.present[BLOCK:])
    rest = (0, t.present.size - BLOCK)

    # Under vmap both are played, the one that is not needed for no round.
    def with_all() -> Played:
        return _played(t, start, jnp.where(beyond, rounds, 0), asked)

    def with_few() -> Played:
        fewer = jnp.where(beyond, 0, rounds)
        played = _played(few, start[:BLOCK], fewer, asked[:BLOCK])
        return jax.tree.map(lambda a: jnp.pad(a, rest), played)

    return jax.lax.cond(beyond, with_all, with_few)


def _played(
    t: TangentNetwork,
    start: Row,
    rounds: Int[Array, ""],
    asked: Bool[Array, " sites"],
) -> Played:
    """The same with all places."""

    def rates(x: Row) -> Row:
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
        now = rates(x) > t.rounding
        changed = now != open_
        before = jnp.where(changed, last, before)
        return k + 1, x, now, jnp.where(changed, k, last), before

    x = _APPROACH * start
    begin = jnp.zeros_like(rounds)
    never = jnp.zeros(start.shape, rounds.dtype)
    carry = (begin, x, rates(x) > t.rounding, never, never - 1)
    k, _, open_, last, before = jax.lax.while_loop(going, step, carry)
    state = jnp.where(2 * before >= k, SLIDING, jnp.where(open_, ON, OFF))
    sways = asked & (k - last < _SETTLED)
    return Played(jnp.where(t.present, state, OFF), sways)
