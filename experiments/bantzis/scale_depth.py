"""Plateaus against scale of initialisation and depth (Bantzis et al., section 5).

The gradient flow of the full loss, from the same directions at ever smaller norm, for nets
of 2 to 5 layers on the data of a small teacher. `gf.escape.episodes` segments each
trajectory: how many plateaus does it leave, at which losses, how fast and how sharply? The
paper has the claims in words; all numbers are ours.

    python -m experiments.bantzis.scale_depth [--smoke] [--out DIR]

prints a table and writes the runs (runs.nc), a row for each plateau that one leaves
(escapes.nc), the figure and claims.json.
"""

import dataclasses
import math
import sys
import time
from itertools import pairwise, product
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

import gfdyn as gf
from experiments._common.claims import Claim, near
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.bantzis._first_escape import (
    ORIGIN,
    STRETCHED_TAU,
    distance,
    first_fall,
    medians,
    origin,
    outcome,
    plateaus_left,
)
from experiments.bantzis._scale_depth_figure import draw, table
from gfdyn._progress import progress_bar


NAMES = ("depth", "seed", "log_norm")
# From this norm on laws of small initialisation are fitted.
SMALL = -10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The sweep over depth, seed and norm of initialisation."""

    depths: tuple[int, ...] = (2, 3, 4, 5)
    """Numbers of weight matrices."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Directions of initialisation."""
    log_norms: tuple[float, ...] = (0.0, -1.0, -3.0, -10.0, -20.0, -40.0)
    """log ‖θ(0)‖, falling, with three from −10 on at the least."""
    width: int = 16
    """Neurons of each hidden layer."""
    samples: int = 12
    """Samples of the teacher, which has 3 inputs, 3 hidden neurons and 2 outputs."""
    teacher: int = 3
    """Seed of the teacher and its inputs."""
    floor: float = 0.05
    """A run ends when the risk has fallen to this part of the risk at θ = 0."""
    rtol: float = 1e-6
    """Relative tolerance of the flow per step."""
    max_steps: int = 1500
    """Most steps of a run. Late saddles of deep nets are left at a degree above 2, which
    takes a power of 1/‖θ(0)‖ in τ as well: such a run ends on its last plateau."""
    smoke: bool = False
    """One depth and few norms, whatever the other settings."""
    out: Path = Path("results/bantzis/scale_depth")
    """Folder to write to."""


SMOKE = {"depths": (2,), "seeds": (0,), "log_norms": (0.0, -10.0, -20.0, -40.0)}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    check(settings.log_norms)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    runs, escapes = sweep(settings)
    print(table(runs, escapes))
    claims = [*plateau_claims(runs, escapes), *law_claims(escapes)]
    data = {"runs": runs, "escapes": escapes}
    write(settings.out, settings, claims, data, {"plateaus": draw(runs, escapes)}, started)
    return 0


def check(log_norms: tuple[float, ...]) -> None:
    """Raise unless laws can be fitted to runs at these norms.

    Raises:
        ValueError: if the norms do not fall, or fewer than three are small.
    """
    small = sum(log_norm <= SMALL for log_norm in log_norms)
    if small < 3 or any(b >= a for a, b in pairwise(log_norms)):
        raise ValueError(
            f"log_norms={log_norms} must fall, and hold three of {SMALL:g} or below: the "
            "laws of small initialisation are fitted there."
        )


def sweep(settings: Settings) -> tuple[xr.Dataset, xr.Dataset]:
    """What there is to know of each run (depth, seed, log_norm), with its `risk` over
    stretched τ, and of each plateau that one leaves (row)."""
    data = gf.data.teacher(settings.samples, [3, 3, 2], key=jr.key(settings.teacher))
    flow = gf.EscapeFlow(gf.Problem(data, gf.losses.squared))
    at_zero = float(flow.problem.cost(jnp.zeros_like(data.y)))
    grid = {name: list(getattr(settings, f"{name}s")) for name in NAMES}
    shape = tuple(map(len, grid.values()))
    outcomes, rows = [], []
    with progress_bar(total=math.prod(shape), unit=" runs") as bar:
        for depth, seed in product(settings.depths, settings.seeds):
            net = gf.nets.MLP([3, *[settings.width] * (depth - 1), 2], key=jr.key(seed))
            runs = {}
            for log_norm in settings.log_norms:
                bar.set_postfix_str(f"depth {depth}, seed {seed}, e^{log_norm:g}")
                start = gf.nets.scaled_to_norm(net, math.exp(log_norm))
                runs[log_norm] = follow(settings, flow, start, settings.floor * at_zero)
                bar.update()
            limit = runs[settings.log_norms[-1]]
            risks = first_fall(limit)
            for log_norm, run in runs.items():
                left = plateaus_left(run, at_zero)
                outcomes.append(outcome(run, at_zero, 1 - log_norm))
                # Those that it leaves, and the one on which it ends.
                outcomes[-1]["plateaus"] = len(left) + (run.stopped_by is None)
                for row in left:
                    from_origin = row["loss"] > ORIGIN
                    row["distance"] = distance(run, limit, risks) if from_origin else np.nan
                    rows.append(
                        row | dict(zip(NAMES, (depth, seed, log_norm), strict=True))
                    )
    variables = {}
    for name in outcomes[0]:
        values = np.stack([each[name] for each in outcomes])
        dims = (*NAMES, "point")[: len(NAMES) + values.ndim - 1]
        variables[name] = (dims, values.reshape(*shape, *values.shape[1:]))
    columns = {name: ("row", np.array([row[name] for row in rows])) for name in rows[0]}
    coords = grid | {"stretched_tau": ("point", STRETCHED_TAU)}
    return xr.Dataset(variables, coords=coords), xr.Dataset(columns)


def follow(
    settings: Settings, flow: gf.EscapeFlow, net: gf.nets.MLP, floor: float
) -> gf.Trajectory:
    """The full flow from this net until the risk has fallen to the floor."""
    # At the start and after each step, of which an escape has few; an even number.
    saves = 2 * (settings.max_steps // 2 + 1)
    run = gf.solve(
        flow,
        net,
        math.inf,
        ts=gf.AcceptedSteps(saves),
        solver=gf.solvers.ExactKinks(rtol=settings.rtol),
        stop=gf.stopping.RiskBelow(floor),
        max_steps=settings.max_steps,
        throw=False,
        derivatives="forward",
    )
    # As many rows in each run, the last one repeated: what measures them compiles once.
    rows = np.minimum(np.arange(saves), len(run.ts) - 1)
    saved = (run.ts, run.positions, run.log_time)
    repeated = jax.tree.map(lambda leaf: leaf[rows], saved)
    return eqx.tree_at(lambda t: (t.ts, t.positions, t.log_time), run, repeated)


def plateau_claims(runs: xr.Dataset, escapes: xr.Dataset) -> list[Claim]:
    """More and sharper plateaus as the scale falls, and sharper ones with depth."""
    number, ours = runs["plateaus"].mean("seed"), "not in the paper"
    more = number.isel(log_norm=-1) - number.isel(log_norm=0)
    log_norms, depths = runs["log_norm"].values, runs["depth"].values
    in_t = [medians(escapes, "log_sharpness", depth, log_norms) for depth in depths]
    small = log_norms[log_norms <= SMALL]
    in_tau = [medians(escapes, "sharpness", depth, small) for depth in depths]
    deeper = np.diff([ratios[-1] for ratios in in_t])
    return [
        Claim(
            statement="largest energy residual of all runs",
            source=ours,
            measured=float(runs["energy_residual"].max()),
            high=1e-3,
        ),
        Claim(
            statement="mean number of plateaus at the smallest norm, less that at the "
            "largest: the fewest of all depths",
            source=ours,
            measured=float(more.min()),
            low=0.5,
        ),
        Claim(
            statement="log of first plateau over first escape, in t: smallest rise from "
            "norm to norm",
            source=ours,
            measured=float(np.nanmin(np.diff(in_t))),
            low=0,
        ),
        Claim(
            statement="first plateau over first escape, in τ: smallest rise from norm to "
            f"norm, of those from e^{SMALL:g} on",
            source=ours,
            measured=float(np.min(np.diff(in_tau))),
            low=0,
        ),
        Claim(
            statement="log of first plateau over first escape, in t, at the smallest norm: "
            "smallest rise from depth to depth",
            source="section 5 (4)",
            measured=float(deeper.min()) if len(deeper) else None,
            low=0,
        ),
    ]


def law_claims(escapes: xr.Dataset) -> list[Claim]:
    """Laws of the first escape as the norm falls, the worst of the seeds."""
    claims = []
    for depth in np.unique(escapes["depth"]):
        exponents, slopes, falls, last = [], [], [], []
        for seed in np.unique(escapes["seed"]):
            first = origin(escapes, depth=depth, seed=seed)
            small = first.isel(row=np.flatnonzero(first["log_norm"] <= SMALL))
            log_scale = -small["log_norm"].values
            exponents.append(np.polyfit(log_scale, small["log_end"].values, 1)[0])
            slope = np.polyfit(log_scale, small["end"].values, 1)[0]
            speeds = small["speed"].values
            if np.isfinite(speeds).any():
                slopes.append(slope * np.nanmedian(speeds))
            # The last run is what the others are compared with.
            apart = first["distance"].values[:-1]
            falls.append(np.max(apart[1:] / apart[:-1]))
            last.append(apart[-1])
        claims += [
            near(
                f"depth {depth}: s dτ/d log(1/norm) of the first escape",
                "section 2.2",
                max(map(float, slopes), key=lambda value: abs(value - 1), default=None),
                1.0,
                0.02,
            ),
            Claim(
                statement=f"depth {depth}: distance of the nets of the first escape from "
                "those of the smallest norm, ratio from norm to norm",
                source="section 2.1",
                measured=float(max(falls)),
                high=1.0,
            ),
            Claim(
                statement=f"depth {depth}: that distance at the second smallest norm",
                source="section 2.1",
                measured=float(max(last)),
                high=1e-3,
            ),
        ]
        if depth > 2:
            worst = max(exponents, key=lambda value: abs(value - (depth - 2)))
            claims.append(
                near(
                    f"depth {depth}: d log t/d log(1/norm) of the first escape",
                    "section 2.1",
                    float(worst),
                    depth - 2.0,
                    0.02,
                )
            )
    return claims


if __name__ == "__main__":
    sys.exit(main())
