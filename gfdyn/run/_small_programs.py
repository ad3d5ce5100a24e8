"""Programs of small networks, which take longer to compile than to run."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

from .._tracing import is_concrete
from ._task import Task


Function = TypeVar("Function", bound=Callable[..., Any])

# So many multiplications for a forward pass are few: fewer optimisations do not show then.
_FEW = 50_000
_LESS = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}


def quick_for_small(position_of: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """`eqx.filter_jit` of a function of a task and where it stands, `position_of` which are
    the parameters; XLA optimises less, on a CPU, where the network and its data are small.

    That compiles in three quarters of the time, to what runs as fast. What `XLA_FLAGS` says
    of the same optimisations goes before it. Within a larger program the function is
    compiled as that is.
    """

    def jitted(function: Function) -> Function:
        compiled = eqx.filter_jit(function)

        @functools.cache
        def quick() -> Callable[..., Any]:
            options: dict[str, Any] = {"compiler_options": _options()}
            return eqx.filter_jit(**options)(function)

        @functools.wraps(function)
        def call(task: Task, standing: Any, *others: Any) -> Any:
            leaves = jax.tree.leaves((task, standing, others))
            small = is_concrete(*leaves) and _is_small(task, position_of(standing))
            return (quick() if small else compiled)(task, standing, *others)

        return call  # pyright: ignore[reportReturnType]

    return jitted


def _is_small(task: Task, position: Any) -> bool:
    """Whether a pass takes few multiplications, on a CPU."""
    leaves = jax.tree.leaves(eqx.filter(position, eqx.is_inexact_array))
    samples = len(task.flow.problem.data.x)
    few = samples * sum(leaf.size for leaf in leaves) <= _FEW
    return few and jax.default_backend() == "cpu"


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
