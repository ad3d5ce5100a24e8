"""The first event of a step, and the regime from there: sites that come to their kinks, or
are let go."""

from functools import partial

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
    Decision,
    FirstProposal,
    GateState,
    KinkRegime,
    Slots,
    States,
    TangentNetwork,
    any_of,
    back_along,
    decide,
    either,
    near_kinks,
    no_alternative,
    nowhere,
    offset_of,
    preactivations,
    slots_of,
    standing,
    states_of,
    through_gates,
    without,
)
from ._blown_up import blown_up
from ._first_time import Bracket, first_time_with_last_look
from ._trial_step import MarginSamples, TrialStep


# Where a site is let go the velocity is continuous: the error of θ is quadratic in that of
# the time, which needs little more than half of the digits.
_DIGITS = 0.6
# What is let go is on its way by this part of the largest step of descent.
_ON_ITS_WAY = 0.1


class Leaving(eqx.Module):
    """The sliding sites that are let go first: the states of all sites from then on, in one
    row, and whether any is; and where the flow is not unique, other states that would be as
    right.

    `worst` is the site that is let go before others, `room` how far it is from that, `psi`
    how much the velocity changes for each site as it is let go, negative where that lowers
    Φ; ∞ where none is.
    """

    states: Int8[Array, " sites"]
    happens: Bool[Array, ""]
    others: Int8[Array, " sites"]
    worst: Int[Array, ""]
    room: Scalar
    psi: Float[Array, " sites"]

    def missed(self, start: "Leaving", time: Scalar) -> Scalar:
        """How far θ is from where it were, had the site been let go as Ψ passed 0: by the
        line on which Ψ has come down `time` after a start; ∞ if it is not known to have."""
        before, now = start.psi[self.worst], self.psi[self.worst]
        fell = before - now
        falls = (fell > 0) & jnp.isfinite(fell)
        elapsed = -now * time / jnp.where(falls, fell, 1.0)
        return jnp.where(falls, -0.5 * now * elapsed, jnp.inf)


class Event(eqx.Module):
    """When sites come to their kinks or are let go, the state put back on its kinks, and
    the gates from then on.

    `verified` says whether these are known to be right, `others` which states are as right
    where the flow is not unique, `left_at` how far from its kink descent has left each
    site, and `fits` whether there were places for all that matter.
    """

    time: Scalar
    crossed: Mask
    leaving: Leaving
    state: State
    gates: GateState
    verified: Bool[Array, ""]
    others: States
    left_at: Sites
    fits: Bool[Array, ""]


def event_of(
    trial: TrialStep,
    margin_samples: MarginSamples,
    crosses: Bool[Array, ""],
    needed: Bool[Array, ""],
) -> Event:
    """The first event of a step in which sites cross, or others slide; one in which none is
    let go and none crosses if there is none.

    That at which a site is let go is looked for before the first crossing, and in a last
    look at the time found the regime from there is decided on: both take the law at kinks,
    which the program holds once.
    """
    none = _no_event(trial)
    before = trial.first_crossing(margin_samples)
    unknown = jnp.full_like(before, jnp.nan)
    searched = needed & any_of(trial.gates.sliding) & ~(~crosses & _surely_held(trial))
    at_end = jnp.where(searched, unknown, 0.0)
    bracket = Bracket(jnp.zeros_like(before), before, unknown, at_end)

    def look(time: Scalar, known: Event, last: Bool[Array, ""]) -> tuple[Scalar, Event]:
        seen = _looked_at(trial, time, known.leaving, last)
        return seen.leaving.room, seen

    time, event, start = first_time_with_last_look(look, bracket, none, crosses, _DIGITS)
    leaving, others = event.leaving, in_one_row(event.others)
    # To have let it go as Ψ passed 0 would have come to the same.
    missed = leaving.missed(start.leaving, time)
    no_matter = (leaving.others == SLIDING) & (missed <= trial.tolerance)
    else_left = jnp.where(no_matter, NONE, leaving.others)
    others = in_layers(jnp.where(others == NONE, else_left, others), event.others)
    return eqx.tree_at(lambda e: e.others, event, others)


def landed(
    trial: TrialStep, time: Scalar, crossed: Mask, leaving: Leaving
) -> tuple[State, Bool[Array, ""]]:
    """Where the step has led by then, put back on the kinks that slide or were met; and
    whether there were more of these than places."""
    flow, gates = trial.flow, trial.gates
    arrived = trial.smooth.at(time)
    kept = either(gates.sliding, crossed)
    closed = GateState(without(gates.on, kept), kept, either(gates.frozen, kept))
    slots = slots_of(kept, trial.places)
    left_on = slots.read(in_layers(leaving.states, gates.on)) == ON
    opens = (leaving.happens & left_on) | slots.read(without(crossed, gates.on))
    position = flow.retract(back_along(flow, arrived.position, closed, slots, opens))
    return State(position, arrived.dissipated), slots.overflow


def _no_event(trial: TrialStep) -> Event:
    """What is known where nothing was looked at."""
    gates, never = trial.gates, jnp.asarray(False)
    states = states_of(standing(gates, trial.first.z), gates.sliding)
    others, infinite = no_alternative(gates), jnp.full_like(trial.size, jnp.inf)
    row = in_one_row(others)
    leaving = Leaving(
        states=in_one_row(states),
        happens=never,
        others=row,
        worst=jnp.asarray(0),
        room=infinite,
        psi=jnp.full(row.shape, infinite),
    )
    return Event(
        time=trial.size,
        crossed=nowhere(gates),
        leaving=leaving,
        state=trial.start,
        gates=gates,
        verified=never,
        others=others,
        left_at=trial.left_at,
        fits=never,
    )


def _surely_held(trial: TrialStep) -> Bool[Array, ""]:
    """Whether no signal is below its multiplier at the end of the step: then Ψ is no sum of
    negative parts."""
    flow, gates = trial.flow, trial.gates
    end, position = trial.smooth.evaluation, trial.smooth.end.position
    signals = through_gates(flow.point(position), end.signal)
    near = near_kinks(flow, position, gates, end.z)

    def right(near: Array, slides: Array, c: Array, nu: Array) -> Array:
        held = jnp.where(slides, nu, 0.0)
        return jnp.all(~(near | slides) | (held >= 0) & (c >= held))

    return jnp.all(jnp.stack(per_layer(right, near, gates.sliding, signals, end.nu)))


def _looked_at(
    trial: TrialStep, time: Scalar, known: Leaving, last: Bool[Array, ""]
) -> Event:
    """Which sliding sites are let go at a time; or, in the last look, what the flow goes on
    in as these are, or others cross."""
    flow, gates = trial.flow, trial.gates
    arrived = trial.smooth.at(time)
    margins = trial.margins(preactivations(flow, arrived.position, gates))
    crossed = per_layer(lambda m: (m < 0) & last & ~known.happens, margins)
    state, crowded = jax.lax.cond(
        last,
        lambda: landed(trial, time, crossed, known),
        lambda: (arrived, jnp.asarray(False)),
    )
    certain = either(gates.sliding, crossed)
    slots, states, t = blown_up(trial, state.position, certain)
    reached = slots.read(crossed)
    left = slots.read(in_layers(known.states, states))
    left_at = jnp.where(reached, 0.0, slots.read(trial.left_at))
    stacked = jnp.any((t.passed != 0) & (reached[:, None] | reached[None, :]))

    def propose(before: KinkRegime) -> FirstProposal:
        state = before.state
        flipped = jnp.where(reached, jnp.where(state == ON, OFF, ON), state)
        proposal = jnp.where(known.happens, left, flipped)
        leaving = _leaving(trial, slots, states, t, before)
        return FirstProposal(proposal, stacked, leaving)

    def stands(before: KinkRegime) -> Float[Array, " slots"]:
        let_go = last & known.happens & (left != before.state)
        away = jnp.where(let_go, jnp.where(left == ON, _ON_ITS_WAY, -_ON_ITS_WAY), 0.0)
        return offset_of(t, before, left_at + away)

    found = decide(t, slots.read(states), propose, stands, last, known)
    return Event(
        time=time,
        crossed=crossed,
        leaving=jax.tree.map(partial(jnp.where, last), known, found.seen),
        state=state,
        gates=_gates_from(trial, slots, t, states, found),
        verified=found.verified,
        others=slots.write(found.others, no_alternative(gates)),
        left_at=slots.write(found.left_at, trial.left_at),
        fits=~slots.overflow & ~crowded,
    )


def _leaving(
    trial: TrialStep,
    slots: Slots,
    states: States,
    t: TangentNetwork,
    there: KinkRegime,
) -> Leaving:
    """The sliding sites that are let go next in a regime."""
    none, room, after = no_alternative(trial.gates), there.room, there.let_go
    first = jnp.argmin(room)
    # Where it swayed, Ψ is not 0 as it leaves.
    swayed = room[first] < -there.psi_rounding[first]
    opposite = jnp.where(after == ON, OFF, ON)
    other = jnp.where(there.repels[first], opposite, jnp.where(swayed, SLIDING, NONE))
    at_kink = there.shares[:, first] != 0
    no_psi = per_layer(lambda n: jnp.full(n.shape, jnp.inf, room.dtype), none)
    return Leaving(
        states=in_one_row(slots.write(after, states)),
        happens=room[first] < 0,
        others=in_one_row(slots.write(jnp.where(at_kink, other, NONE), none)),
        worst=slots.site[first],
        room=room[first],
        psi=in_one_row(slots.write(t.gain * there.least, no_psi)),
    )


def _gates_from(
    trial: TrialStep, slots: Slots, t: TangentNetwork, states: States, found: Decision
) -> GateState:
    """The gates as was decided."""
    states = slots.write(found.state, states)
    chosen = slots.mask(t.present, trial.gates.on)
    return GateState(
        per_layer(lambda s: s == ON, states),
        per_layer(lambda s: s == SLIDING, states),
        either(trial.gates.frozen, chosen),
    )
