"""Trajectories that go on, and the parts of one put together."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._tracing import is_concrete, is_single
from ..flows import AbstractFlow
from ._begin import SolveState
from ._course import joined
from ._kink_log import Kinks, map_events
from ._trajectory import Trajectory


def going_on(
    flow: AbstractFlow, traj: Trajectory, t0: ArrayLike
) -> tuple[SolveState, Array]:
    """Where a trajectory stands, and its time there.

    Raises:
        ValueError: on another flow, or a start time.
        TypeError: on a trajectory of a descent, or that carries no state.
    """
    if traj.is_descent:
        raise TypeError(
            "net is a trajectory of gf.descend, which goes on by gf.descend(problem, "
            "traj.checkpoint, ...); for the flow from its end give traj.final."
        )
    if not isinstance(traj.checkpoint, SolveState):
        raise TypeError(
            "net is a trajectory that carries no state to go on from; start anew from "
            "traj.final."
        )
    ours, theirs = jax.tree.leaves(flow), jax.tree.leaves(traj.flow)
    same = jax.tree.structure(flow) == jax.tree.structure(traj.flow)
    if same and is_concrete(*ours, *theirs):
        same = bool(eqx.tree_equal(flow, traj.flow))
    if not same:
        raise ValueError(
            "net is a trajectory of another flow (its problem, clock or penalty differ); "
            "for this one start from traj.final."
        )
    if is_concrete(t0) and t0 != 0:
        raise ValueError(
            f"t0={t0}, but the trajectory goes on from its own final_time; leave t0 out."
        )
    return traj.checkpoint, traj.final_time


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """One trajectory of parts each of which goes on from the one before.

    Its saves, records and events are those of the parts, its counts their sums; its
    certificate is that of the last part, which speaks of the whole. A save with which a
    part begins where the one before has its last is left out.

    Args:
        trajectories: the parts, one or more, the earliest first.

    Raises:
        TypeError: unless all are trajectories.
        ValueError: on batches, on parts that do not go on from each other or were asked
            for different records.
    """
    parts = list(trajectories)
    if not parts or not all(isinstance(part, Trajectory) for part in parts):
        raise TypeError(
            f"trajectories={trajectories!r} must be trajectories in one list, the earliest "
            "first."
        )
    for i, part in enumerate(parts):
        _check_part(i, part, parts[i - 1] if i else None)
    return functools.reduce(_join, parts)


def _join(first: Trajectory, then: Trajectory) -> Trajectory:
    """The two as one."""
    meet = len(first.ts) and len(then.ts) and first.ts[-1] == then.ts[0]

    def rows(a: Any, b: Any) -> Any:
        """One after the other, a save at which they meet once."""
        return jax.tree.map(lambda p, q: jnp.concatenate([p, q[int(meet) :]]), a, b)

    gap = [] if meet or not (len(first.ts) and len(then.ts)) else [_gap(first, then)]
    return dataclasses.replace(
        then,
        ts=rows(first.ts, then.ts),
        positions=rows(first.positions, then.positions),
        log_time=rows(first.log_time, then.log_time),
        log_interval=jnp.concatenate([first.log_interval, *gap, then.log_interval]),
        records=rows(first.records, then.records),
        initial_risk=first.initial_risk,
        initial_time=first.initial_time,
        stats=jax.tree.map(jnp.add, first.stats, then.stats),
        kinks=None if then.kinks is None else _joined_kinks(first, then, rows),
        course=joined(first.course, then.course),
    )


def _gap(first: Trajectory, then: Trajectory) -> Float[Array, " 1"]:
    """log of the physical time between the last save of one and the first of the next."""
    before, after = first.log_time[-1:], then.log_time[:1]
    return after + jnp.log(-jnp.expm1(before - after))


def _joined_kinks(
    first: Trajectory, then: Trajectory, rows: Callable[[Any, Any], Any]
) -> Kinks:
    """The events of both, the gates at their saves, the part of the whole time slid."""
    a, b = first.kinks, then.kinks
    assert a is not None and b is not None
    durations = [p.final_time - p.initial_time for p in (first, then)]
    total = sum(durations)
    weights = [d / jnp.where(total > 0, total, 1.0) for d in durations]
    return dataclasses.replace(
        map_events(lambda p, q: jnp.concatenate([p, q]), a, b),
        num_lost=a.num_lost + b.num_lost,
        gates=rows(a.gates, b.gates),
        sliding=rows(a.sliding, b.sliding),
        sliding_fraction=tuple(
            weights[0] * p + weights[1] * q
            for p, q in zip(a.sliding_fraction, b.sliding_fraction, strict=True)
        ),
    )


def _check_part(i: int, part: Trajectory, before: Trajectory | None) -> None:
    if not is_single(part.final_time):
        raise ValueError(
            f"trajectories[{i}] is a batch, or traced; join lanes one by one, or under "
            "jax.jit join what you need of them with jnp.concatenate."
        )
    if before is None:
        return
    if part.initial_time != before.final_time:
        raise ValueError(
            f"trajectories[{i}] does not go on from the one before, which ended at "
            f"{part.flow.clock_name} = {float(before.final_time):.6g}; solve it as "
            "gf.solve(flow, before, t1)."
        )
    ours, theirs = sorted(part.records), sorted(before.records)
    if ours != theirs or (part.kinks is None) != (before.kinks is None):
        raise ValueError(
            f"trajectories[{i}] has records {ours}, the one before {theirs}; ask both for "
            "the same record= and kinks=."
        )
