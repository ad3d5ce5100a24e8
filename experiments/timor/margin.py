"""Gradient flow of the exponential loss on its way to the maximum margin (Timor et al.).

Lemma 1 (Lyu & Li; Ji & Telgarsky): where the loss goes to 0, the direction converges to a
KKT point of min ‖θ‖² subject to y f ≥ 1. Theorem 5 is about its global optimum, and the
paper suggests that the flow tends there. The paper has no experiment on it. Here the flow
runs in arc length until an optimum of its norm had the margin 1000^(k/2), and its ‖θ‖² at
margin 1 is compared with the least one that a search finds. Lemma 1 promises no more than a
KKT point: on XOR at k = 3 one run comes to a KKT point that is no optimum.

    python -m experiments.timor.margin [--smoke] [--out DIR]

writes the runs (margin.nc), the figure and claims.json.
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.timor._least_norm import Case, cases
from gfdyn._progress import progress_bar
from gfdyn.theory import timor


Name = Literal["T5-a", "T5-b"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The flow on ±1 told apart, and on XOR."""

    names: tuple[Name, ...] = ("T5-a", "T5-b")
    """Which data sets."""
    shallow: int = 2
    """The smallest depth k."""
    deep: int = 3
    """The largest."""
    width: int = 8
    """Of all hidden layers."""
    scale: float = 0.5
    """Standard deviation of the initial weights, neurons balanced."""
    margin: float = 1000.0
    """The margin at depth 2 at which a run ends, if its direction is optimal; at depth k
    its power k/2, which is at the same ‖θ‖ but for a factor."""
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    """One run for each."""
    max_steps: int = 3000
    """Of the solver, after which a run has not separated the data."""
    smoke: bool = False
    """One run on XOR at depth 2 to a small margin."""
    out: Path = Path("results/timor/margin")
    """Folder to write to."""


SMOKE = {"names": ("T5-b",), "deep": 2, "margin": 20.0, "seeds": (2,)}
# Saves of a run, between the margin 1 and its last one
GRID = 60


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    chosen = [case for case in cases() if case.name in settings.names]
    depths = list(range(settings.shallow, settings.deep + 1))
    parts = []
    with progress_bar(
        total=len(chosen) * len(depths) * len(settings.seeds), unit=" runs"
    ) as bar:
        for case in chosen:
            of_depths = [runs(settings, case, depth, bar) for depth in depths]
            parts.append(xr.concat(of_depths, xr.DataArray(depths, dims="depth")))
    names = [case.name for case in chosen]
    found = xr.concat(parts, xr.DataArray(names, dims="case", name="case"))
    found = found.assign_coords(case=names, depth=depths)
    claims = [
        claim
        for case in chosen
        for depth in depths
        for claim in make_claims(case, depth, found.sel(case=case.name, depth=depth))
    ]
    figures = {"margin": draw(chosen, found)}
    write(settings.out, settings, claims, {"margin": found}, figures, started)
    return 0


def runs(settings: Settings, case: Case, depth: int, bar: Any) -> xr.Dataset:
    """The runs of one data set and depth, over `seed`."""
    rows = []
    for seed in settings.seeds:
        rows.append(run(settings, case, depth, seed))
        bar.update()
    return xr.Dataset(
        {
            name: (("seed", "save") if np.ndim(value) else "seed", [r[name] for r in rows])
            for name, value in rows[0].items()
        },
        coords={"seed": list(settings.seeds)},
    )


def run(settings: Settings, case: Case, depth: int, seed: int) -> dict[str, Any]:
    """One run: margins, ‖θ‖² at margin 1 and smoothed margins at saves; its end."""
    widths = [case.problem.data.dim, *[settings.width] * (depth - 1), 1]
    init = gf.nets.balanced(settings.scale)
    net = gf.nets.MLP(widths, key=jax.random.key(seed), init=init)
    # ‖θ‖² of the optimum at the last margin
    square = settings.margin * case.square_norm(depth)
    traj = gf.solve(
        gf.GradientFlow(case.problem, clock="arc"),
        net,
        jnp.inf,
        ts=gf.AcceptedSteps(1000),
        record={
            "margin": gf.diagnostics.margin,
            "normalised": gf.diagnostics.normalised_margin,
            "smoothed": gf.diagnostics.smoothed_margin,
        },
        stop=gf.stopping.RadiusAbove(jnp.sqrt(square / depth)),
        solver=gf.solvers.ExactKinks(rtol=1e-7),
        max_steps=settings.max_steps,
        throw=False,
    )
    energy = {"energy_residual": float(traj.certificate.energy_residual)}
    if not traj.records["margin"][-1] > 1:
        nothing = np.zeros(GRID)
        rows = dict.fromkeys(("margin", "square_norm", "smoothed"), nothing)
        return {"separated": 0.0, **rows, "least_rise": 0.0, "residual": 0.0, **energy}
    final: Any = traj.final
    end = {"residual": float(timor.kkt(case.problem, final).residual)}
    return {"separated": 1.0, **along_margins(traj.records, depth), **end, **energy}


def along_margins(records: Any, depth: int) -> dict[str, Any]:
    """‖θ‖² at margin 1 and smoothed margins, on a grid of margins from 1 to the last; the
    least relative rise of smoothed margins, once they are positive."""
    margin = np.asarray(records["margin"])
    # From 0 on it rises.
    after = np.flatnonzero(margin <= 0)[-1] + 1 if np.any(margin <= 0) else 0
    grid = np.geomspace(1, margin[-1], GRID)
    logs = np.log(np.maximum.accumulate(margin[after:]))
    smoothed = np.asarray(records["smoothed"])
    square_norm = np.asarray(records["normalised"])[after:] ** (-2 / depth)
    positive = smoothed[smoothed > 0]
    return {
        "margin": grid,
        "square_norm": np.interp(np.log(grid), logs, square_norm),
        "smoothed": np.interp(np.log(grid), logs, smoothed[after:]),
        "least_rise": float(np.min(np.diff(positive) / positive[1:], initial=1.0)),
    }


def make_claims(case: Case, depth: int, found: xr.Dataset) -> list[Claim]:
    """Of one data set and depth, over the runs that separate the data."""
    done = found.isel(seed=np.flatnonzero(found["separated"].values))
    some = done.sizes["seed"] > 0
    best = case.square_norm(depth)
    squares = done["square_norm"].values[:, -1]
    where = f"{case.name}, k = {depth}: "
    return [
        Claim(
            statement=where + "runs that separate the data",
            source="not in the paper",
            measured=float(found["separated"].sum()),
            low=1,
        ),
        Claim(
            statement=where + "smallest relative rise of −log L/‖θ‖^k between steps",
            source="Lemma 1; Lyu & Li",
            measured=float(done["least_rise"].min()) if some else None,
            low=-1e-6,
        ),
        Claim(
            statement=where + "smallest ‖θ‖² at margin 1 over the optimum's",
            source="section 5, the text after Thm 5: suggests that GF tends there",
            measured=float(squares.min() / best) if some else None,
            low=1 - 1e-6,
            high=1.05,
        ),
        Claim(
            statement=where + "largest KKT residual in the end",
            source="Lemma 1, at a finite margin",
            measured=float(done["residual"].max()) if some else None,
            high=0.2,
        ),
        farthest(case, depth, float(squares.max() / best) if some else None),
    ]


def farthest(case: Case, depth: int, measured: float | None) -> Claim:
    """All runs come near the optimum, but those on XOR at depth 3: one nears a KKT point of
    13 per cent more, as its residual shows, which falls to 0.01 at larger margins."""
    statement = f"{case.name}, k = {depth}: largest ‖θ‖² at margin 1 over the optimum's"
    if (case.name, depth) == ("T5-b", 3):
        source = "ours: a KKT point that is no optimum; Lemma 1 promises no more"
        return Claim(statement=statement, source=source, measured=measured, low=1.1)
    return Claim(statement=statement, source="ours", measured=measured, high=1.05)


def draw(chosen: list[Case], found: xr.Dataset) -> Figure:
    """‖θ‖² at margin 1 against the margin, for each data set and depth."""
    depths = found["depth"].values
    figure = Figure(figsize=(4 * len(depths), 3.2 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), len(depths), squeeze=False)
    for row, case in zip(axes, chosen, strict=True):
        for ax, depth in zip(row, depths, strict=True):
            best = case.square_norm(int(depth))
            for run in (
                found.sel(case=case.name, depth=depth, seed=s) for s in found["seed"]
            ):
                if run["separated"]:
                    ax.semilogx(run["margin"], run["square_norm"] / best, lw=1)
            ax.axhline(1, color="k", lw=0.8, ls=":")
            ax.set(title=f"{case.name}: {case.title}, $k = {depth}$", xlabel="margin")
            ax.set_ylim(0.95, 2.2)
    for row in axes:
        row[0].set_ylabel(r"$\|\theta\|^2$ at margin 1 / optimum")
    return figure


if __name__ == "__main__":
    sys.exit(main())
