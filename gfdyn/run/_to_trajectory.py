"""What a run has become, as a trajectory."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._tracing import is_single
from ..stopping import name_of
from ._begin import state_of
from ._integrate import finish
from ._kink_log import Kinks, read_log, written_rows
from ._rows import first_rows
from ._saving import Saves
from ._task import Counters, Progress, Task
from ._trajectory import Measure, Trajectory, hashable, measure


def to_trajectory(task: Task, state: Progress, record: Mapping[str, Measure]) -> Trajectory:
    """The trajectory of a finished solve, with its records."""
    saves, course, certificate = finish(task, state)
    kinks = _read_kinks(task, state, saves)
    intervals = saves.log_interval[1:]
    if is_single(saves.count):
        count = int(saves.count)
        saves = _first(saves, count)
        intervals = first_rows(intervals, max(count - 1, 0))
        if kinks is not None:
            kinks = written_rows(kinks, count)
        points = state.course.length(state.counters.accepted)
        course = first_rows(course, int(points))
    records = {
        name: measure(hashable(function), task.flow, saves.position)
        for name, function in record.items()
    }
    return Trajectory(
        flow=task.flow,
        ts=saves.time,
        positions=saves.position,
        log_time=saves.log_time,
        log_interval=intervals,
        records=records,
        initial_risk=state.ledger.initial_risk,
        final_risk=state.ledger.risk,
        final_time=state.time,
        final_log_time=state.log_time,
        final_position=state.state.position,
        stats=_stats(state.counters),
        result=state.result,
        stop_index=state.met,
        certificate=certificate,
        stop_names=tuple(map(name_of, task.stop)),
        kinks=kinks,
        checkpoint=state_of(state),
        initial_time=task.t0,
        solver=type(task.solver).__name__,
        rtol=task.solver.tolerance,
        course=course,
    )


def _read_kinks(task: Task, state: Progress, saves: Saves) -> Kinks | None:
    """What the solve logged at kinks, if it did."""
    if state.log is None:
        return None
    return read_log(
        state.log,
        task.flow,
        state.state.position,
        saves.position,
        saves.gates,
        duration=state.time - task.t0,
        capacity=jnp.asarray(task.num_kinks, jnp.int32),
    )


def _first(saves: Saves, count: int) -> Saves:
    """The first so many rows."""
    where = lambda s: (s.time, s.position, s.log_time)  # noqa: E731
    return eqx.tree_at(where, saves, first_rows(where(saves), count))


def _stats(counters: Counters) -> dict[str, Array]:
    return {
        "num_steps": counters.accepted,
        "num_rejected": counters.rejected,
        "num_field_evaluations": counters.field_evaluations,
        "num_crossings": counters.events.crossings,
        "num_slides": counters.events.slides,
        "num_releases": counters.events.releases,
    }
