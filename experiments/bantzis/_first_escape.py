"""The plateaus that a trajectory leaves, and how its first escape compares with others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import gfdyn as gf


# The parts of the first fall at which nets are compared.
PARTS = np.linspace(0.9, 0.1, 9)
# A plateau above this part of the risk at θ = 0 is the one at the origin.
ORIGIN = 0.95
# The risk is kept over τ in units of 1 + log 1/‖θ(0)‖, in which its corners converge.
STRETCHED_TAU = np.linspace(0.0, 12.0, 1201)


def outcome(run: gf.Trajectory, at_zero: float, stretch: float) -> dict[str, Any]:
    """How a run went, and its risk, of `at_zero`, over τ in units of `stretch`."""
    risk = np.asarray(run.measure(gf.diagnostics.risk)) / at_zero
    tau = np.asarray(run.ts) / stretch
    return {
        "reached_floor": run.stopped_by is not None,
        "steps": int(run.stats["num_steps"]),
        "tau": float(run.final_time),
        "energy_residual": float(run.certificate.energy_residual),
        "risk": np.interp(STRETCHED_TAU, tau, risk),
    }


def plateaus_left(run: gf.Trajectory, at_zero: float) -> list[dict[str, Any]]:
    """A row for each plateau that the run leaves: where it is, how it is left."""
    found = gf.escape.episodes(run)
    plateaus, escapes, rows = found.plateaus, found.escapes, []
    for e in np.flatnonzero(escapes.plateau >= 0):
        p = escapes.plateau[e]
        stay = float(plateaus.start[p]), float(plateaus.end[p])
        fall = float(escapes.start[e]), float(escapes.end[e])
        rows.append(
            {
                "plateau": int(p),
                "loss": float(plateaus.loss[p]) / at_zero,
                "bottleneck_rank": int(plateaus.bottleneck_rank[p]),
                "end": float(plateaus.end[p]),
                "log_end": float(plateaus.log_end[p]),
                "speed": float(escapes.speed[e]),
                "degree": float(escapes.degree[e]),
                # How long it stays over how long the fall takes, in τ; the log of it in t.
                "sharpness": (stay[1] - stay[0]) / (fall[1] - fall[0]),
                "log_sharpness": log_duration(run, *stay) - log_duration(run, *fall),
            }
        )
    return rows


def log_duration(run: gf.Trajectory, start: float, end: float) -> float:
    """log of the physical time that passes between two values of τ.

    From the intervals of the saves: differences of log t would be lost in rounding.
    """
    intervals = np.asarray(run.log_interval)
    ts = np.asarray(run.ts)[: len(intervals) + 1]
    overlap = np.minimum(ts[1:], end) - np.maximum(ts[:-1], start)
    inside = overlap > 0
    parts = np.log(overlap[inside] / np.diff(ts)[inside])
    return float(np.logaddexp.reduce(intervals[inside] + parts))


def first_fall(run: gf.Trajectory) -> np.ndarray:
    """Risks on the way from the first plateau to what follows it."""
    loss = gf.escape.episodes(run).plateaus.loss
    bottom = loss[1] if len(loss) > 1 else float(run.final_risk)
    return bottom + PARTS * (loss[0] - bottom)


def distance(run: gf.Trajectory, limit: gf.Trajectory, risks: np.ndarray) -> float:
    """The largest ‖θ − θ'‖/‖θ'‖ of the nets of two runs where they have these risks."""
    nets, others = (gf.escape.aligned(each, risks) for each in (run, limit))
    gaps = jax.vmap(gf.nets.norm)(jax.tree.map(jnp.subtract, nets, others))
    return float(jnp.max(gaps / jax.vmap(gf.nets.norm)(others)))


def medians(
    escapes: xr.Dataset, name: str, depth: int, log_norms: np.ndarray
) -> np.ndarray:
    """Over the seeds, of the first escapes from these norms; NaN where there is none."""
    found = []
    for log_norm in log_norms:
        values = origin(escapes, depth=depth, log_norm=log_norm)[name].values
        values = values[np.isfinite(values)]
        found.append(np.median(values) if len(values) else np.nan)
    return np.array(found)


def origin(escapes: xr.Dataset, **where: float) -> xr.Dataset:
    """The rows of plateaus at the origin, of these depths, seeds or norms."""
    rows = escapes["loss"] > ORIGIN
    for name, value in where.items():
        rows &= escapes[name] == value
    return escapes.isel(row=np.flatnonzero(rows))
