"""The network blown up at a point of a step, at the sites that are at their kinks there."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._by_layer import per_layer
from .._types import Mask
from ..kinks import (
    OFF,
    Slots,
    States,
    TangentNetwork,
    any_of,
    count,
    near_kinks,
    preactivations,
    samples_of,
    slots_of,
    standing,
    states_of,
    tangent_network,
    without,
)
from ._trial_step import TrialStep


def blown_up(
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
