"""Trajectories read from files: what they hold must hang together."""

import operator
import os
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..flows import AbstractFlow
from ._begin import SolveState
from ._certificate import open_ledger
from ._descent_state import DescentState
from ._files import read_file
from ._kink_log import Kinks
from ._results import RESULTS, is_ok, name_of
from ._schema import Axes, check_own_fields, layout, refuse, without_axes
from ._trajectory import Trajectory


# Counts that every trajectory has, and one that those of earlier versions lack.
_STATS = (
    "num_steps",
    "num_rejected",
    "num_field_evaluations",
    "num_crossings",
    "num_slides",
    "num_releases",
)
_RESIDUALS = ("energy_residual", "balance_drift", "risk_increase", "residual_limit")
_OF_THE_PROCESS = "num_compilations"
# What is not NaN of a solve that succeeded.
_NUMBERS = (
    "initial_risk",
    "final_risk",
    "initial_time",
    "final_time",
    "final_position",
    "certificate",
    "checkpoint",
)
# How far what is computed again may be off, on another device: relative to itself, and to
# the risk at the start.
_ROUNDING, _ROUNDING_OF_START = 1e-3, 1e-6


def load(path: str | os.PathLike) -> Trajectory:
    """The trajectory that `Trajectory.save` wrote, once it was found to be whole.

    Its checksum must be right, each field of the kind, shape, dtype and range that a
    trajectory has, and the risk that it ended with that of its last net. Numbers that
    someone has replaced by others as possible, with a new checksum, are not told apart.

    Args:
        path: the file, of any name.

    Warns:
        UserWarning: on a file of before there were checksums.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no trajectory, damaged or edited; names the field.
    """
    return read_file(path, Trajectory, _check)


def _check(traj: Trajectory) -> None:
    """Raise unless it is what a solve or a descent gives back."""
    if not isinstance(traj.final_time, jax.Array) or not isinstance(traj.ts, jax.Array):
        check_own_fields(traj, "", {"final_time": (), "ts": ()})
    batch = traj.final_time.shape
    rows = (*batch, *traj.ts.shape[len(batch) :])
    annotated = ("ts", "log_time", "log_interval", "initial_risk", "final_risk")
    annotated += ("final_time", "final_log_time", "initial_time", "stats", "stop_index")
    annotated += ("flow", "final_position", "certificate", "kinks", "checkpoint")
    of_python = ("records", "stop_names", "result")
    axes = {**dict.fromkeys(annotated, batch), **dict.fromkeys(of_python, ())}
    check_own_fields(traj, "", axes)
    check_own_fields(traj, "", {"positions": rows})
    _check_shapes(traj, batch, rows)
    _check_ranges(traj)
    _check_result(traj, batch)
    if traj.kinks is not None:
        _check_kinks(traj.kinks, rows)
    _check_flow(traj, batch)


def _check_shapes(traj: Trajectory, batch: Axes, rows: Axes) -> None:
    """Raise unless there are as many rows of all as there are saves."""
    intervals = (*batch, max(rows[-1] - 1, 0))
    if traj.log_interval.shape != intervals:
        refuse("log_interval", traj.log_interval, f"shape {intervals}, of saves less one,")
    for name, record in traj.records.items():
        for leaf in jax.tree.leaves(record):
            if leaf.shape[: len(rows)] != rows:
                refuse(f"records.{name}", leaf, f"a first axis of {rows[-1]} saves")
    at_saves = layout(without_axes(traj.positions, rows))
    if at_saves != layout(without_axes(traj.final_position, batch)):
        expected = f"{rows[-1]} of what final_position is"
        refuse("positions", traj.positions, expected)
    _check_dtypes(traj)


def _check_dtypes(traj: Trajectory) -> None:
    """Raise unless all times are of one precision, and all risks."""
    names = ["log_time", "log_interval", "initial_time", "final_time", "final_log_time"]
    if isinstance(traj.checkpoint, SolveState):
        clock = ("time", "log_time", "log_time_rate", "size", "growth", "state.dissipated")
        names += [f"checkpoint.{name}" for name in clock]
    risks = ["initial_risk", *(f"certificate.{name}" for name in _RESIDUALS)]
    gates: list[str] = []
    if traj.kinks is not None:
        names += ["kinks.time", "kinks.sliding_fraction"]
        gates = ["kinks.gates"]
    for group, like, expected in (
        (names, "ts", traj.ts.dtype),
        (risks, "final_risk", traj.final_risk.dtype),
        (gates, "flow.problem.data.x", traj.problem.data.x.dtype),
    ):
        for name in group:
            value = operator.attrgetter(name)(traj)
            leaves = filter(eqx.is_array, jax.tree.leaves(value))
            if any(leaf.dtype != expected for leaf in leaves):
                refuse(name, value, f"the dtype {expected} of {like}")


def _check_ranges(traj: Trajectory) -> None:
    """Raise on counts below 0, and on times that run backwards."""
    if set(traj.stats) - {_OF_THE_PROCESS} != set(_STATS):
        refuse("stats", sorted(traj.stats), f"{', '.join(_STATS)}")
    for name, count in traj.stats.items():
        _check_range(f"stats.{name}", count, 0)
    _check_range("certificate.choices", traj.certificate.choices, 0)
    _check_range("stop_index", traj.stop_index, -1, len(traj.stop_names) - 1)
    for name in _RESIDUALS:
        value = getattr(traj.certificate, name)
        if np.any(np.asarray(value) < 0):
            refuse(f"certificate.{name}", value, "0 or more")
    # Rows that were not reached are NaN, those of a batch or of a jitted solve. The time of
    # a descent runs back where its optimizer goes uphill.
    ts = np.asarray(traj.ts)
    reached = ~np.isnan(ts)
    if (
        np.any(np.diff(ts) < 0 if not traj.is_descent else _is_off(ts, traj.log_time))
        or np.any(np.isinf(ts))
        or np.any(~reached[..., :-1] & reached[..., 1:])
    ):
        refuse("ts", ts, "times, the earliest first,")
    data = traj.problem.data
    for name, numbers in (("x", data.x), ("y", data.y)):
        if not np.all(np.isfinite(numbers)):
            refuse(f"flow.problem.data.{name}", np.asarray(numbers), "a finite number")


def _is_off(times: np.ndarray, logs: Any) -> np.ndarray:
    """Which of the times do not have these logarithms."""
    with np.errstate(all="ignore"):
        expected, found = np.log(times), np.asarray(logs)
        both = np.isfinite(expected) & np.isfinite(found)
        off = np.abs(expected - found) > _ROUNDING
    return np.where(both, off, np.isfinite(expected) != np.isfinite(found))


def _check_range(name: str, values: Any, least: int, most: int | None = None) -> None:
    """Raise unless whole numbers are in a range, its ends included."""
    numbers = np.asarray(values)
    if np.any(numbers < least) or (most is not None and np.any(numbers > most)):
        span = f"{least} or more" if most is None else f"{least} to {most}"
        refuse(name, numbers.tolist(), span)


def _check_result(traj: Trajectory, batch: Axes) -> None:
    """Raise unless it is how a solve ends, and no success holds what is not a number."""
    result = traj.result
    if not isinstance(result, RESULTS) or result._value.shape != batch:  # pyright: ignore
        refuse("result", result, f"an entry of gf.RESULTS of shape {batch}")
    if batch or not is_ok(result):
        return
    if name_of(result) == "stopped" and int(traj.stop_index) < 0:
        refuse("stop_index", int(traj.stop_index), "the condition that stopped it")
    written = ~np.isnan(np.asarray(traj.ts))
    numbers: dict[str, Any] = {name: getattr(traj, name) for name in _NUMBERS}
    numbers["positions"] = jax.tree.map(lambda rows: rows[written], traj.positions)
    if not traj.is_descent:
        numbers["log_time"] = traj.log_time[written]
        numbers["log_interval"] = traj.log_interval[written[1:]]
        numbers["final_log_time"] = traj.final_log_time
    if traj.kinks is not None:
        numbers["kinks.gates"] = [gates[written] for gates in traj.kinks.gates]
        numbers["kinks.sliding_fraction"] = traj.kinks.sliding_fraction
    for name, tree in numbers.items():
        for leaf in jax.tree.leaves(tree):
            if np.any(np.isnan(np.asarray(leaf))):
                refuse(name, np.asarray(leaf), "a number, as the solve succeeded,")
    for leaf in jax.tree.leaves(traj.positions):
        if not np.all(np.isnan(np.asarray(leaf[~written]))):
            refuse("ts", np.asarray(traj.ts), "a time for each row of positions")


def _check_kinks(kinks: Kinks, rows: Axes) -> None:
    """Raise on events and gates that cannot be."""
    shapes = [gates.shape for gates in kinks.gates]
    if [slides.shape for slides in kinks.sliding] != shapes or any(
        shape[: len(rows)] != rows for shape in shapes
    ):
        refuse("kinks.gates", kinks.gates, f"a row for each of {rows[-1]} saves")
    batch = rows[:-1]
    at_end = [(*batch, *shape[len(rows) :]) for shape in shapes]
    if [fraction.shape for fraction in kinks.sliding_fraction] != at_end:
        refuse("kinks.sliding_fraction", kinks.sliding_fraction, f"shapes {at_end}")
    times = np.asarray(kinks.time)
    happened = ~np.isnan(times)
    if np.any(np.diff(times) < 0) or np.any(~happened[..., :-1] & happened[..., 1:]):
        refuse("kinks.time", times, "times, the earliest first,")
    samples = max((shape[-2] for shape in shapes), default=1)
    widest = max((shape[-1] for shape in shapes), default=1)
    _check_range("kinks.num_lost", kinks.num_lost, 0)
    _check_range("kinks.layer", kinks.layer, 1, len(shapes))
    _check_range("kinks.unit", kinks.unit, 0, widest - 1)
    _check_range("kinks.sample", kinks.sample, 0, samples - 1)
    _check_range("kinks.kind", kinks.kind, 0, len(Kinks.kinds) - 1)
    for name in ("side", "other_side"):
        if (sides := getattr(kinks, name)) is not None:
            _check_range(f"kinks.{name}", sides, -1, len(Kinks.sides) - 1)


def _check_flow(traj: Trajectory, batch: Axes) -> None:
    """Raise unless the flow is of such positions, and the risk at the end that of the last
    one, as is how fast its clock runs there."""
    flow, final = without_axes((traj.flow, traj.final_position), batch)

    def begun(flow: AbstractFlow, position: Any) -> Any:
        net = flow.net(position)
        flow.check(net)
        return flow.start(net)

    if layout(eqx.filter_eval_shape(begun, flow, final)) != layout(final):
        expected = f"a position of the {type(traj.flow).__name__}"
        refuse("final_position", traj.final_position, expected)
    at_end = _at_end
    for _ in batch:
        at_end = eqx.filter_vmap(at_end)
    with jax.default_matmul_precision("highest"):
        risk, rate = at_end(traj.flow, traj.final_position)
    _check_close("final_risk", traj.final_risk, risk, traj.initial_risk)
    _check_checkpoint(traj, rate)
    if traj.checkpoint is not None:
        ledger = eqx.filter_eval_shape(open_ledger, flow, final)
        _check_layout(traj.checkpoint, ledger, final, batch)


def _check_layout(
    state: SolveState | DescentState, ledger: Any, position: Any, batch: Axes
) -> None:
    """Raise unless a state holds arrays as those of such a ledger and position."""
    of_solve = isinstance(state, SolveState)
    named = "state.position" if of_solve else "net"
    for name, found, expected in (
        ("ledger", state.ledger, ledger),
        (named, state.state.position if of_solve else state.net, position),
    ):
        if layout(without_axes(found, batch)) != layout(expected):
            shown = eqx.tree_pformat(expected, width=10**6)
            refuse(f"checkpoint.{name}", found, f"one of the flow's, {shown:.80},")


def _check_checkpoint(traj: Trajectory, rate: Any) -> None:
    """Raise unless a solve, or a descent, goes on from it."""
    state = traj.checkpoint
    if isinstance(state, SolveState):
        _check_range("checkpoint.choices", state.choices, 0)
        _check_close("checkpoint.log_time_rate", state.log_time_rate, rate, 1.0)
    elif isinstance(state, DescentState):
        _check_range("checkpoint.step", state.step, 0)
        try:
            jax.random.key_impl(state.key)
        except Exception as error:
            raise ValueError(f"checkpoint.key_kind={state.key_kind!r}: {error}") from error
    elif state is not None:
        refuse("checkpoint", state, "the state of a solve or of a descent")


def _at_end(flow: AbstractFlow, position: Any) -> Any:
    return flow.risk(position), flow.log_time_rate(position)


def _check_close(name: str, found: Any, expected: Any, scale: Any) -> None:
    """Raise unless finite numbers are what they are computed to be."""
    found, expected, scale = map(np.asarray, (found, expected, scale))
    if found.dtype != expected.dtype:
        refuse(name, found, f"the dtype {expected.dtype}")
    size = np.maximum(np.abs(found), np.abs(expected))
    allowed = _ROUNDING * size + _ROUNDING_OF_START * np.where(np.isfinite(scale), scale, 0)
    known = np.isfinite(found) & np.isfinite(expected)
    if np.any(known & (np.abs(found - expected) > allowed)):
        refuse(name, found.tolist(), f"{expected.tolist()}, that of the last position,")
