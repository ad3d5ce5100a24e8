"""Trajectories read from files: what they hold must hang together."""

import operator
import os
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ._begin import SolveState
from ._files import read_file
from ._kink_log import Kinks
from ._recomputed import check_against_flow, is_off
from ._results import RESULTS, is_ok, name_of
from ._schema import (
    Axes,
    check_own_fields,
    check_range,
    layout,
    refuse,
    without_axes,
)
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
    annotated += ("flow", "final_position", "certificate", "kinks", "checkpoint", "rtol")
    annotated += ("course",)
    of_python = ("records", "stop_names", "result", "solver")
    axes = {**dict.fromkeys(annotated, batch), **dict.fromkeys(of_python, ())}
    check_own_fields(traj, "", axes)
    check_own_fields(traj, "", {"positions": rows})
    _check_shapes(traj, batch, rows)
    _check_ranges(traj)
    _check_result(traj, batch)
    if traj.kinks is not None:
        _check_kinks(traj.kinks, rows)
    check_against_flow(traj, batch)


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
    names += ["rtol", "course"]
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
        check_range(f"stats.{name}", count, 0)
    check_range("certificate.choices", traj.certificate.choices, 0)
    check_range("stop_index", traj.stop_index, -1, len(traj.stop_names) - 1)
    for name in _RESIDUALS:
        value = getattr(traj.certificate, name)
        if np.any(np.asarray(value) < 0):
            refuse(f"certificate.{name}", value, "0 or more")
    if not np.all(np.asarray(traj.rtol) >= 0):
        refuse("rtol", traj.rtol, "0 or more")
    # Rows that were not reached are NaN, those of a batch or of a jitted solve. The time of
    # a descent runs back where its optimizer goes uphill.
    ts = np.asarray(traj.ts)
    reached = ~np.isnan(ts)
    if (
        np.any(np.diff(ts) < 0 if not traj.is_descent else is_off(ts, traj.log_time))
        or np.any(np.isinf(ts))
        or np.any(~reached[..., :-1] & reached[..., 1:])
    ):
        refuse("ts", ts, "times, the earliest first,")
    if traj.course is not None:
        times = np.asarray(traj.course.ts)
        if np.any(np.diff(times) < 0) or np.any(np.isinf(times)):
            refuse("course.ts", times, "times, the earliest first,")
    data = traj.problem.data
    for name, numbers in (("x", data.x), ("y", data.y)):
        if not np.all(np.isfinite(numbers)):
            refuse(f"flow.problem.data.{name}", np.asarray(numbers), "a finite number")


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
    # In NumPy, where rows are chosen without a program for each shape
    rows = jax.tree.map(np.asarray, traj.positions)
    numbers["positions"] = [leaf[written] for leaf in jax.tree.leaves(rows)]
    if not traj.is_descent:
        numbers["log_time"] = np.asarray(traj.log_time)[written]
        numbers["log_interval"] = np.asarray(traj.log_interval)[written[1:]]
        numbers["final_log_time"] = traj.final_log_time
    if traj.course is not None:
        numbers["course"] = traj.course
    if traj.kinks is not None:
        numbers["kinks.gates"] = [np.asarray(g)[written] for g in traj.kinks.gates]
        numbers["kinks.sliding_fraction"] = traj.kinks.sliding_fraction
    for name, tree in numbers.items():
        for leaf in jax.tree.leaves(tree):
            if np.any(np.isnan(np.asarray(leaf))):
                refuse(name, np.asarray(leaf), "a number, as the solve succeeded,")
    for leaf in jax.tree.leaves(rows):
        if not np.all(np.isnan(leaf[~written])):
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
    check_range("kinks.num_lost", kinks.num_lost, 0)
    check_range("kinks.layer", kinks.layer, 1, len(shapes))
    check_range("kinks.unit", kinks.unit, 0, widest - 1)
    check_range("kinks.sample", kinks.sample, 0, samples - 1)
    check_range("kinks.kind", kinks.kind, 0, len(Kinks.kinds) - 1)
    for name in ("side", "other_side"):
        if (sides := getattr(kinks, name)) is not None:
            check_range(f"kinks.{name}", sides, -1, len(Kinks.sides) - 1)
