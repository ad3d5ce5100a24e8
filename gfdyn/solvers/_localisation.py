"""A step cut at its first event, which is then decided on by itself."""

import jax.numpy as jnp

from .._by_layer import per_layer
from .._types import Scalar
from ..flows import State
from ..kinks import GateState, constant, flipped, no_alternative, nowhere, preactivations
from ._resolution import Proposal, Resolution
from ._trial_step import MarginSamples, Outcome, TrialStep


# Field evaluations of looking for an event by forward passes
_SEARCH_COST = 5.0


def first_event(
    trial: TrialStep, margin_samples: MarginSamples
) -> tuple[Scalar, GateState]:
    """The time of the first event of a step, its size if there is none, and the gates that
    are tried from then on: without those that let go."""
    return trial.first_release(trial.first_crossing(margin_samples))


def cut(trial: TrialStep, time: Scalar, gates: GateState) -> Proposal:
    """The step cut at its first event.

    It is found on the dense output, so that the method keeps its order. The velocities of z
    on both sides of a kink decide: the gate flips, or, where both lead back, slides.
    """
    fixed = constant(trial)
    there = fixed.smooth.at(time).position
    crossed = fixed.crossed(preactivations(trial.flow, there, trial.gates))
    time = trial.with_derivative(time, crossed)
    return Proposal(
        trial.smooth.at(time),
        time,
        flipped(gates, crossed),
        crossed,
        catchable=crossed,
        whole=jnp.asarray(False),
    )


def outcome_of_cut(trial: TrialStep, proposal: Proposal, resolution: Resolution) -> Outcome:
    """What became of the step, cut at an event and resolved there."""
    return Outcome(
        accepted=jnp.asarray(True),
        size=proposal.time,
        factor=jnp.full_like(trial.size, jnp.inf),
        state=State(resolution.position, proposal.state.dissipated),
        gates=resolution.gates,
        shared=resolution.shared,
        evaluation=resolution.evaluation,
        time_left=per_layer(jnp.zeros_like, trial.first.z),
        mean_time_left=jnp.zeros_like(trial.size),
        crossed=proposal.crossed,
        on_wrong_side=nowhere(trial.gates),
        cost=1 + resolution.cost + _SEARCH_COST,
        others=no_alternative(resolution.gates),
    )
