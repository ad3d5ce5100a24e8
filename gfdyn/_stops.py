"""What stop conditions see of a step, which of them are met, and where within the step."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ._task import Count, Progress, Scalar, Task
from .flows import State
from .kinks import constant
from .solvers import Step
from .stopping import Observation


def check_stops(
    task: Task, p: Progress, state: State, risk: Scalar, size: Scalar
) -> tuple[tuple[Any, ...], Count]:
    """The memories of the stop conditions after a step from `p` to this state, and the
    index of the first one met, or −1."""
    seen = _observe(task, p, state, risk, size)
    met, memories = p.met, []
    for i, (condition, memory) in enumerate(zip(task.stop, p.stop_memories, strict=True)):
        memory, is_met = condition.update(memory, seen)
        memories.append(memory)
        met = jnp.where(is_met & (met < 0), i, met)
    return tuple(memories), met


def first_stop(task: Task, p: Progress, step: Step, met: Bool[Array, ""]) -> Scalar:
    """How far into a step at whose end conditions are met one without memory first is: the
    step's size, unless that is before its end.

    On dense output, by bisection to the tolerance, so that of a condition that is met more
    than once in a step any of these times may be taken. What holds where the solve starts
    is met nowhere in its first step.
    """
    if not any(memory is None for memory in p.stop_memories):
        return step.size
    # The time of a stop has no derivative.
    task, p, step, met = constant((task, p, step, met))
    size = step.size
    shortest = jnp.maximum(task.solver.tolerance * size, 2 * jnp.spacing(jnp.abs(p.time)))
    shortest = shortest.astype(size.dtype)

    def is_met(elapsed: Scalar) -> Any:
        return _met_without_memory(task, p, step, elapsed)

    def halve(bracket: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        before, after = bracket
        middle = 0.5 * (before + after)
        met = is_met(middle)
        return jnp.where(met, before, middle), jnp.where(met, middle, after)

    held_before = jax.lax.cond(
        met & (p.counters.accepted == 0),
        lambda: is_met(jnp.zeros_like(size)),
        lambda: jnp.asarray(False),
    )
    start = jnp.where(met & ~held_before, 0.0, size)
    _, time = jax.lax.while_loop(
        lambda bracket: bracket[1] - bracket[0] > shortest, halve, (start, size)
    )
    return jnp.where(size - time > shortest, jnp.maximum(time, shortest), size)


def _met_without_memory(task: Task, p: Progress, step: Step, elapsed: Scalar) -> Any:
    """Whether any condition without memory is met so far into a step."""
    there = step.at(elapsed)
    position = task.flow.retract(there.position)
    state = State(position, there.dissipated)
    seen = _observe(task, p, state, task.flow.risk(position), elapsed)
    met = jnp.asarray(False)
    for condition, memory in zip(task.stop, p.stop_memories, strict=True):
        if memory is None:
            met |= condition.update(None, seen)[1]
    return met


def _observe(
    task: Task, p: Progress, state: State, risk: Scalar, size: Scalar
) -> Observation:
    """What conditions see of a step from `p` to this state."""
    size = jnp.maximum(size, jnp.finfo(size.dtype).tiny)
    fall = jnp.maximum(state.dissipated - p.state.dissipated, 0.0)
    return Observation(
        problem=task.flow.problem,
        net=task.flow.net(state.position),
        initial_risk=p.ledger.initial_risk,
        risk=risk,
        log_radius=task.flow.log_radius(state.position),
        size=size,
        fall_rate=(p.ledger.risk - risk) / size,
        slope=jnp.sqrt(fall / size),
    )
