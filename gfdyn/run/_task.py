"""What is to be solved, and everything that evolves while it is."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool

from .._types import Count, Scalar
from ..flows import AbstractFlow, State
from ..solvers import AbstractSolver, Events
from ..stopping import AbstractStop
from ._certificate import Ledger
from ._course import CourseSoFar
from ._kink_log import KinkLog
from ._saving import AcceptedSteps, Saves, SaveTimes


class Counters(eqx.Module):
    """How much work was done."""

    accepted: Count
    rejected: Count
    field_evaluations: Count
    consecutive_nonfinite: Count
    consecutive_instant: Count
    events: Events
    # Points at which another regime was as right
    choices: Count


class Progress(eqx.Module):
    """Everything that evolves during a solve."""

    # Where it is
    time: Scalar
    state: State
    log_time: Scalar
    log_time_rate: Scalar
    # The next attempt, and whether it ends where a stop condition was met in the last one
    size: Scalar
    stopping: Bool[Array, ""]
    solver_state: Any
    # Growth of log ‖θ‖ per unit time over the last accepted step
    growth: Scalar
    # Measurements and output
    ledger: Ledger
    stop_memories: tuple[Any, ...]
    met: Count
    counters: Counters
    saves: Saves
    course: CourseSoFar
    log: KinkLog | None
    result: Any
    done: Bool[Array, ""]


class Task(eqx.Module):
    """What is to be solved; constant during the solve."""

    flow: AbstractFlow
    solver: AbstractSolver
    t0: Scalar
    t1: Scalar
    ts: SaveTimes | AcceptedSteps
    stop: tuple[AbstractStop, ...]
    # How many events at kinks are kept; 0: neither they nor the gates
    num_kinks: int = eqx.field(static=True)
    # The most steps to attempt, and a bound on it that the compiled loop has
    max_steps: Count
    loop_bound: int = eqx.field(static=True)
    loop_kind: str = eqx.field(static=True)
