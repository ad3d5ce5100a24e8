"""The programs of a solve, which for small networks take longer to compile than to run."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

from .._tracing import is_concrete
from ._saving import SaveTimes
from ._task import Task


Function = TypeVar("Function", bound=Callable[..., Any])

# So many multiplications for a forward pass are few: fewer optimisations do not show then.
_FEW = 50_000
_LESS = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
# Programs of small networks have room for so many saves and events at kinks at least; those
# of others for at most so small a part more than are asked for.
_ROOM, _MORE = 256, 1 / 8
# The bound that their loops have on the attempts, at least, and the kind of these
_ATTEMPTS, _LOOPS = 1 << 17, "lax"


def compiled(position_of: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """`eqx.filter_jit` of a function of a task and where it stands, `position_of` which are
    the parameters, that others share.

    It is compiled for numbers of saves, events and attempts rounded up (`with_room`). XLA
    optimises less, on a CPU, where the network and its data are small: that compiles in
    three quarters of the time, to what runs as fast. What `XLA_FLAGS` says of the same
    optimisations goes before it. Within a larger program the function is compiled as that
    is, for the task as it is.
    """

    def jitted(function: Function) -> Function:
        slow = eqx.filter_jit(function)

        @functools.cache
        def quick() -> Callable[..., Any]:
            options: dict[str, Any] = {"compiler_options": _options()}
            return eqx.filter_jit(**options)(function)

        @functools.wraps(function)
        def call(task: Task, standing: Any, *others: Any) -> Any:
            if not is_concrete(*jax.tree.leaves((task, standing, others))):
                return slow(task, standing, *others)
            small = _is_small(task, position_of(standing))
            program = quick() if small and jax.default_backend() == "cpu" else slow
            return program(with_room(task, small), standing, *others)

        return call  # pyright: ignore[reportReturnType]

    return jitted


def with_room(task: Task, small: bool) -> Task:
    """The same task, through which no derivative is taken, with room for more saves, events
    at kinks and attempts than are asked for, so that other numbers do not compile again."""
    ts, num_kinks = task.ts, task.num_kinks
    if isinstance(ts, SaveTimes):
        ts = ts.with_room(_rounded_up(len(ts.times), small))
    if num_kinks:
        num_kinks = _rounded_up(num_kinks, small)
    return dataclasses.replace(
        task,
        solver=task.solver.with_scan_kind(_LOOPS),
        ts=ts,
        num_kinks=num_kinks,
        loop_bound=max(task.loop_bound, _ATTEMPTS),
        loop_kind=_LOOPS,
    )


def _rounded_up(number: int, small: bool) -> int:
    """A number that many round up to."""
    power = 1 << (number - 1).bit_length()
    if small:
        return max(power, _ROOM)
    unit = max(1, int(power / 2 * _MORE))
    return -(-number // unit) * unit


def _is_small(task: Task, position: Any) -> bool:
    """Whether a pass takes few multiplications."""
    leaves = jax.tree.leaves(eqx.filter(position, eqx.is_inexact_array))
    samples = len(task.flow.problem.data.x)
    return samples * sum(leaf.size for leaf in leaves) <= _FEW


@functools.cache
def _options() -> dict[str, Any]:
    """What XLA is told, as far as it knows the options and its flags do not name them."""
    flags = os.getenv("XLA_FLAGS", "")
    options = {name: value for name, value in _LESS.items() if name not in flags}
    try:
        jax.jit(lambda x: x, compiler_options=options)(0.0)
    except (ValueError, RuntimeError):
        # Another XLA, which knows one of them no more.
        return {}
    return options
