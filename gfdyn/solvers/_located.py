"""A step cut at its first event, at which the next regime is decided on."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8

from .._by_layer import in_layers, in_one_row, per_layer
from .._types import Mask, Scalar, Sites
from ..flows import State
from ..kinks import (
    NONE,
    OFF,
    ON,
    SLIDING,
    FirstProposal,
    GateState,
    KinkRegime,
    Slots,
    States,
    TangentNetwork,
    any_of,
    back_along,
    constant,
    count,
    decide,
    either,
    evaluate_along,
    near_kinks,
    no_alternative,
    nowhere,
    offset_of,
    preactivations,
    regime,
    samples_of,
    slots_of,
    standing,
    states_of,
    swaying,
    tangent_network,
    through_gates,
    without,
)
from ._first_time import Bracket, first_time
from ._trial_step import MarginSamples, Outcome, TrialStep


# Where a site is let go the velocity is continuous: the error of θ is quadratic in that of
# the time, which needs little more than half of the digits.
_DIGITS = 0.6
# What is let go is on its way by this part of the largest step of descent.
_ON_ITS_WAY = 0.1


class Leaving(eqx.Module):
    """The sliding sites that are let go first: the states of all sites from then on, in one
    row, and whether any is; and where the flow is not unique, other states that would be as
    right.

    `worst` is the site that is let go before others, `psi` how much the velocity changes
    for each site as it is let go, negative where that lowers Φ; ∞ where none is.
    """

    states: Int8[Array, " sites"]
    happens: Bool[Array, ""]
    others: Int8[Array, " sites"]
    worst: Int[Array, ""]
    psi: Float[Array, " sites"]

    def missed(self, start: "Leaving", time: Scalar) -> Scalar:
        """How far θ is from where it were, had the site been let go as Ψ passed 0: by the
        line on which Ψ has come down `time` after a start; ∞ if it is not known to have."""
        before, now = start.psi[self.worst], self.psi[self.worst]
        fell = before - now
        falls = (fell > 0) & jnp.isfinite(fell)
        elapsed = -now * time / jnp.where(falls, fell, 1.0)
        return jnp.where(falls, -0.5 * now * elapsed, jnp.inf)


class NextRegime(eqx.Module):
    """The gates from an event on, whether they are known to be right, other states as right
    where the flow is not unique, how far from its kink descent has left each site, and
    whether there were places for all that matter."""

    gates: GateState
    verified: Bool[Array, ""]
    others: States
    left_at: Sites
    fits: Bool[Array, ""]


def to_first_event(trial: TrialStep, accepted: Bool[Array, ""]) -> Outcome:
    """The step up to its first event, or whole if there is none, if its smooth part is
    `accepted`; and the regime from there.

    Events are found on the dense output, so that the method keeps its order.
    """
    margin_samples = trial.margin_samples()
    untouched = step_without_events(trial)
    watched = any_of(per_layer(lambda m: jnp.any(m[1:] < 0, axis=0), margin_samples))
    watched = watched | any_of(trial.gates.sliding)
    needed = accepted & watched
    return jax.lax.cond(
        needed, lambda: _at_event(trial, margin_samples, needed), lambda: untouched
    )


def _at_event(
    trial: TrialStep, margin_samples: MarginSamples, needed: Bool[Array, ""]
) -> Outcome:
    """The step up to its first event, or whole if there is none.

    Under `vmap` it is taken in all lanes, whose loops end at once where it is not `needed`.
    """
    time, crossed, leaving = _first_event(constant(trial), constant(margin_samples), needed)
    happens = needed & (any_of(crossed) | leaving.happens)
    return jax.lax.cond(
        happens,
        lambda: _cut(trial, time, crossed, leaving, happens),
        lambda: step_without_events(trial),
    )


def step_without_events(trial: TrialStep) -> Outcome:
    """A step that meets no event."""
    end, gates = trial.smooth.end, trial.gates
    return Outcome(
        accepted=jnp.asarray(True),
        size=trial.size,
        factor=jnp.full_like(trial.size, jnp.inf),
        state=State(trial.flow.retract(end.position), end.dissipated),
        gates=gates,
        shared=trial.shared,
        evaluation=trial.smooth.evaluation,
        time_left=per_layer(jnp.zeros_like, trial.first.z),
        mean_time_left=jnp.zeros_like(trial.size),
        crossed=nowhere(gates),
        on_wrong_side=nowhere(gates),
        cost=jnp.zeros_like(trial.size),
        others=no_alternative(gates),
        left_at=trial.left_at,
    )


def _cut(
    trial: TrialStep, time: Scalar, crossed: Mask, leaving: Leaving, needed: Bool[Array, ""]
) -> Outcome:
    """The step up to an event, put back on its kinks, and the regime from there."""
    flow, gates = trial.flow, trial.gates
    time = trial.with_derivative(time, crossed)
    arrived = trial.smooth.at(time)
    kept = either(gates.sliding, crossed)
    closed = GateState(without(gates.on, kept), kept, either(gates.frozen, kept))
    put_back = slots_of(kept, trial.places)
    left_on = put_back.read(in_layers(leaving.states, gates.on)) == ON
    opens = (leaving.happens & left_on) | put_back.read(without(crossed, gates.on))
    position = flow.retract(back_along(flow, arrived.position, closed, put_back, opens))
    after = _decided(trial, constant(position), crossed, leaving, needed)
    sliding = slots_of(after.gates.sliding, trial.places)
    here = evaluate_along(flow, position, after.gates, sliding)
    fits = after.fits & ~put_back.overflow & ~sliding.overflow
    return Outcome(
        accepted=fits,
        size=time,
        factor=jnp.full_like(trial.size, jnp.inf),
        state=State(position, arrived.dissipated),
        gates=after.gates,
        shared=trial.shared,
        evaluation=here,
        time_left=per_layer(jnp.zeros_like, trial.first.z),
        mean_time_left=jnp.zeros_like(trial.size),
        # Each is decided on for good.
        crossed=nowhere(gates),
        on_wrong_side=nowhere(gates),
        cost=jnp.zeros_like(trial.size) + 8,
        others=after.others,
        verified=after.verified,
        left_at=after.left_at,
        fits=fits,
    )


def _first_event(
    trial: TrialStep, margin_samples: MarginSamples, needed: Bool[Array, ""]
) -> tuple[Scalar, Mask, Leaving]:
    """When the first event is, the step's size if there is none; the sites that cross."""
    crossing = trial.first_crossing(margin_samples)
    states = states_of(standing(trial.gates, trial.first.z), trial.gates.sliding)
    others = in_one_row(no_alternative(trial.gates))
    none = Leaving(
        states=in_one_row(states),
        happens=jnp.asarray(False),
        others=others,
        worst=jnp.asarray(0),
        psi=jnp.full(others.shape, jnp.inf, trial.size.dtype),
    )
    time, leaving = jax.lax.cond(
        any_of(trial.gates.sliding),
        lambda: _first_leaving(trial, crossing, none, needed),
        lambda: (crossing, none),
    )
    z = preactivations(trial.flow, trial.smooth.at(time).position, trial.gates)
    crossed = per_layer(lambda m: (m < 0) & ~leaving.happens, trial.margins(z))
    return time, crossed, leaving


def _first_leaving(
    trial: TrialStep, before: Scalar, none: Leaving, needed: Bool[Array, ""]
) -> tuple[Scalar, Leaving]:
    """When the first sliding site is let go, `before` at the latest."""
    flow, gates = trial.flow, trial.gates
    no_psi = in_layers(none.psi, gates.on)

    def room_at(time: Scalar) -> tuple[Scalar, Leaving]:
        position = trial.smooth.at(time).position
        slots, states, t = _blown_up(trial, position, gates.sliding)

        def sways(there: KinkRegime) -> Bool[Array, " sites"]:
            left_at = slots.read(trial.left_at)
            return swaying(t, there, lambda: offset_of(t, there, left_at))

        there = regime(t, slots.read(states), sways)
        room, after = there.room, there.let_go
        first = jnp.argmin(room)
        # Where it swayed, Ψ is not 0 as it leaves.
        swayed = room[first] < -there.psi_rounding[first]
        opposite = jnp.where(after == ON, OFF, ON)
        other = jnp.where(there.repels(first), opposite, jnp.where(swayed, SLIDING, NONE))
        at_kink = there.shares[:, first] != 0
        others = slots.write(jnp.where(at_kink, other, NONE), no_alternative(gates))
        after = slots.write(after, states)
        leaving = Leaving(
            states=in_one_row(after),
            happens=room[first] < 0,
            others=in_one_row(others),
            worst=slots.site[first],
            psi=in_one_row(slots.write(t.gain * there.least, no_psi)),
        )
        return room[first], leaving

    def search() -> tuple[Scalar, Leaving]:
        unknown = jnp.full_like(before, jnp.nan)
        looked_at = needed & any_of(gates.sliding) & ~surely
        at_end = jnp.where(looked_at, unknown, 0.0)
        bracket = Bracket(jnp.zeros_like(before), before, unknown, at_end)
        time, leaving, start = first_time(room_at, bracket, none, _DIGITS)
        # To have let it go as Ψ passed 0 would have come to the same.
        no_matter = (leaving.others == SLIDING) & (
            leaving.missed(start, time) <= trial.tolerance
        )
        others = jnp.where(no_matter, NONE, leaving.others)
        return time, eqx.tree_at(lambda found: found.others, leaving, others)

    # Where no signal is below its multiplier, Ψ is no sum of negative parts.
    end, position = trial.smooth.evaluation, trial.smooth.end.position
    signals = through_gates(flow.point(position), end.signal)
    near = near_kinks(flow, position, gates, end.z)

    def right(near: Array, slides: Array, c: Array, nu: Array) -> Array:
        held = jnp.where(slides, nu, 0.0)
        return jnp.all(~(near | slides) | (held >= 0) & (c >= held))

    all_right = jnp.stack(per_layer(right, near, gates.sliding, signals, end.nu))
    surely = (before == trial.size) & jnp.all(all_right)
    return jax.lax.cond(surely, lambda: (before, none), search)


def _decided(
    trial: TrialStep,
    position: Any,
    crossed: Mask,
    leaving: Leaving,
    needed: Bool[Array, ""],
) -> NextRegime:
    """The regime in which the flow goes on where sites have come to their kinks or are let
    go."""
    gates = trial.gates
    certain = either(gates.sliding, crossed)
    slots, states, t = _blown_up(trial, position, certain)
    reached = slots.read(crossed)
    left = slots.read(in_layers(leaving.states, states))
    stacked = jnp.any((t.passed != 0) & (reached[:, None] | reached[None, :]))

    def propose(before: KinkRegime) -> FirstProposal:
        state = before.state
        flipped = jnp.where(reached, jnp.where(state == ON, OFF, ON), state)
        proposal = jnp.where(leaving.happens, left, flipped)
        let_go = leaving.happens & (left != state)
        away = jnp.where(let_go, jnp.where(left == ON, _ON_ITS_WAY, -_ON_ITS_WAY), 0.0)
        left_at = jnp.where(reached, 0.0, slots.read(trial.left_at))
        offset = offset_of(t, before, left_at + away)
        return FirstProposal(proposal, offset, stacked)

    found = decide(t, slots.read(states), propose, needed)
    states = slots.write(found.state, states)
    chosen = slots.mask(t.present, gates.on)
    others = in_layers(leaving.others, states)
    unknown = found.others != NONE
    others = slots.write(jnp.where(unknown, found.others, slots.read(others)), others)
    after = GateState(
        per_layer(lambda s: s == ON, states),
        per_layer(lambda s: s == SLIDING, states),
        either(gates.frozen, chosen),
    )
    return NextRegime(
        after,
        found.verified,
        others,
        slots.write(found.left_at, trial.left_at),
        ~slots.overflow,
    )


def _blown_up(
    trial: TrialStep, position: Any, certain: Mask
) -> tuple[Slots, States, TangentNetwork]:
    """The places of the sites at kinks, the states of all, and the network blown up
    there."""
    flow, gates = trial.flow, trial.gates
    z = preactivations(flow, position, gates)
    near = near_kinks(flow, position, gates, z)
    states = states_of(standing(gates, z), gates.sliding)
    # Where a gate does not matter enough to be followed, what only rounding moves is off.
    resting = without(near, gates.frozen)
    states = per_layer(lambda r, s: jnp.where(r, OFF, s), resting, states)
    slots = places_for(certain, near, gates.frozen, trial.places)
    surely = slots.read(certain)
    t = tangent_network(flow, position, gates, slots, surely, trial.least_jump)
    # What does not matter stays as it is.
    decided_on = slots.present & (t.present | surely)
    slots = eqx.tree_at(lambda s: s.present, slots, decided_on)
    return slots, states, t


def places_for(certain: Mask, near: Mask, matters: Mask, places: int) -> Slots:
    """Places for certain sites, and for those near their kinks of as many samples as there
    is room for, those of certain sites first; with `overflow` where one that matters goes
    without."""
    beside, others = samples_of(certain), without(near, certain)
    wanted = jnp.sum(jnp.stack([jnp.sum(m, axis=1) for m in others]), axis=0)
    order = jnp.argsort(~beside, stable=True)
    room = (places - count(certain)).astype(wanted.dtype)
    fit = jnp.cumsum(wanted[order]) <= room
    fits = jnp.zeros_like(beside).at[order].set(fit)
    chosen = per_layer(lambda c, m: c | (m & fits[:, None]), certain, others)
    slots = slots_of(chosen, places)
    left_out = per_layer(lambda m, f: m & f & ~fits[:, None], others, matters)
    overflow = slots.overflow | any_of(left_out)
    return eqx.tree_at(lambda s: s.overflow, slots, overflow)
