"""Putting a position back on the kinks that slide, and letting go of those that do not."""

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..flows import State
from ._base import Scalar
from ._gates import (
    GateState,
    Mask,
    Sites,
    any_of,
    awaiting,
    captured,
    either,
    per_layer,
    preactivations,
    returning,
    sliding_along,
    smallest,
)
from ._lines import Lines
from ._sliding import Motion, back_to_kinks, constant, motion, z_rates
from ._span import Span, out_of_range, release


# Rounds in which gates may be released one upon the other.
_ROUNDS = 8


class Arrival(eqx.Module):
    """Where a step leads as far as it is taken, with the gates that are tried there."""

    state: State
    time: Scalar
    gates: GateState
    # The sites that were crossed, yet to be decided on, and which of them may be caught
    crossed: Mask
    catchable: Mask
    # Whether the step is taken as a whole, or cut at an event
    whole: Bool[Array, ""]


class Settled(eqx.Module):
    """A position on its kinks, with gates that are all in range, and the motion there."""

    position: Any
    gates: GateState
    lines: Lines
    # The sites that have z = 0, whether they slide or not
    kept: Mask
    motion: Motion
    # Whether what was crossed has been decided on, and no gate is out of range
    decided: Bool[Array, ""]
    in_range: Bool[Array, ""]
    # In field evaluations
    cost: Scalar


def settle(span: Span, arrival: Arrival, loop_kind: str) -> Settled:
    """The position where a step has led back on the kinks along which it slides, and the
    motion from there, after releasing the gates that are out of range.

    Sites that slid in the step have z = 0 even if they are released. Those just crossed
    are caught first where the side beyond leads back: at the end of a whole step, where it
    has led back; at an event, where the rate of z does. There the gate that is furthest out
    of range is released in a round, at the end of a step all.
    """
    flow, allowance, crossed = span.flow, span.allowance, arrival.crossed
    position = arrival.state.position
    nothing = jnp.zeros_like(arrival.time)

    def attempt(carry: Settled) -> Settled:
        tried, kept = carry.gates, carry.kept
        lines = carry.lines.under(flow.point(position), tried, carry.motion.z)
        held = GateState(tried.on, either(tried.sliding, kept), tried.frozen)
        moved, cost = back_to_kinks(flow, position, held, lines, allowance.position)
        moved = flow.retract(moved)
        # Where a whole step has led back does not depend on the motion from there.
        moving = carry.decided | ~arrival.whole
        gates = awaiting(flow, moved, tried, moving)
        z = preactivations(flow, moved, gates)
        sharers = lines.with_sharers(gates.sliding)
        gates = sliding_along(gates, sharers, z, allowance.leeway)
        nu = carry.motion.nu
        here = jax.lax.cond(
            moving,
            lambda: motion(flow, moved, gates, lines, nu, allowance.gradient),
            lambda: eqx.tree_at(lambda m: m.cost, carry.motion, nothing),
        )
        cost = carry.cost + cost + here.cost + 1

        def catch() -> tuple[GateState, Mask, Array]:
            # This side led to the kink; it attracts if the side beyond leads back.
            leads = jax.lax.cond(
                arrival.whole,
                lambda: z,
                lambda: z_rates(flow, moved, gates, here.velocity),
            )
            slides = lines.with_sharers(returning(gates, arrival.catchable, leads))
            slides = per_layer(jnp.logical_and, slides, crossed)
            # A stranded site that only passes its kink, back to where its gate is, is
            # put on it.
            passing = per_layer(jnp.logical_and, span.stranded, slides)
            return captured(gates, slides), either(kept, passing), jnp.asarray(False)

        def let_go() -> tuple[GateState, Mask, Array]:
            openness = here.openness(flow.point(moved), lines, gates.sliding)
            out = out_of_range(gates.sliding, openness)
            out = per_layer(
                lambda several, one: jnp.where(arrival.whole, several, one),
                _uppermost(out),
                _furthest(out, openness),
            )
            out = lines.with_sharers(out)
            return release(gates, out, openness), kept, ~any_of(out)

        after, kept, in_range = constant(jax.lax.cond(carry.decided, let_go, catch))
        return Settled(moved, after, lines, kept, here, jnp.asarray(True), in_range, cost)

    start = Settled(
        position,
        arrival.gates,
        span.lines,
        kept=span.gates.sliding,
        motion=span.leg.motion,
        decided=~any_of(crossed),
        in_range=jnp.asarray(False),
        cost=nothing,
    )
    return eqxi.while_loop(
        lambda s: ~s.in_range,
        attempt,
        start,
        max_steps=_ROUNDS,
        kind=loop_kind,  # pyright: ignore[reportArgumentType]
    )


def _uppermost(out: Mask) -> Mask:
    """Those of the last layer that has any: they decide on what arrives below."""
    kept, found = [], jnp.asarray(False)
    for o in reversed(out):
        kept.append(o & ~found)
        found = found | jnp.any(o)
    return tuple(reversed(kept))


def _furthest(out: Mask, openness: Sites) -> Mask:
    """Of the sites out of range the one that is furthest out."""
    inside = per_layer(lambda o: -jnp.abs(o - 0.5), openness)
    lowest = smallest(out, inside)
    return per_layer(lambda r, i: r & (i <= lowest), out, inside)
