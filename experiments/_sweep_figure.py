"""First escapes over scale and depth as a table and as a figure."""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def table(data: str, found: xr.Dataset) -> str:
    """A line for each depth and norm: medians over the seeds."""
    lines = [
        f"{data}: medians over seeds",
        f"{'depth':>5} {'norm':>8} {'plateaus':>8} {'escape τ':>9} {'log t':>8} "
        f"{'risk at end':>11} {'rank':>6}",
    ]
    middle = _medians(found)
    for depth in middle["depth"].values:
        for scale in middle["init_scale"].values:
            row = middle.sel(depth=depth, init_scale=scale)
            lines.append(
                f"{depth:5d} {scale:8.1e} {float(row['num_plateaus']):8g} "
                f"{float(row['escape_time']):9.4g} {float(row['escape_log_time']):8.4g} "
                f"{float(row['final_risk']):11.4g} {float(row['rank_at_end']):6.3g}"
            )
    return "\n".join(lines)


def draw(found: Mapping[str, xr.Dataset]) -> Figure:
    """A row for each data set: when the first saddle is left, where the risk rests after
    that, and the ranks of the hidden layers there."""
    figure = Figure(figsize=(13, 3.6 * len(found)), layout="constrained")
    rows = figure.subplots(len(found), 4, squeeze=False)
    panels = {
        "escape_time": r"first escape, $\tau$",
        "escape_log_time": r"first escape, $\log t$",
        "final_risk": "risk at the end",
        "rank_at_end": "stable rank of hidden layers",
    }
    for (data, dataset), axes in zip(found.items(), rows, strict=True):
        for (name, label), ax in zip(panels.items(), axes, strict=True):
            _lines(ax, dataset, name)
            ax.set(xlabel=r"$\|\theta_0\|$", title=f"{data}: {label}", xscale="log")
            ax.invert_xaxis()
        axes[0].legend(fontsize="small", frameon=False)
    return figure


def _lines(ax: Axes, dataset: xr.Dataset, name: str) -> None:
    """Medians over the seeds, a line a depth, with the points they are of."""
    depths = dataset["depth"].values
    for k, depth in enumerate(depths):
        colour = colormaps["viridis"](0.9 * k / max(1, len(depths) - 1))
        values = dataset[name].sel(depth=depth).transpose("init_scale", "seed")
        scales = dataset["init_scale"].values
        ax.plot(scales, values.values, ".", color=colour, ms=3, alpha=0.5)
        ax.plot(scales, np.median(values, axis=1), color=colour, label=f"depth {depth}")


def _medians(found: xr.Dataset) -> xr.Dataset:
    numbers = [name for name, each in found.data_vars.items() if each.dtype.kind == "f"]
    return found[numbers].median("seed")
