"""A step cut at its first event, which is then decided on by itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..flows import State
from ._gates import (
    GateState,
    Mask,
    any_of,
    captured,
    either,
    flipped,
    nowhere,
    per_layer,
    preactivations,
    returning,
)
from ._settle import settle
from ._sliding import back_to_kinks, constant, motion, z_rates
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
    flow, lines, gates = span.flow, span.lines, span.gates
    found = decide.leg.at(reached).position
    crossed = decide.crossed(decide.margins(preactivations(flow, found, gates)))
    time = span.with_derivative(reached, crossed)
    inside = span.leg.at(time)

    # Back on the kinks under the old gates, to decide on the new ones.
    position, cost = back_to_kinks(flow, found, gates, lines, span.allowance.position)
    position = flow.retract(position)
    beyond = flipped(let_go, crossed)

    def caught() -> Mask:
        # This side led to the kink; it attracts if the side beyond leads back.
        nu, allowed = decide.leg.motion.nu, span.allowance.gradient
        there = motion(flow, position, beyond, lines, nu, allowed)
        rates = z_rates(flow, position, beyond, there.velocity)
        return lines.with_sharers(returning(gates, crossed, rates))

    slides = constant(jax.lax.cond(any_of(crossed), caught, lambda: nowhere(gates)))
    # A stranded site that only passes its kink, back to where its gate is, is put on it.
    stranded = per_layer(jnp.logical_and, span.stranded, slides)
    end = settle(
        flow,
        inside.position,
        captured(beyond, slides),
        lines,
        either(gates.sliding, stranded),
        span.leg.motion,
        span.allowance,
        loop_kind,
        one_by_one=True,
    )
    return Outcome(
        accepted=jnp.asarray(True),
        size=time,
        factor=jnp.full_like(span.size, jnp.inf),
        state=State(end.position, inside.dissipated),
        gates=end.gates,
        motion=end.motion,
        since=per_layer(jnp.zeros_like, span.first.z),
        mean_since=jnp.zeros_like(span.size),
        crossed=crossed,
        stranded=nowhere(gates),
        cost=corrected.cost + cost + 1 + end.cost + _SEARCH_COST,
    )
