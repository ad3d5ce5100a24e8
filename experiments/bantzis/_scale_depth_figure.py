"""A sweep over scale and depth as a table and as a figure."""

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.figure import Figure

from experiments.bantzis._first_escape import STRETCHED_TAU, medians


def table(runs: xr.Dataset, escapes: xr.Dataset) -> str:
    """A line for each depth and norm."""
    lines = [
        "Plateaus of each seed, losses of those that the first one leaves. Of the first "
        "escape, medians: s, length\nof plateau over escape in τ, log of that in t, "
        "distance of the nets from those of the smallest norm.",
        f"{'depth':>5} {'log norm':>8}  {'plateaus':<12} {'losses/R(0)':<22} {'s':>7} "
        f"{'in τ':>7} {'log in t':>8} {'distance':>8}",
    ]
    log_norms = runs["log_norm"].values
    for depth in runs["depth"].values:
        names = ("speed", "sharpness", "log_sharpness", "distance")
        columns = [medians(escapes, name, depth, log_norms) for name in names]
        for log_norm, *values in zip(log_norms, *columns, strict=True):
            counts = runs["plateaus"].sel(depth=depth, log_norm=log_norm).values
            rows = (escapes["depth"] == depth) & (escapes["log_norm"] == log_norm)
            rows &= escapes["seed"] == runs["seed"].values[0]
            losses = " ".join(f"{loss:.3f}" for loss in escapes["loss"].values[rows])
            cells = ["-" if np.isnan(value) else f"{value:.3g}" for value in values]
            lines.append(
                f"{depth:5d} {log_norm:8g}  {' '.join(map(str, counts)):<12} {losses:<22} "
                f"{cells[0]:>7} {cells[1]:>7} {cells[2]:>8} {cells[3]:>8}"
            )
    return "\n".join(lines)


def draw(runs: xr.Dataset, escapes: xr.Dataset) -> Figure:
    """The risk of the first seed at each depth; below, means and medians of all."""
    depths, log_norms = runs["depth"].values, runs["log_norm"].values
    figure = Figure(figsize=(13, 6), layout="constrained")
    parts = figure.subfigures(2, 1, squeeze=False)[:, 0]
    panels = parts[0].subplots(1, len(depths), squeeze=False, sharey=True)[0]
    for depth, ax in zip(depths, panels, strict=True):
        for k, log_norm in enumerate(log_norms):
            risk = runs["risk"].isel(seed=0).sel(depth=depth, log_norm=log_norm)
            colour = colormaps["viridis_r"](0.1 + 0.9 * k / (len(log_norms) - 1))
            label = f"$e^{{{log_norm:g}}}$"
            ax.plot(runs["stretched_tau"], risk, color=colour, lw=1.3, label=label)
        ax.set(xlabel=r"$\tau \; / \; (1 + \log 1/\|\theta_0\|)$", title=f"depth {depth}")
        ax.set(ylim=(0, 1.05), xlim=(0, STRETCHED_TAU[-1]))
    panels[0].set_ylabel("$R / R(0)$")
    panels[0].legend(title=r"$\|\theta_0\|$", fontsize="small", frameon=False)
    axes = parts[1].subplots(1, 4)
    for k, depth in enumerate(depths):
        style = {"color": f"C{k}", "marker": "o", "label": f"depth {depth}"}
        number = runs["plateaus"].sel(depth=depth).mean("seed")
        axes[0].plot(-log_norms, number, **style)
        for ax, name in zip(axes[1:], ("sharpness", "log_end", "distance"), strict=True):
            values = medians(escapes, name, depth, log_norms)
            # The last run has no distance from itself.
            ax.plot(-log_norms, np.where(values == 0, np.nan, values), **style)
        reach = -log_norms[[0, -1]]
        axes[2].plot(reach, (depth - 2) * reach, color="k", lw=0.8, ls=":", zorder=0)
    axes[0].set_title("plateaus", fontsize="medium")
    axes[1].set_title(r"first plateau / first escape in $\tau$", fontsize="medium")
    axes[2].set_title(
        r"$\log t$ of first escape ($\cdots$ slope $L - 2$)", fontsize="medium"
    )
    axes[3].set_title("distance of nets at first escape", fontsize="medium")
    axes[3].set_yscale("log")
    axes[0].legend(fontsize="small", frameon=False)
    for ax in axes:
        ax.set_xlabel(r"$\log 1/\|\theta_0\|$")
    return figure
