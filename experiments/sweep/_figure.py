"""First escapes over scale and depth as a table and as a figure."""

from collections.abc import Iterator, Mapping

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
    """A row for each data set: where the risk has plateaus, when the first is left against
    the law t ~ ‖θ(0)‖^(2−L), where the risk rests then, and the ranks of the hidden layers
    there."""
    figure = Figure(figsize=(16, 3.8 * len(found)), layout="constrained")
    rows = figure.subplots(len(found), 4, squeeze=False)
    for (data, dataset), axes in zip(found.items(), rows, strict=True):
        _map_plateaus(axes[0], dataset)
        _compare_times(axes[1], dataset)
        _lines(axes[2], dataset, "final_risk")
        _lines(axes[3], dataset, "rank_at_end")
        axes[2].set_yscale("log")
        axes[3].legend(fontsize="small", frameon=False)
        titles = (
            f"{data}: plateaus, mean over seeds",
            r"$\log t$ of first escape ($\cdots$ slope 1)",
            "risk at the end",
            "stable rank of hidden layers at the end",
        )
        for ax, title in zip(axes, titles, strict=True):
            ax.set_title(title, fontsize="medium")
    return figure


def _map_plateaus(ax: Axes, dataset: xr.Dataset) -> None:
    """A cell for each depth and norm, with its number."""
    numbers = dataset["num_plateaus"].mean("seed").transpose("depth", "init_scale").values
    # Pale enough for the numbers on it.
    most = 1.5 * np.nanmax(numbers, initial=1.0)
    ax.imshow(numbers, cmap="Blues", vmin=0, vmax=most, aspect="auto")
    for (row, column), number in np.ndenumerate(numbers):
        if np.isfinite(number):
            ax.text(column, row, f"{number:.2g}", ha="center", va="center", fontsize=8)
    exponents = np.log10(dataset["init_scale"].values)
    shown = range(0, len(exponents), max(1, len(exponents) // 5))
    ax.set_xticks(shown, [f"$10^{{{exponents[column]:.3g}}}$" for column in shown])
    ax.set_yticks(range(len(numbers)), map(str, dataset["depth"].values))
    ax.set(xlabel=r"$\|\theta_0\|$", ylabel="depth")


def _compare_times(ax: Axes, dataset: xr.Dataset) -> None:
    """Each escape over what the law has of its log t; at depth 2 that is constant."""
    for depth, colour in _colours(dataset):
        if depth > 2:
            times = dataset["escape_log_time"].sel(depth=depth)
            law = -(depth - 2) * np.log(dataset["init_scale"].values)
            ax.plot(law, times.transpose("init_scale", "seed"), ".", color=colour)
    ax.axline((0, 0), slope=1, color="k", lw=0.8, ls=":", zorder=0)
    ax.set_xlabel(r"$(L - 2)\, \log 1/\|\theta_0\|$")


def _lines(ax: Axes, dataset: xr.Dataset, name: str) -> None:
    """Medians over the seeds, a line a depth, with the points they are of."""
    scales = dataset["init_scale"].values
    for depth, colour in _colours(dataset):
        values = dataset[name].sel(depth=depth).transpose("init_scale", "seed")
        ax.plot(scales, values.values, ".", color=colour, ms=3, alpha=0.5)
        middle = values.median("seed").values
        ax.plot(scales, middle, color=colour, label=f"depth {depth}")
    ax.set(xlabel=r"$\|\theta_0\|$", xscale="log")
    ax.invert_xaxis()


def _colours(dataset: xr.Dataset) -> Iterator[tuple[int, tuple[float, ...]]]:
    """The depths, each with its colour."""
    depths = dataset["depth"].values
    for k, depth in enumerate(depths):
        yield int(depth), colormaps["viridis"](0.9 * k / max(1, len(depths) - 1))


def _medians(found: xr.Dataset) -> xr.Dataset:
    numbers = [name for name, each in found.data_vars.items() if each.dtype.kind == "f"]
    return found[numbers].median("seed")
