"""The integration loop: steps, saves, stop conditions, certificate, physical time.

It is jitted apart from the start (`begin`) and the end (`finish`), so that a run can be
advanced in portions, with a progress bar between them, and takes the same steps as when it
runs in one go.
"""

import functools
import math
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._types import Count, Scalar
from ..flows import AbstractFlow, State
from ..solvers import Step
from ._certificate import Certificate, close_ledger, update_ledger
from ._compiling import tracing
from ._course import Course, point_of
from ._kink_log import log_step
from ._lanes import lanes_in_turn
from ._programs import compiled
from ._results import RESULTS, choose
from ._saving import (
    AcceptedSteps,
    Saves,
    blank_unwritten,
    buffers,
    save_between,
    save_step,
    write,
)
from ._stops import check_stops, first_stop
from ._task import Counters, Progress, Task
from ._time import MAX_CHANGE, NODES, TimeRate, fit_time_rate


# A step whose outcome is not finite is tried again this many times, smaller by the
# controller's largest factor (5), before the field itself is held responsible.
_MAX_NONFINITE = 40
# Accepted steps in a row that take no time, each with an event: a cascade.
_MAX_INSTANT = 1000
# A clock has come to its end where so late a log t would double within so small a part of
# the time on the clock.
_LATE, _STANDSTILL = 100.0, 1e-2


@compiled(lambda progress: progress.state.position)
def advance(task: Task, progress: Progress, until: Count) -> Progress:
    """Step on until the end, or until this many steps were attempted in all.

    On a CPU, lanes under `vmap` that follow kinks run in turn.
    """
    tracing()
    branching = task.solver.follows_kinks(task.flow.point(progress.state.position))
    if branching and jax.default_backend() == "cpu":
        return lanes_in_turn(_advance, task.loop_kind)(task, progress, until)
    return _advance(task, progress, until)


def _advance(task: Task, progress: Progress, until: Count) -> Progress:
    def unfinished(p: Progress) -> Array:
        return ~p.done & (p.counters.accepted + p.counters.rejected < until)

    with jax.default_matmul_precision("highest"):
        # Thinning rewrites rows, which buffers do not allow.
        thinned = isinstance(task.ts, AcceptedSteps)
        return eqxi.while_loop(
            unfinished,
            lambda p: _attempt(task, p),
            progress,
            max_steps=task.loop_bound,
            buffers=None if thinned else lambda p: buffers(p.saves),
            kind=task.loop_kind,  # pyright: ignore[reportArgumentType]
        )


@compiled(lambda progress: progress.state.position)
def finish(task: Task, progress: Progress) -> tuple[Saves, Course, Certificate]:
    """The rows with the end among them where accepted steps are saved, the course, and
    the certificate."""
    tracing()
    saves = progress.saves
    if isinstance(task.ts, AcceptedSteps):
        # One row more than the capacity, so that the end always has a place.
        saves = jax.tree.map(
            lambda rows: jnp.concatenate([rows, rows[-1:]]) if rows.ndim else rows,
            saves,
        )
        last = saves.time[jnp.maximum(saves.count - 1, 0)]
        gates = None
        if saves.gates is not None:
            gates = task.solver.gates_of(progress.solver_state)
        with_end = write(
            saves,
            progress.time,
            progress.state.position,
            gates,
            progress.log_time,
            saves.log_since,
        )
        saves = jax.tree.map(
            lambda a, b: jnp.where(progress.time > last, a, b), with_end, saves
        )
        saves = blank_unwritten(saves)
    log_norm = task.flow.log_norm(progress.state.position)
    end = point_of(progress.time, progress.log_time, progress.ledger.risk, log_norm)
    net = task.flow.point(progress.state.position)
    smooth = net.knows_kinks and not net.has_kinks
    certificate = close_ledger(
        progress.ledger,
        progress.state.dissipated,
        progress.counters.choices,
        task.solver.tolerance,
        verified=smooth or task.solver.verifies(progress.solver_state),
    )
    return saves, progress.course.until(progress.counters.accepted, end), certificate


def _attempt(task: Task, p: Progress) -> Progress:
    """One attempted step, accepted or not."""
    remaining = task.t1 - p.time
    # A last step that would leave a sliver behind takes it along, but for one that ends
    # where a stop condition was met.
    last = (p.size * (1 + 1e-3) >= remaining) & ~p.stopping
    size = jnp.where(last, remaining, p.size)
    step = task.solver.step(task.flow, p.state, size, p.solver_state)
    last &= step.size == size
    time = jnp.where(last, task.t1, p.time + step.size)
    # Time may stand still for an event that follows at once upon another.
    stalled = (p.time + size) <= p.time
    accepted = step.accepted & ~stalled
    rate = _time_rate(task.flow, p, step, step.size)
    # The saves are buffers, which stay out of branches.
    rest = eqx.tree_at(lambda q: (q.saves, q.solver_state), p, (None, None))
    still = eqx.tree_at(lambda q: q.size, rest, jnp.full_like(size, jnp.inf))
    moved = jax.lax.cond(
        accepted, lambda: _accept(task, rest, step, time, rate), lambda: still
    )
    # A step in which a condition is met is taken again, up to there.
    until_stop = first_stop(task, p, step, moved.met >= 0)
    overshoots = until_stop < step.size
    accepted &= ~overshoots
    solver_state = step.solver_state
    if task.stop:
        moved, solver_state = jax.tree.map(
            functools.partial(jnp.where, overshoots),
            (still, p.solver_state),
            (moved, solver_state),
        )
    saves = _save(task, p, step, rate, accepted, moved)
    counters = Counters(
        p.counters.accepted + accepted.astype(jnp.int32),
        p.counters.rejected + (~accepted).astype(jnp.int32),
        p.counters.field_evaluations + step.num_field_evaluations,
        jnp.where(step.finite, 0, p.counters.consecutive_nonfinite + 1),
        jnp.where(
            accepted & (time > p.time),
            0,
            p.counters.consecutive_instant + accepted.astype(jnp.int32),
        ),
        jax.tree.map(
            lambda new, old: old + jnp.where(accepted, new, 0),
            step.events,
            p.counters.events,
        ),
        p.counters.choices + jnp.where(accepted, step.choices, 0),
    )
    lost = accepted & ~step.converged
    undecided = accepted & ~step.verified
    result, done = _outcome(
        task, moved, counters, stalled, lost, undecided, ~step.fits, last & accepted
    )
    next_size = jnp.where(overshoots, until_stop, jnp.minimum(step.next_size, moved.size))
    next_size = jax.lax.stop_gradient(next_size)
    return eqx.tree_at(
        lambda q: (
            q.size,
            q.stopping,
            q.solver_state,
            q.counters,
            q.saves,
            q.result,
            q.done,
        ),
        moved,
        (next_size, overshoots, solver_state, counters, saves, result, done),
        is_leaf=lambda leaf: leaf is None,
    )


def _accept(task: Task, p: Progress, step: Step, time: Scalar, rate: TimeRate) -> Progress:
    """The loop's state after an accepted step, but for its saves and counters.

    Its `size` is the longest next step that the clock allows.
    """
    flow, size = task.flow, step.size
    position = flow.retract(step.state.position)
    state = State(position, step.state.dissipated)
    log_time = jnp.logaddexp(p.log_time, rate.log_integral(jnp.ones_like(size)))
    log_time_rate = flow.log_time_rate(position)
    ledger = update_ledger(p.ledger, flow, position, log_time)
    log = p.log
    if log is not None:
        log = log_step(log, step, p.time, p.time + size)
    memories, met = check_stops(task, p, state, ledger.risk, size)
    change = jnp.abs(log_time_rate - p.log_time_rate)
    matters = change > 1e-6 * MAX_CHANGE
    longest = size * MAX_CHANGE / jnp.where(matters, change, 1.0)
    longest = jnp.where(matters, longest, jnp.inf)
    log_norm = flow.log_norm(position)
    log_norm_change = log_norm - flow.log_norm(p.state.position)
    point = point_of(time, log_time, ledger.risk, log_norm)
    course = p.course.after(p.counters.accepted + 1, point)
    # An event may follow at once upon another, after no time at all.
    duration = jnp.maximum(size, jnp.finfo(size.dtype).tiny)
    return eqx.tree_at(
        lambda q: (
            q.time,
            q.state,
            q.log_time,
            q.log_time_rate,
            q.size,
            q.growth,
            q.ledger,
            q.stop_memories,
            q.met,
            q.course,
            q.log,
        ),
        p,
        (
            time,
            state,
            log_time,
            log_time_rate,
            jax.lax.stop_gradient(longest),
            log_norm_change / duration,
            ledger,
            memories,
            met,
            course,
            log,
        ),
        is_leaf=lambda leaf: leaf is None,
    )


def _time_rate(flow: AbstractFlow, p: Progress, step: Step, size: Scalar) -> TimeRate:
    inner = [
        flow.log_time_rate(step.at(float(fraction) * size).position)
        for fraction in NODES[1:]
    ]
    return fit_time_rate(jnp.stack([p.log_time_rate, *inner]), size)


def _save(
    task: Task, p: Progress, step: Step, rate: TimeRate, accepted: Array, moved: Progress
) -> Saves:
    """The saves after an attempt that took `p` to `moved`."""
    if isinstance(task.ts, AcceptedSteps):
        gates = step.gates_at(jnp.zeros_like(p.time)) if task.num_kinks else None
        elapsed = rate.log_integral(jnp.ones_like(rate.size))
        position, log_time = moved.state.position, moved.log_time
        return jax.lax.cond(
            accepted,
            lambda s: save_step(
                s,
                p.counters.accepted + 1,
                moved.time,
                position,
                gates,
                log_time,
                elapsed,
            ),
            lambda s: s,
            p.saves,
        )
    # No save time is due in a step that was not accepted.
    end = jnp.where(accepted, moved.time, -jnp.inf)
    saves = save_between(
        p.saves, task.ts, task.flow, step, p.time, end, rate, p.log_time, task.loop_kind
    )
    since = jnp.where(accepted, saves.log_since, p.saves.log_since)
    return eqx.tree_at(lambda s: s.log_since, saves, since)


def _outcome(
    task: Task,
    p: Progress,
    counters: Counters,
    stalled: Array,
    lost: Array,
    undecided: Array,
    crowded: Array,
    arrived: Array,
) -> tuple[Any, Array]:
    """How the solve stands after an attempt, and whether it is over."""
    # The norm grows by a factor e within a few units of the clock's resolution.
    now = jax.lax.stop_gradient(jnp.abs(p.time))
    spacing = jnp.spacing(now).astype(now.dtype)
    exploding = p.growth * spacing > 1e-2
    nonfinite = counters.consecutive_nonfinite > _MAX_NONFINITE
    exhausted = counters.accepted + counters.rejected >= task.max_steps
    result, done = p.result, p.done
    for happened, name in (
        (exhausted, RESULTS.max_steps_reached),
        (_clock_stands(task, p), RESULTS.clock_ended),
        (nonfinite, RESULTS.nonfinite_state),
        (lost, RESULTS.projection_failed),
        (undecided, RESULTS.no_regime),
        (crowded, RESULTS.crowded_kinks),
        (counters.consecutive_instant > _MAX_INSTANT, RESULTS.event_cascade),
        (stalled, RESULTS.time_stalled),
        ((stalled | nonfinite) & exploding, RESULTS.blew_up),
        (p.met >= 0, RESULTS.stopped),
        (arrived, RESULTS.successful),
    ):
        result = choose(happened, name, result)
        done = done | happened
    return result, done


def _clock_stands(task: Task, p: Progress) -> Bool[Array, ""]:
    """Whether log t runs away while the clock all but stands: (τ − τ₀) d log log t/dτ ≫ 1.
    It is L in the arc length of a net of degree L, and less where t is of the clock."""
    log_time, rate = jax.lax.stop_gradient((p.log_time, p.log_time_rate))
    log_growth = rate - log_time - jnp.log(jnp.maximum(log_time, 1.0))
    spent = jnp.log(p.time - task.t0)
    return (log_time > _LATE) & (log_growth + spent > -math.log(_STANDSTILL))
