"""Speeds of many starts on the circle of Bantzis et al., drawn (Figs. 2 and 6)."""

import math

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gfdyn as gf


# Beyond what rank one reaches; a descent at a constant step chatters below its limit.
SUCCESS = math.sqrt(2) - 1 + 1e-3


def success(speeds: xr.DataArray) -> np.ndarray:
    """The fraction of starts faster than rank one, (width,)."""
    return np.asarray((speeds > SUCCESS).mean("start"))


def draw(problem: gf.Problem, descent: xr.Dataset, flow: xr.Dataset | None) -> Figure:
    """The data, the runs of the width of median success, the fractions (Fig. 2)."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    circle, runs, fractions = figure.subplots(1, 3)
    x, g = np.asarray(problem.data.x), np.asarray(problem.cost_gradient_at_zero)[:, 0]
    circle.scatter(*x.T, c=g, cmap="coolwarm", edgecolors="k")
    circle.set(aspect="equal", title="$G_j$ of $x_j$")
    final = success(descent["speed"][..., -1])
    row = int(np.argmin(np.abs(final - 0.5)))
    draw_runs(runs, descent.isel(width=row), most=30)
    fractions.plot(descent["width"], final, "o-", label="projected descent")
    if flow is not None:
        fractions.plot(flow["width"], success(flow["speed"]), "s--", label="gradient flow")
    fractions.set_xscale("log", base=2)
    fractions.set(
        xlabel="width", ylabel="fraction of $s > \\sqrt{2} - 1$", ylim=(-0.03, 1.03)
    )
    fractions.legend(fontsize="small", frameon=False)
    return figure


def draw_all(descent: xr.Dataset) -> Figure:
    """All runs of all widths (Fig. 6)."""
    number = descent.sizes["width"]
    figure = Figure(figsize=(3 * number, 2.8), layout="constrained")
    axes = figure.subplots(1, number, sharey=True, squeeze=False)[0]
    for row, ax in enumerate(axes):
        draw_runs(ax, descent.isel(width=row), most=None)
    return figure


def draw_runs(ax: Axes, runs: xr.Dataset, most: int | None) -> None:
    """The speed of some starts over the steps, blue where it gets beyond rank one."""
    for speeds in runs["speed"].values[:most]:
        colour = "C0" if speeds[-1] > SUCCESS else "0.7"
        ax.plot(runs["step"], speeds, color=colour, lw=0.8)
    ax.axhline(SUCCESS, color="k", lw=0.8, ls=":")
    ax.set(xlabel="step", ylabel="$s$", title=f"width {int(runs['width'])}")
