"""A step cut at its first event, at which the next regime is decided on."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._by_layer import per_layer
from .._types import Scalar
from ..flows import State
from ..kinks import (
    any_of,
    back_along,
    constant,
    evaluate_along,
    no_alternative,
    nowhere,
    slots_of,
)
from ._first_event import Event, event_of, landed
from ._trial_step import MarginSamples, Outcome, TrialStep


def to_first_event(trial: TrialStep, accepted: Bool[Array, ""]) -> Outcome:
    """The step up to its first event, or whole if there is none, if its smooth part is
    `accepted`; and the regime from there.

    Events are found on the dense output, so that the method keeps its order.
    """
    margin_samples = trial.margin_samples()
    untouched = step_without_events(trial)
    crosses = any_of(per_layer(lambda m: jnp.any(m[1:] < 0, axis=0), margin_samples))
    needed = accepted & (crosses | any_of(trial.gates.sliding))
    return jax.lax.cond(
        needed,
        lambda: _at_event(trial, margin_samples, crosses, needed),
        lambda: untouched,
    )


def _at_event(
    trial: TrialStep,
    margin_samples: MarginSamples,
    crosses: Bool[Array, ""],
    needed: Bool[Array, ""],
) -> Outcome:
    """The step up to its first event, or whole if there is none.

    Under `vmap` it is taken in all lanes, whose loops end at once where it is not `needed`.
    """
    samples = constant(margin_samples)
    event = event_of(constant(trial), samples, crosses & needed, needed)
    return jax.lax.cond(
        needed & (any_of(event.crossed) | event.leaving.happens),
        lambda: _cut(trial, event),
        lambda: _put_back(trial),
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


def _put_back(trial: TrialStep) -> Outcome:
    """A step that meets no event, its end put back on the kinks along which it slid: what a
    step leaves them by, be it rounding, adds up."""
    whole, fixed = step_without_events(trial), constant(trial)
    flow, sliding, end = fixed.flow, fixed.gates.sliding, constant(whole.state.position)

    def way() -> Any:
        slots = slots_of(sliding, trial.places)
        opens = jnp.zeros_like(slots.present)
        there = flow.retract(back_along(flow, end, fixed.gates, slots, opens))
        return jax.tree.map(jnp.subtract, there, end)

    none = jax.tree.map(jnp.zeros_like, end)
    moved = jax.lax.cond(any_of(sliding), way, lambda: none)
    position = jax.tree.map(jnp.add, whole.state.position, moved)
    return eqx.tree_at(lambda o: o.state.position, whole, position)


def _cut(trial: TrialStep, event: Event) -> Outcome:
    """The step up to an event, put back on its kinks, and the regime from there."""
    flow, gates = trial.flow, trial.gates
    time, state = _as_found(trial, event=constant(event))
    sliding = slots_of(event.gates.sliding, trial.places)
    here = evaluate_along(flow, state.position, event.gates, sliding)
    fits = event.fits & ~sliding.overflow
    return Outcome(
        accepted=fits,
        size=time,
        factor=jnp.full_like(trial.size, jnp.inf),
        state=state,
        gates=event.gates,
        shared=trial.shared,
        evaluation=here,
        time_left=per_layer(jnp.zeros_like, trial.first.z),
        mean_time_left=jnp.zeros_like(trial.size),
        # Each is decided on for good.
        crossed=nowhere(gates),
        on_wrong_side=nowhere(gates),
        cost=jnp.zeros_like(trial.size) + 8,
        others=event.others,
        verified=event.verified,
        left_at=event.left_at,
        fits=fits,
    )


@eqx.filter_custom_jvp
def _as_found(trial: TrialStep, *, event: Event) -> tuple[Scalar, State]:
    """When and where the event is; with the derivative of a landing there."""
    return event.time, event.state


@_as_found.def_jvp
def _as_found_jvp(primals: Any, tangents: Any, *, event: Event) -> Any:
    def landing(trial: TrialStep) -> tuple[Scalar, State]:
        time = trial.with_derivative(event.time, event.crossed)
        return time, landed(trial, time, event.crossed, event.leaving)[0]

    _, change = eqx.filter_jvp(landing, primals, tangents)
    return (event.time, event.state), change
