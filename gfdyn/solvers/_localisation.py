"""A step cut at its first event, which is then decided on by itself."""

import jax.numpy as jnp

from .._types import Scalar
from ..flows import State
from ..kinks import GateState, constant, flipped, no_alternative, nowhere, preactivations
from ..nets import per_layer
from ._settle import Arrival, Settled
from ._span import Looks, Outcome, Span


# Field evaluations of looking for an event by forward passes
_SEARCH_COST = 5.0


def first_event(span: Span, looks: Looks) -> tuple[Scalar, GateState]:
    """The time of the first event of a step, its size if there is none, and the gates that
    are tried from then on: without those that let go."""
    return span.first_release(span.first_crossing(looks))


def cut(span: Span, time: Scalar, gates: GateState) -> Arrival:
    """The step cut at its first event.

    It is found on the dense output, so that the method keeps its order. The velocities of z
    on both sides of a kink decide: the gate flips, or, where both lead back, slides.
    """
    fixed = constant(span)
    there = fixed.leg.at(time).position
    crossed = fixed.crossed(preactivations(span.flow, there, span.gates))
    time = span.with_derivative(time, crossed)
    return Arrival(
        span.leg.at(time),
        time,
        flipped(gates, crossed),
        crossed,
        catchable=crossed,
        whole=jnp.asarray(False),
    )


def outcome_of_cut(span: Span, arrival: Arrival, settled: Settled) -> Outcome:
    """What became of the step, cut at an event and settled there."""
    return Outcome(
        accepted=jnp.asarray(True),
        size=arrival.time,
        factor=jnp.full_like(span.size, jnp.inf),
        state=State(settled.position, arrival.state.dissipated),
        gates=settled.gates,
        lines=settled.lines,
        motion=settled.motion,
        since=per_layer(jnp.zeros_like, span.first.z),
        mean_since=jnp.zeros_like(span.size),
        crossed=arrival.crossed,
        stranded=nowhere(span.gates),
        cost=1 + settled.cost + _SEARCH_COST,
        others=no_alternative(settled.gates),
    )
