"""What `plot` draws, as datasets: what was recorded, or is measured at the saves; risk and
norm at the steps."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import diagnostics
from ..flows import Polar
from ..losses import Linear
from ..nets import Wrapped
from ..run import Course, Trajectory, hashable, measure
from ._annotated import Dataset


# Singular values drawn of each layer.
_MOST_VALUES = 8


def measurements(traj: Trajectory, spectra: bool) -> Dataset:
    """`risk` or `log_risk`, `log_radius` or `norm`, `escape_speed`, and with `spectra`
    `stable_rank` and `singular_values`, over the saves, each where it says something.

    Spectra are of the nets at the saves, ρ for an EscapeFlow and θ else; a model that was
    wrapped as it is has no layers.
    """
    import xarray as xr

    reached = np.isfinite(np.asarray(traj.ts))
    flow: Any = traj.flow
    escape = flow.is_polar
    found: dict[str, np.ndarray] = {}
    if not (escape and flow.localized):
        name = "log_risk" if _in_logs(flow) else "risk"
        found[name] = _of(traj, name, getattr(diagnostics, name))
    if escape:
        found["log_radius"] = np.asarray(traj.log_radius, float)
    else:
        found["norm"] = np.exp(np.asarray(jax.vmap(flow.log_norm)(traj.positions), float))
    if escape or "escape_speed" in traj.records:
        found["escape_speed"] = _of(traj, "escape_speed", diagnostics.escape_speed)
    layered = not isinstance(traj.final_direction, Wrapped)
    variables: dict[str, Any] = {
        name: ("save", values[reached]) for name, values in found.items()
    }
    if spectra and layered:
        ranks, values = _spectra(traj, reached)
        variables["stable_rank"] = (("save", "layer"), ranks)
        variables["singular_values"] = (("save", "layer", "value"), values)
    return xr.Dataset(
        variables,
        coords={flow.clock_name: ("save", np.asarray(traj.ts)[reached])},
    )


def with_steps(traj: Trajectory, saves: Dataset) -> Dataset:
    """Risk and norm, which `measurements` has at the saves of a flow, at its steps too."""
    import xarray as xr

    course = traj.course
    if course is None:
        return xr.Dataset()
    clock = traj.flow.clock_name
    times = np.concatenate([saves[clock].values, np.asarray(course.ts)])
    times, order = np.unique(times, return_index=True)
    variables = {
        name: ("save", np.concatenate([saves[name].values, values])[order])
        for name, values in _along_course(traj, course).items()
        if name in saves
    }
    return xr.Dataset(variables, coords={clock: ("save", times)})


def _along_course(traj: Trajectory, course: Course) -> dict[str, np.ndarray]:
    """Risk, log r and norm at the steps."""
    log_norm = np.asarray(course.log_norm, float)
    degree = traj.final_direction.degree or 1
    found = {"norm": np.exp(log_norm), "log_radius": log_norm - 0.5 * math.log(degree)}
    # With a penalty, what falls is the objective.
    if not np.any(getattr(traj.flow, "weight_decay", 0.0)):
        found["risk"] = np.asarray(course.risk, float)
    return found


def _in_logs(flow: Any) -> bool:
    """Whether the flow goes on where the risk underflows."""
    clock = getattr(flow, "clock", "physical")
    return clock != "physical" and not isinstance(flow.problem.loss, Linear)


def _of(traj: Trajectory, name: str, function: Callable[..., Any]) -> np.ndarray:
    """The record of this name, one number a save, or the function at the saves: at ρ
    where θ may underflow and only its direction matters."""
    record = traj.records.get(name)
    if getattr(record, "ndim", None) == 1:
        return np.asarray(record, float)
    positions = traj.positions
    if isinstance(positions, Polar) and name == "escape_speed":
        on_sphere = jnp.zeros_like(positions.log_radius)
        positions = eqx.tree_at(lambda p: p.log_radius, positions, on_sphere)
    return np.asarray(measure(hashable(function), traj.flow, positions), float)


def _spectra(traj: Trajectory, reached: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stable ranks (T, L), and the largest singular values (T, L, k), 0 beyond the
    smaller side. By NumPy, where no program has to be compiled for them."""
    ranks, values = [], []
    for weights in jax.vmap(lambda at: traj.flow.direction(at).weights)(traj.positions):
        found = np.linalg.svd(np.asarray(weights)[reached], compute_uv=False).astype(float)
        largest = np.where(found[:, :1] > 0, found[:, :1], 1.0)
        ranks.append(np.sum((found / largest) ** 2, axis=1))
        top = found[:, :_MOST_VALUES]
        values.append(np.pad(top, ((0, 0), (0, _MOST_VALUES - top.shape[1]))))
    return np.stack(ranks, axis=1), np.stack(values, axis=1)
