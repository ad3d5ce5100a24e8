"""The start of a solve: at a net, or where another one ended."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._types import Count, Scalar
from ..flows import State
from ..kinks import live_gates
from ..nets import AbstractNet
from ..solvers import no_events
from ._certificate import Ledger, open_ledger
from ._compiling import tracing
from ._course import course_from, point_of
from ._kink_log import open_log
from ._programs import compiled
from ._results import RESULTS, choose
from ._saving import AcceptedSteps, open_saves, write
from ._task import Counters, Progress, Task


class SolveState(eqx.Module):
    """Where a solve stands: `gf.solve` goes on from that of a trajectory.

    To the last bit as one long solve, where the first was ended by `max_steps`, by hand or
    by a stop that ends with its step; otherwise a step has been cut short, at its t1 or
    where a condition was met.
    """

    time: Scalar
    state: State
    log_time: Scalar
    log_time_rate: Scalar
    # The next attempt. Of the solver's state the leaves alone, which files hold.
    size: Scalar
    solver_leaves: tuple[Array, ...]
    growth: Scalar
    ledger: Ledger
    choices: Count


def _position_of(start: AbstractNet | SolveState) -> Any:
    return start.state.position if isinstance(start, SolveState) else start


def state_of(progress: Progress) -> SolveState:
    """What a solve goes on from."""
    return SolveState(
        time=progress.time,
        state=progress.state,
        log_time=progress.log_time,
        log_time_rate=progress.log_time_rate,
        size=progress.size,
        solver_leaves=tuple(jax.tree.leaves(progress.solver_state)),
        growth=progress.growth,
        ledger=progress.ledger,
        choices=progress.counters.choices,
    )


@compiled(_position_of)
def begin(task: Task, start: AbstractNet | SolveState, dt0: Scalar | None) -> Progress:
    """The state of the loop before its first step, of size `dt0` unless that is None.

    Raises:
        ValueError: on a state that another solver left.
    """
    tracing()
    with jax.default_matmul_precision("highest"):
        if isinstance(start, SolveState):
            at, solver_state = _gone_on(task, start, dt0)
        else:
            at, solver_state = _first(task, start, dt0)
        return _opened(task, at, solver_state)


def _first(task: Task, net: AbstractNet, dt0: Scalar | None) -> tuple[SolveState, Any]:
    """Where a solve from a net begins, and the state of its solver."""
    flow, dtype = task.flow, task.t0.dtype
    position = flow.start(net)
    state = State(position, jnp.zeros((), dtype))
    solver_state, size = task.solver.init(flow, state, dt0)
    # Python's own numbers would become arrays, and the next portion compile again.
    solver_state = jax.tree.map(_as_array, solver_state)
    at = SolveState(
        time=task.t0,
        state=state,
        log_time=jnp.asarray(-jnp.inf, dtype),
        log_time_rate=flow.log_time_rate(position),
        size=size,
        solver_leaves=tuple(jax.tree.leaves(solver_state)),
        growth=jnp.zeros((), dtype),
        ledger=open_ledger(flow, position),
        choices=jnp.asarray(0, jnp.int32),
    )
    return at, solver_state


def _gone_on(task: Task, at: SolveState, dt0: Scalar | None) -> tuple[SolveState, Any]:
    """Where a solve that goes on begins, and the state of its solver."""

    def fresh() -> Any:
        return jax.tree.map(_as_array, task.solver.init(task.flow, at.state, at.size)[0])

    like = eqx.filter_eval_shape(fresh)
    found = [(leaf.shape, leaf.dtype) for leaf in at.solver_leaves]
    if found != [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(like)]:
        raise ValueError(
            "the trajectory was integrated by another solver; give that again, or start "
            "anew from traj.final."
        )
    solver_state = jax.tree.unflatten(jax.tree.structure(like), at.solver_leaves)
    if dt0 is not None:
        at = eqx.tree_at(lambda s: s.size, at, dt0)
    return at, solver_state


def _opened(task: Task, at: SolveState, solver_state: Any) -> Progress:
    """The state of the loop, with empty stores but for a save that is due at once."""
    flow, dtype = task.flow, task.t0.dtype
    position = at.state.position
    zero = jnp.asarray(0, jnp.int32)
    gates, log = None, None
    if task.num_kinks:
        gates = task.solver.gates_of(solver_state)
        if gates is None:
            gates = live_gates(flow, position)
        log = open_log(flow, position, task.num_kinks, dtype)
    if isinstance(task.ts, AcceptedSteps):
        saves = open_saves(position, gates, task.ts.capacity, dtype)
        write_now = jnp.asarray(True)
    else:
        saves = open_saves(position, gates, len(task.ts.times), dtype)
        write_now = task.ts.times[0] <= task.t0
    no_interval = jnp.asarray(-jnp.inf, dtype)
    written = write(saves, task.t0, position, gates, at.log_time, no_interval)
    saves = jax.tree.map(lambda a, b: jnp.where(write_now, a, b), written, saves)
    # At θ = 0 the norm has no logarithm.
    finite = jnp.isfinite(at.ledger.energy) & (at.ledger.largest_log_norm < jnp.inf)
    nothing_to_do = task.t1 <= task.t0
    log_norm = flow.log_norm(position)
    here = point_of(task.t0, at.log_time, at.ledger.risk, log_norm)
    valid = _is_valid(task)
    return Progress(
        time=task.t0,
        state=at.state,
        log_time=at.log_time,
        log_time_rate=at.log_time_rate,
        size=at.size,
        stopping=jnp.asarray(False),
        solver_state=solver_state,
        growth=at.growth,
        ledger=at.ledger,
        stop_memories=tuple(condition.init(dtype) for condition in task.stop),
        met=jnp.asarray(-1, jnp.int32),
        counters=Counters(zero, zero, zero, zero, zero, no_events(), at.choices),
        saves=saves,
        course=course_from(here),
        log=log,
        result=choose(
            valid,
            choose(finite, RESULTS.successful, RESULTS.nonfinite_state),
            RESULTS.invalid_numbers,
        ),
        done=~valid | ~finite | nothing_to_do,
    )


def _is_valid(task: Task) -> Bool[Array, ""]:
    """Whether times and tolerance are such, which traced ones do not show before."""
    t0, t1, tolerance = task.t0, task.t1, jnp.asarray(task.solver.tolerance)
    valid = jnp.isfinite(t0) & (t1 >= t0) & (tolerance > 0) & jnp.isfinite(tolerance)
    if isinstance(task.ts, AcceptedSteps):
        return valid
    return valid & task.ts.are_within(t0, t1)


def _as_array(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, bool | int | float) else leaf
