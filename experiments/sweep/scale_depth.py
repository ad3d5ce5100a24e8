"""From lazy to saddle-to-saddle: escapes over the scale of initialisation and depth.

A sweep of `gf.sweeps` for each data set, of the gradient flow of the full loss until it
rests after the first escape: norms from 10 to 1e-30, depths 2 to 6, five seeds. When is the
first saddle left, where does the risk rest, and what ranks have the layers there? The
escape takes t ~ ‖θ(0)‖^(2−L) (Bantzis et al., section 2.1).

    python -m experiments.sweep.scale_depth [--smoke] [--out DIR] [--workers N]

resumes what is in the folder, prints a table, and writes a report of each sweep
(DATA/report.html), scalars over its axes (DATA.nc), the figure and claims.json.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Literal

import numpy as np
import xarray as xr

import gfdyn as gf
from experiments._common.claims import Claim, near
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.sweep._figure import draw, table
from gfdyn.sweeps.run._worker import configure


# From this norm on laws of small initialisation are fitted.
SMALL = 1e-8
# From this norm up training is lazy, and ranks stay as they were drawn.
LAZY = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The sweeps, one for each data set."""

    data: tuple[Literal["teacher", "digits", "circle"], ...] = ("teacher", "digits")
    """Data sets."""
    largest: float = 1e1
    """Largest norm ‖θ(0)‖."""
    smallest: float = 1e-30
    """Smallest norm."""
    scales: int = 11
    """How many norms, in equal ratios."""
    depths: tuple[int, ...] = (2, 3, 4, 5, 6)
    """Numbers of weight matrices."""
    seeds: int = 5
    """Directions of initialisation."""
    width: int = 16
    """Neurons of each hidden layer."""
    samples: int = 100
    """Samples of each data set."""
    rtol: float = 1e-4
    """Relative tolerance of the flow per step."""
    max_steps: int = 20_000
    """Most steps of a run."""
    workers: int | None = None
    """Processes to compute in; in this one if None."""
    smoke: bool = False
    """One data set, one depth and few norms, whatever the other settings."""
    out: Path = Path("results/sweep/scale_depth")
    """Folder to write to, and to resume from."""


SMOKE = {
    "data": ("teacher",),
    "largest": 1e-2,
    "smallest": 1e-18,
    "scales": 3,
    "depths": (3,),
    "seeds": 1,
    "width": 6,
    "samples": 12,
    "max_steps": 2000,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the sweeps, and write data, reports, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    # JAX keeps compiled programs in one folder a process.
    configure(settings.out / settings.data[0] / "cache", x64=True)
    started = time.perf_counter()
    found, claims = {}, []
    for data in settings.data:
        folder = settings.out / data
        gf.sweeps.run(spec_of(settings, data), folder)
        print(gf.sweeps.report(folder))
        found[data] = scalars(folder)
        print(table(data, found[data]))
        claims += claims_on(data, found[data])
    write(settings.out, settings, claims, found, {"escapes": draw(found)}, started)
    return 0


def spec_of(
    settings: Settings, data: Literal["teacher", "digits", "circle"]
) -> gf.sweeps.Spec:
    """The sweep on a data set."""
    engine = gf.sweeps.EngineSettings(
        name="serial" if settings.workers is None else "processes",
        workers=settings.workers,
    )
    return gf.sweeps.Spec(
        name=f"scale and depth, {data}",
        problem=gf.sweeps.ProblemSettings(data=data, samples=settings.samples),
        net=gf.sweeps.NetSettings(width=settings.width),
        run=gf.sweeps.EscapeSettings(),
        solver=gf.sweeps.SolverSettings(rtol=settings.rtol, max_steps=settings.max_steps),
        records=("risk", "stable_rank", "escape_speed"),
        axes={
            "net.init_scale": gf.sweeps.log(
                settings.largest, settings.smallest, settings.scales
            ),
            "net.depth": settings.depths,
            "net.seed": gf.sweeps.seeds(settings.seeds),
        },
        engine=engine,
    )


def scalars(folder: Path) -> xr.Dataset:
    """What the figure and the claims need of each point, over the axes of the sweep."""
    found = gf.sweeps.outcomes(folder).merge(gf.sweeps.escapes(folder))
    ranks = xr.full_like(found["escape_time"], np.nan)
    collected = gf.sweeps.collect(folder)
    is_tree = isinstance(collected, xr.DataTree)
    for node in collected.children.values() if is_tree else [collected]:
        if "stable_rank" not in node:
            continue  # None of these points could be computed.
        hidden = node["stable_rank"].isel(layer=slice(0, -1)).mean("layer")
        # Rows beyond the end of a run are NaN.
        last = (hidden.notnull().sum("save") - 1).clip(min=0)
        ranks = hidden.isel(save=last).combine_first(ranks)
    return found.assign(rank_at_end=ranks.transpose(*found["escape_time"].dims))


def claims_on(data: str, found: xr.Dataset) -> list[Claim]:
    """The laws of the first escape, and the ranks that it leaves behind."""
    ours = "not in the paper"
    failed = ~found["result"].isin(["successful", "stopped"])
    claims = [
        Claim(
            statement=f"{data}: points that failed",
            source=ours,
            measured=float(failed.sum()),
            high=0,
        ),
        Claim(
            statement=f"{data}: largest energy residual",
            source=ours,
            measured=float(found["energy_residual"].max()),
            high=1e-2,
        ),
    ]
    small = found.where(found["init_scale"] <= SMALL, drop=True)
    if small.sizes["init_scale"] == 0:
        return claims
    log_scale = -np.log(small["init_scale"].values)
    for depth in found["depth"].values[found["depth"].values > 2]:
        times = small["escape_log_time"].sel(depth=depth).transpose("init_scale", "seed")
        law = depth - 2.0
        worst = None
        if len(log_scale) > 1 and np.isfinite(times.values).all():
            exponents = np.polyfit(log_scale, times.values, 1)[0]
            worst = float(max(exponents, key=lambda value: abs(value - law)))
        decades = np.ptp(log_scale) / math.log(10)
        statement = (
            f"{data}, depth {depth}: d log t/d log(1/norm) of the first escape over "
            f"{decades:.0f} decades"
        )
        claims.append(near(statement, "section 2.1", worst, law, 0.02 * law))
    if found["init_scale"].max() < LAZY:
        return claims
    at_small = float(small["rank_at_end"].isel(init_scale=-1).median())
    at_large = float(found["rank_at_end"].isel(init_scale=0).median())
    claims.append(
        Claim(
            statement=f"{data}: median stable rank of hidden layers at the end, at the "
            "largest norm over at the smallest",
            source=ours,
            measured=None if math.isnan(at_small) else at_large / at_small,
            low=1.5,
        )
    )
    return claims


if __name__ == "__main__":
    sys.exit(main())
