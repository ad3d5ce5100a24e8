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
    # The sites on whose kinks it is, yet to be decided on
    crossed: Mask
    # Whether gates that are out of range are released one by one
    one_by_one: Bool[Array, ""]


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
    motion from there, after releasing the gates that are out of range: all of them in a
    round, or the furthest.

    Sites that slid in the step have z = 0 even if they are released. Those just crossed
    are caught first where the side beyond leads back.
    """
    flow, allowance, crossed = span.flow, span.allowance, arrival.crossed
    position = arrival.state.position

    def attempt(carry: Settled) -> Settled:
        gates, kept = carry.gates, carry.kept
        lines = carry.lines.under(flow.point(position), gates, carry.motion.z)
        held = GateState(gates.on, either(gates.sliding, kept), gates.frozen)
        moved, cost = back_to_kinks(flow, position, held, lines, allowance.position)
        moved = flow.retract(moved)
        gates = awaiting(flow, moved, gates)
        z = preactivations(flow, moved, gates)
        sharers = lines.with_sharers(gates.sliding)
        gates = sliding_along(gates, sharers, z, allowance.leeway)
        here = motion(flow, moved, gates, lines, carry.motion.nu, allowance.gradient)
        cost = carry.cost + cost + here.cost + 1

        def catch() -> tuple[GateState, Mask, Array]:
            # This side led to the kink; it attracts if the side beyond leads back.
            rates = z_rates(flow, moved, gates, here.velocity)
            slides = lines.with_sharers(returning(gates, crossed, rates))
            slides = per_layer(jnp.logical_and, slides, crossed)
            # A stranded site that only passes its kink, back to where its gate is, is
            # put on it.
            passing = per_layer(jnp.logical_and, span.stranded, slides)
            on_kinks = either(kept, passing)
            return captured(gates, slides), on_kinks, jnp.asarray(False)

        def let_go() -> tuple[GateState, Mask, Array]:
            openness = here.openness(flow.point(moved), lines, gates.sliding)
            out = out_of_range(gates.sliding, openness)
            out = per_layer(
                lambda one, all_: jnp.where(arrival.one_by_one, one, all_),
                _furthest(out, openness),
                _uppermost(out),
            )
            out = lines.with_sharers(out)
            return release(gates, out, openness), kept, ~any_of(out)

        after, kept, in_range = constant(jax.lax.cond(carry.decided, let_go, catch))
        return Settled(moved, after, lines, kept, here, jnp.asarray(True), in_range, cost)

    none = jnp.asarray(False)
    nothing = jnp.zeros_like(allowance.gradient)
    start = Settled(
        position,
        arrival.gates,
        span.lines,
        span.gates.sliding,
        span.leg.motion,
        ~any_of(crossed),
        none,
        nothing,
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
