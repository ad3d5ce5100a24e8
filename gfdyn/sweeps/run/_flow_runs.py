"""Flows as the sweep computes them: begun, advanced in portions, concluded."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ... import stopping
from ...flows import AbstractFlow, EscapeFlow, GradientFlow
from ...nets import AbstractNet
from ...run import (
    AcceptedSteps,
    Measure,
    Progress,
    Task,
    Trajectory,
    advance as advance,
    begin as _begin,
    make_task,
    to_trajectory,
)
from ...solvers import AbstractSolver, Adaptive, ExactKinks
from ..spec import EscapeSettings, FlowSettings, Point, Recipe, make_net, make_problem


Start = AbstractNet


def build(point: Point, recipe: Recipe) -> tuple[Task, Start]:
    """What stays constant during the run, and where it starts."""
    net = make_net(point, recipe.dtype)
    run = point.run
    stop: list[stopping.AbstractStop] = []
    problem = make_problem(point.problem, recipe.dtype)
    flow: AbstractFlow
    if isinstance(run, EscapeSettings):
        flow, end = EscapeFlow(problem, localized=run.localized), run.tau_max
        if run.localized:
            stop.append(stopping.GradientBelow(1e-3))
        elif run.settled:
            stop.append(stopping.NextPlateau(run.settled))
    else:
        assert isinstance(run, FlowSettings)
        decay = run.weight_decay and jnp.asarray(run.weight_decay, recipe.dtype)
        flow, end = GradientFlow(problem, decay, run.clock), run.t1
    if run.risk_below:
        stop.append(stopping.RiskBelow(run.risk_below))
    rtol = point.solver.rtol
    solver: AbstractSolver = ExactKinks(rtol)
    if point.solver.name == "adaptive":
        solver = Adaptive(rtol=rtol)
    task = make_task(
        flow=flow,
        net=net,
        t1=end,
        ts=AcceptedSteps(recipe.max_saves),
        kinks=0,
        solver=solver,
        stop=stop,
        t0=0.0,
        max_steps=point.solver.max_steps,
        derivatives="forward",
    )
    return task, net


def begin(task: Task, start: Start) -> Progress:
    """The state before the first step."""
    return _begin(task, start, None)


def until(task: Task, state: Progress, recipe: Recipe) -> Int[Array, ""]:
    """How far the next portion goes: to the next multiple of `checkpoint_every`."""
    del task
    attempts = np.max(np.asarray(state.counters.accepted + state.counters.rejected))
    portions = attempts // recipe.checkpoint_every + 1
    return jnp.asarray(portions * recipe.checkpoint_every, jnp.int32)


def is_done(task: Task, state: Progress) -> bool:
    """Whether all lanes have ended."""
    del task
    return bool(np.all(np.asarray(state.done)))


def conclude(task: Task, state: Progress, records: Mapping[str, Measure]) -> Trajectory:
    """The trajectory, NaN in the rows that were not reached."""
    return to_trajectory(task, state, records)
