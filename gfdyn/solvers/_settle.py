"""Putting a position back on the kinks that slide, and letting go of those that do not."""

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..flows import AbstractFlow
from ._base import Scalar
from ._gates import GateState, Mask, Sites, any_of, smallest
from ._lines import Lines
from ._sliding import Motion, back_to_kinks, constant, motion
from ._span import out_of_range, release


# Rounds in which gates may be released one upon the other.
_ROUNDS = 8


class Settled(eqx.Module):
    """A position on its kinks, with gates that are all in range, and the motion there."""

    position: Any
    gates: GateState
    motion: Motion
    in_range: Bool[Array, ""]
    evaluations: Int[Array, ""]


def settle(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    lines: Lines,
    guess: Motion,
    tolerance: Scalar,
    loop_kind: str,
    one_by_one: bool = False,
) -> Settled:
    """The position with z = 0 at the sliding sites, after releasing those whose gate is out
    of range there: none of these is projected. All of them in a round, or the furthest."""

    def attempt(carry: Settled) -> Settled:
        gates = carry.gates
        moved, products = back_to_kinks(flow, position, gates, lines, tolerance)
        moved = flow.retract(moved)
        here = motion(flow, moved, gates, lines, carry.motion.nu, tolerance)
        openness = constant(here.openness(flow.point(moved), lines))
        out = out_of_range(gates.sliding, openness)
        if one_by_one:
            out = _furthest(out, openness)
        out = lines.with_sharers(out)
        after = release(gates, out, openness)
        evaluations = carry.evaluations + products + here.products + 1
        return Settled(moved, after, here, ~any_of(out), evaluations)

    start = Settled(
        position, gates, guess, jnp.asarray(False), jnp.asarray(0, jnp.int32)
    )
    return eqxi.while_loop(
        lambda s: ~s.in_range,
        attempt,
        start,
        max_steps=_ROUNDS,
        kind=loop_kind,  # pyright: ignore[reportArgumentType]
    )


def _furthest(out: Mask, openness: Sites) -> Mask:
    """Of the sites out of range the one that is furthest out."""
    inside = tuple(-jnp.abs(o - 0.5) for o in openness)
    lowest = smallest(out, inside)
    return tuple(r & (i <= lowest) for r, i in zip(out, inside, strict=True))
