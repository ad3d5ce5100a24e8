"""A step cut at its first event, which is then decided on by itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..flows import State
from ._gates import (
    GateState,
    flipped,
    nowhere,
    per_layer,
    preactivations,
)
from ._settle import settle
from ._sliding import constant
from ._span import Looks, Outcome, Span


# So few events are taken one by one rather than to try a smaller step.
FEW = 8
# Field evaluations of looking for an event by forward passes
_SEARCH_COST = 5.0


def localise(
    span: Span,
    looks: Looks,
    corrected: Outcome,
    insist: Bool[Array, ""],
    loop_kind: str,
) -> Outcome:
    """The step cut at its first event, where that gets further than a smaller step would,
    or where one insists.

    The event is found on the dense output, so that the method keeps its order. The
    velocities of z on both sides of a kink decide: the gate flips, or, where both lead
    back, slides.
    """
    decide = constant(span)
    reached, let_go = decide.first_release(decide.first_crossing(constant(looks)))
    further = reached >= 0.5 * corrected.factor * span.size
    worthwhile = (reached < span.size) & (further | insist)
    return jax.lax.cond(
        worthwhile,
        lambda: _cut(span, decide, reached, let_go, corrected, loop_kind),
        lambda: corrected,
    )


def _cut(
    span: Span,
    decide: Span,
    reached: Array,
    let_go: GateState,
    corrected: Outcome,
    loop_kind: str,
) -> Outcome:
    flow, gates = span.flow, span.gates
    found = decide.leg.at(reached).position
    crossed = decide.crossed(preactivations(flow, found, gates))
    time = span.with_derivative(reached, crossed)
    inside = span.leg.at(time)

    end = settle(
        flow,
        inside.position,
        flipped(let_go, crossed),
        span.lines,
        gates.sliding,
        span.leg.motion,
        span.allowance,
        loop_kind,
        crossed=crossed,
        stranded=span.stranded,
        one_by_one=True,
    )
    return Outcome(
        accepted=jnp.asarray(True),
        size=time,
        factor=jnp.full_like(span.size, jnp.inf),
        state=State(end.position, inside.dissipated),
        gates=end.gates,
        lines=end.lines,
        motion=end.motion,
        since=per_layer(jnp.zeros_like, span.first.z),
        mean_since=jnp.zeros_like(span.size),
        crossed=crossed,
        stranded=nowhere(gates),
        cost=corrected.cost + 1 + end.cost + _SEARCH_COST,
    )
