"""Putting a position back on the kinks that slide, and letting go of those that do not."""

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._by_layer import per_layer
from .._types import Mask, Scalar, Sites
from ..flows import State
from ..kinks import (
    FieldEvaluation,
    GateState,
    SharedKinks,
    any_of,
    awaiting,
    back_to_kinks,
    both,
    captured,
    constant,
    either,
    evaluate_field,
    flipped,
    preactivations,
    returning,
    rounding_of,
    sliding_along,
    smallest,
    without,
    z_rates,
)
from ._trial_step import TrialStep


# Rounds in which gates may be released one upon the other.
_ROUNDS = 8


class Proposal(eqx.Module):
    """Where a step leads as far as it is taken, with the gates that are tried there."""

    state: State
    time: Scalar
    gates: GateState
    # The sites that were crossed, yet to be decided on, and which of them may be caught
    crossed: Mask
    catchable: Mask
    # Whether the step is taken as a whole, or cut at an event
    whole: Bool[Array, ""]


class Resolution(eqx.Module):
    """A position on its kinks, with gates that are all in range, and the field there."""

    position: Any
    gates: GateState
    shared: SharedKinks
    # The sites that have z = 0, whether they slide or not
    kept: Mask
    evaluation: FieldEvaluation
    # The sites that are yet to be decided on, and whether no gate is out of range
    pending: Mask
    in_range: Bool[Array, ""]
    # Whether a kink along which it went repels
    repels: Bool[Array, ""]
    # In field evaluations
    cost: Scalar


def resolve_gates(trial: TrialStep, proposal: Proposal, loop_kind: str) -> Resolution:
    """The position where a step has led back on the kinks along which it slides, and the
    motion from there, after releasing the gates that are out of range.

    Sites that slid in the step have z = 0 even if they are released. Those just crossed
    are caught first where the side beyond leads back: at the end of a whole step, where it
    has led back; at an event, where the rate of z does, along the flow there, which may let
    go of others. Those are decided on once more where any is caught.

    At an event the gate that is furthest out of range is released in a round, at the end
    of a step all.
    """
    flow, allowance, crossed = trial.flow, trial.allowance, proposal.crossed
    position = proposal.state.position
    nothing = jnp.zeros_like(proposal.time)
    opening = both(crossed, proposal.gates.on)
    parting = _parting(trial, opening)
    at_start = trial.first_openness

    def attempt(carry: Resolution) -> Resolution:
        tried, kept, pending = carry.gates, carry.kept, carry.pending
        deciding = any_of(pending)
        shared = carry.shared.under(flow.point(position), tried, carry.evaluation.z)
        pinned = GateState(tried.on, either(tried.sliding, kept), tried.frozen)
        released = without(pinned.sliding, tried.sliding)
        moved, cost = back_to_kinks(
            flow, position, pinned, shared, allowance.position, released
        )
        moved = flow.retract(moved)
        # Where a whole step has led back does not depend on the motion from there.
        moving = ~deciding | ~proposal.whole
        fresh = any_of(both(pending, crossed))
        gates = awaiting(
            flow,
            moved,
            tried,
            per_layer(lambda o: o & fresh, opening),
            per_layer(lambda p: p & fresh, parting),
            moving,
        )
        z = preactivations(flow, moved, gates)
        sharers = shared.with_sharers(gates.sliding)
        gates = sliding_along(gates, sharers, z, allowance.leeway)
        nu, held = carry.evaluation.nu, shared.representatives(gates.sliding)
        here = jax.lax.cond(
            moving,
            lambda: evaluate_field(
                flow, moved, gates, held, nu, allowance.gradient, shared
            ),
            lambda: eqx.tree_at(lambda m: m.cost, carry.evaluation, nothing),
        )
        cost = carry.cost + cost + here.cost + 1
        openness = here.openness(flow.point(moved), shared, gates.sliding)
        openness = openness.as_before(at_start, trial.gates.sliding)
        out = openness.out(gates.sliding)

        def catch() -> tuple[GateState, Mask, Mask, Array]:
            # This side led to the kink; it attracts if the side beyond leads back.
            leads = jax.lax.cond(
                proposal.whole,
                lambda: z,
                lambda: z_rates(flow, moved, gates, here.velocity),
            )
            slides = shared.with_sharers(returning(gates, pending, leads))
            slides = both(slides, either(pending, crossed))
            # A site on the wrong side of its kink that only passes it, back to where its
            # gate is, is put on it.
            passing = both(trial.on_wrong_side, slides)
            after, again = captured(gates, slides), any_of(slides) & ~proposal.whole
            gone = without(proposal.gates.sliding, after.sliding)
            rest = per_layer(lambda g: g & again, gone)
            return after, either(kept, passing), rest, jnp.asarray(False)

        along = _closing_along(proposal, pending, gates, z)

        def close() -> tuple[GateState, Mask, Mask, Array]:
            also_pending = either(pending, along)
            return flipped(gates, along), kept, also_pending, jnp.asarray(False)

        def let_go() -> tuple[GateState, Mask, Mask, Array]:
            some = per_layer(
                lambda several, one: jnp.where(proposal.whole, several, one),
                _uppermost(out),
                _furthest(out, openness.value),
            )
            some = shared.with_sharers(some)
            return openness.release(gates, some), kept, pending, ~any_of(some)

        in_order = proposal.whole | ~any_of(out)
        decision = jax.lax.cond(
            any_of(along),
            close,
            lambda: jax.lax.cond(deciding & in_order, catch, let_go),
        )
        after, kept, pending, in_range = constant(decision)
        repels = carry.repels | any_of(openness.repels(gates.sliding))
        return Resolution(moved, after, shared, kept, here, pending, in_range, repels, cost)

    start = Resolution(
        position,
        proposal.gates,
        trial.shared,
        kept=trial.gates.sliding,
        evaluation=trial.smooth.evaluation,
        pending=both(crossed, proposal.catchable),
        in_range=jnp.asarray(False),
        repels=jnp.asarray(False),
        cost=nothing,
    )
    resolution = eqxi.while_loop(
        lambda s: ~s.in_range,
        attempt,
        start,
        max_steps=_ROUNDS,
        kind=loop_kind,  # pyright: ignore[reportArgumentType]
    )
    # Where kinks part is a place to cut at.
    within = resolution.in_range & ~(proposal.whole & any_of(parting))
    return eqx.tree_at(lambda s: s.in_range, resolution, within)


def _parting(trial: TrialStep, opening: Mask) -> Mask:
    """The sliding sites of which others that slide share the kink no longer, once neurons
    below open for their sample: it passed these through one unit alone before."""
    reached = jnp.zeros((len(opening[0]), 1), bool)
    above = []
    for o in opening:
        above.append(reached)
        reached = reached | jnp.any(o, axis=1, keepdims=True)
    slides = trial.gates.sliding
    stays = per_layer(lambda s, a: s & ~a, slides, tuple(above))
    shared = trial.shared.with_sharers(stays)
    return per_layer(lambda h, s, a: h & s & a, shared, slides, tuple(above))


def _closing_along(proposal: Proposal, pending: Mask, gates: GateState, z: Sites) -> Mask:
    """The open sites that close at an event along with one of their sample, as a unit above
    slides on it: that holds the sum of what lets the sample through."""

    def along(crossed: Array, decide: Array, opened: Array, on: Array, zl: Array) -> Array:
        closes = jnp.any(crossed & decide & ~on, axis=1, keepdims=True)
        at_kink = jnp.abs(zl) <= rounding_of(zl)
        return closes & opened & on & at_kink & ~proposal.whole

    tried = proposal.gates
    opened = both(tried.on, without(tried.frozen, tried.sliding))
    return per_layer(along, proposal.crossed, pending, opened, gates.on, z)


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
