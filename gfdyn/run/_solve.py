"""The one entry point: integrate a flow from a net."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from .._keywords import suggest_keywords
from .._numbers import check_count
from .._program_limit import make_room
from .._progress import progress_bar
from .._tracing import is_concrete, is_single
from ..flows import AbstractFlow
from ..nets import AbstractNet
from ..solvers import AbstractSolver, ExactKinks, SignSwitches, Stabilised
from ..stopping import AbstractStop
from ._arguments import affordable_saves, as_scalar, numbers_as_arrays, times_of
from ._begin import begin
from ._certificate import CertificateWarning
from ._compiling import announced, counted
from ._continuation import going_on
from ._integrate import advance
from ._results import RESULTS, choose, is_ok
from ._saving import AcceptedSteps, SaveTimes
from ._summary import doubt_of
from ._task import Progress, Task
from ._to_trajectory import to_trajectory
from ._trajectory import (
    Measure,
    Trajectory,
    checked_record,
    raise_unless_ok,
    with_compilations,
)


# Attempts between two looks at the keyboard and the progress bar.
_PORTION = 20


@suggest_keywords()
def solve(
    flow: AbstractFlow,
    net: AbstractNet | Trajectory,
    t1: ArrayLike | None = None,
    *,
    ts: ArrayLike | Sequence[ArrayLike] | AcceptedSteps | None = None,
    record: Mapping[str, Measure] | None = None,
    kinks: int = 0,
    solver: AbstractSolver | None = None,
    stop: AbstractStop | Sequence[AbstractStop] = (),
    t0: ArrayLike = 0.0,
    dt0: ArrayLike | None = None,
    max_steps: int = 100_000,
    throw: bool = True,
    progress: bool = False,
    derivatives: Literal["reverse", "forward"] = "reverse",
) -> Trajectory:
    r"""Integrate $d\theta/dt = -\nabla R(\theta)$ from a net, in the flow's clock.

    Under `jax.vmap` lanes that follow kinks run in turn on a CPU, where they would take
    both branches of all that they decide side by side.

    Main arguments:
        flow: what to integrate, such as `GradientFlow(problem)` or `EscapeFlow(problem)`.
        net: where it starts; or a trajectory of the same flow and solver, to go on from
            where it ended, to the last bit as one long solve if that was between two steps
            (at `max_steps`, say, and not at its t1). `gf.concatenate` joins the two.
        t1: where it ends, in the flow's clock; `inf` if a stop condition ends it. The
            last save time if None.
        ts: save times, or `AcceptedSteps(capacity)`. If None, 101 equal ones, or 256
            accepted steps where t1 is infinite; fewer of networks of which so many take
            over 1 GB.
        record: quantities to measure at the saves, `{name: function(problem, net)}`.
        kinks: how many events at kinks to keep, and with them the gates at the saves;
            0 for neither.
        solver: how to integrate. If None `gf.solvers.ExactKinks()`, but for a model that
            was wrapped as it is, and for a flow in which nothing slides,
            `gf.solvers.Stabilised()`; for a SignFlow `gf.solvers.SignSwitches()`.

    Other arguments:
        stop: conditions of `gf.stopping` that end the solve before t1, where one is met, or
            with the step in which it is; that time has no derivative.
        t0: where the clock starts. Flows are autonomous: leave it at 0. A trajectory goes
            on from its `final_time`.
        dt0: first step size to try; one that moves θ by about 1 % if None.
        max_steps: most attempted steps.
        throw: raise if the solve fails, rather than return with its `result`.
        progress: show a progress bar, and return what there is on Ctrl-C.
        derivatives: the mode of automatic differentiation through the solve.

    Returns:
        A `Trajectory`.

    Warns:
        CertificateWarning: if the solve succeeds but its certificate does not hold, with
            what helps. Under `jax.jit` and `jax.vmap` only `certificate.holds` tells.

    Raises:
        SolveError: if the solve fails and `throw` is set.
        ValueError: on arguments that make no sense together.
        TypeError: on arguments of the wrong kind.
    """
    records = checked_record(record)
    start: Any = net
    if isinstance(net, Trajectory):
        start, t0 = going_on(flow, net, t0)
        net = net.final_direction
    task = make_task(flow, net, t1, ts, kinks, solver, stop, t0, max_steps, derivatives)
    if dt0 is not None:
        dt0 = as_scalar("dt0", dt0, task.t0.dtype)
        if is_concrete(dt0) and not (math.isfinite(dt0) and dt0 > 0):
            raise ValueError(
                f"dt0={float(dt0)} must be positive and finite, or None to choose it."
            )
    with counted() as compilations:
        with announced():
            state = begin(task, start, dt0)
        if progress:
            task, state = _advance_with_bar(task, state)
        else:
            task, state = _advance(task, state, task.max_steps)
        with announced():
            trajectory = to_trajectory(task, state, records)
    trajectory = with_compilations(trajectory, compilations.count)
    if compilations.count and is_concrete(trajectory.final_time):
        make_room()
    if throw:
        trajectory = raise_unless_ok(trajectory)
    if is_single(trajectory.final_time) and is_ok(trajectory.result):
        if doubt := doubt_of(trajectory):
            warnings.warn(doubt, CertificateWarning, stacklevel=3)
    return trajectory


def make_task(
    flow: AbstractFlow,
    net: AbstractNet,
    t1: ArrayLike | None,
    ts: Any,
    kinks: int,
    solver: AbstractSolver | None,
    stop: AbstractStop | Sequence[AbstractStop],
    t0: ArrayLike,
    max_steps: int,
    derivatives: str,
) -> Task:
    """Check the arguments and put them together."""
    if not isinstance(flow, AbstractFlow):
        raise TypeError(
            f"flow must be one of gf.flows, got {type(flow).__name__}; wrap the problem as "
            "gf.GradientFlow(problem)."
        )
    flow.check(net)
    chosen = solver
    if chosen is None:
        chosen = _default_solver(flow, net)
    if not isinstance(chosen, AbstractSolver):
        raise TypeError(
            f"solver must be one of gf.solvers, got {chosen!r}; a diffrax solver goes "
            "in gf.solvers.Adaptive(method=...)."
        )
    chosen.check(flow, net)
    check_count("kinks", kinks, 0, "must be 0 or more events.")
    if kinks and not chosen.follows_kinks(net):
        raise ValueError(
            f"kinks={kinks}: {type(chosen).__name__} follows none here; use "
            "gf.solvers.ExactKinks() on a network that has kinks, or leave kinks at 0."
        )
    # A word is a sequence too, of letters.
    listed: tuple[Any, ...] = (stop,)
    if isinstance(stop, Sequence) and not isinstance(stop, str):
        listed = tuple(stop)
    for condition in listed:
        if not isinstance(condition, AbstractStop):
            raise TypeError(
                f"stop holds {condition!r}; use conditions of gf.stopping, for a function "
                "of yours gf.stopping.When(function)."
            )
    stop = listed
    check_count("max_steps", max_steps, 1, "must be 1 or more.")
    if derivatives not in ("reverse", "forward"):
        raise ValueError(f"derivatives={derivatives!r}; use 'reverse' or 'forward'.")
    kind = "checkpointed" if derivatives == "reverse" else "lax"
    chosen = chosen.with_scan_kind(kind)
    dtype = net.weights[0].dtype
    # Tolerances and thresholds are arguments of the compiled solve, not part of it.
    chosen = numbers_as_arrays(chosen, dtype)
    start = as_scalar("t0", t0, dtype)
    end, saves = times_of(start, t1, ts, bool(stop), affordable_saves(net))
    if not isinstance(saves, AcceptedSteps):
        saves = SaveTimes(saves, jnp.asarray(len(saves), jnp.int32))
    stops = numbers_as_arrays(stop, dtype)
    most = jnp.asarray(max_steps, jnp.int32)
    # The power of two above it, so that few other limits compile again.
    bound = 1 << (max_steps - 1).bit_length()
    return Task(flow, chosen, start, end, saves, stops, kinks, most, bound, kind)


def _default_solver(flow: AbstractFlow, net: AbstractNet) -> AbstractSolver:
    """One that is exact where the flow jumps, if the network tells where that is."""
    if flow.jumps_at == "signs":
        return SignSwitches()
    exact = flow.jumps_at == "kinks" and net.knows_kinks
    return ExactKinks() if exact else Stabilised()


def _advance(task: Task, state: Progress, until: Array) -> tuple[Task, Progress]:
    """Advance, with more places for sites at kinks whenever there are too few."""
    while True:
        with announced():
            state = advance(task, state, until)
        crowded = state.result == RESULTS.crowded_kinks
        if not (is_single(crowded) and crowded and isinstance(task.solver, ExactKinks)):
            return task, state
        solver = task.solver.with_more_places(state.solver_state)
        if solver is None:
            return task, state
        task = eqx.tree_at(lambda t: t.solver, task, solver)
        going = (RESULTS.successful, jnp.zeros_like(state.done))
        state = eqx.tree_at(lambda s: (s.result, s.done), state, going)


def _advance_with_bar(task: Task, state: Progress) -> tuple[Task, Progress]:
    """Advance in portions, with a bar over the clock (or the steps, if t1 is infinite)."""
    finite = math.isfinite(task.t1) and not task.stop
    total = float(task.t1 - task.t0) if finite else None
    unit = task.flow.clock_name if finite else " steps"
    layout = "{l_bar}{bar}| {n:.4g}/{total:.4g} [{elapsed}<{remaining}{postfix}]"
    layout = layout if finite else None
    with progress_bar(total=total, unit=unit, bar_format=layout) as bar:
        try:
            while not bool(state.done):
                attempts = state.counters.accepted + state.counters.rejected
                until = jnp.minimum(attempts + _PORTION, task.max_steps)
                task, state = jax.block_until_ready(_advance(task, state, until))
                accepted = int(state.counters.accepted)
                bar.n = float(state.time - task.t0) if finite else accepted
                log_r = float(task.flow.log_radius(state.state.position))
                bar.set_postfix_str(
                    f"{task.flow.clock_name}={float(state.time):.4g}, "
                    f"risk={float(state.ledger.risk):.4g}, log r={log_r:.3g}"
                )
        except KeyboardInterrupt:
            result = choose(jnp.asarray(True), RESULTS.interrupted, state.result)
            return task, eqx.tree_at(lambda s: s.result, state, result)
    return task, state
