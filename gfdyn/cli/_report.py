"""What the command line reports of a run: a text and figures."""

import math
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import diagnostics, plotting
from ..run import Trajectory


# Panels side by side in a figure of two columns, and their height in inches
_COLUMNS, _HEIGHT = 3, 1.8
# What a run records, and the report needs.
RECORDS = {
    "risk": diagnostics.risk,
    "singular_values": partial(diagnostics.singular_values, k=10),
    "stable_rank": diagnostics.stable_rank,
    "layer_norms": diagnostics.layer_norms,
    "neuron_balance": diagnostics.neuron_balance,
    "escape_speed": diagnostics.escape_speed,
}


def report(traj: Trajectory) -> str:
    """The summary of a trajectory, with its escape speed, radius and spectra."""
    at_end = jax.tree.map(lambda rows: rows[-1], traj.records)
    log_radius = np.asarray(jax.vmap(traj.flow.log_radius)(traj.positions))
    lines = [
        traj.summary(),
        f"  radius r         {np.exp(log_radius[0]):.4g} → {np.exp(log_radius[-1]):.4g}"
        f" (log r {log_radius[0]:.4g} → {log_radius[-1]:.4g})",
        f"  escape speed     {float(traj.records['escape_speed'][0]):.4g} at the start, "
        f"{float(at_end['escape_speed']):.4g} at the end",
        "  layer  norm      stable rank  top singular values",
    ]
    for i, values in enumerate(np.asarray(at_end["singular_values"])):
        top = "  ".join(f"{value:.3g}" for value in values[:5])
        lines.append(
            f"  W{i + 1:<4}  {float(at_end['layer_norms'][i]):<8.4g}  "
            f"{float(at_end['stable_rank'][i]):<11.4g}  {top}"
        )
    return "\n".join(lines)


def figures(traj: Trajectory) -> dict[str, Figure]:
    """The figures of a run, by name; `overview` is the one to look at first."""
    with plotting.style():
        return _figures(traj.to_xarray())


def _figures(dataset: xr.Dataset) -> dict[str, Figure]:
    made = {
        "overview": _overview(dataset),
        "loss": _single(plotting.loss, dataset),
        "escape_speed": _single(plotting.escape_speed, dataset),
        "conserved": _single(plotting.balance_drift, dataset),
    }
    depth = dataset.sizes["layer"]
    columns = min(_COLUMNS, depth)
    rows = math.ceil(depth / columns)
    size = (plotting.TWO_COLUMNS, _HEIGHT * rows)
    grid = Figure(figsize=size, layout="constrained")
    for layer, ax in enumerate(grid.subplots(rows, columns, squeeze=False).flat, 1):
        if layer <= depth:
            _draw_zoomed(partial(plotting.singular_values, layer=layer), ax, dataset)
        else:
            ax.set_axis_off()
    return made | {"singular_values": grid}


def _overview(dataset: xr.Dataset) -> Figure:
    """The loss, the escape speed, and the spectra of the first layer and of one behind it,
    where the run changes most."""
    later = dataset.sizes["layer"] // 2 + 1
    panels: list[Callable[..., None]] = [plotting.loss, plotting.escape_speed]
    panels += [partial(plotting.singular_values, layer=i) for i in sorted({1, later})]
    size = (plotting.TWO_COLUMNS, _HEIGHT)
    figure = Figure(figsize=size, layout="constrained")
    for draw, ax in zip(panels, figure.subplots(1, len(panels)), strict=True):
        _draw_zoomed(draw, ax, dataset)
    return figure


def _single(draw: Callable[..., None], dataset: xr.Dataset) -> Figure:
    figure = Figure(figsize=(plotting.ONE_COLUMN, 2.2), layout="constrained")
    ax = figure.subplots()
    _draw_zoomed(draw, ax, dataset)
    # Labels are kept apart in the layout.
    figure.draw_without_rendering()
    plotting.label_ends(ax)
    return figure


def _draw_zoomed(draw: Callable[..., None], ax: Axes, dataset: xr.Dataset) -> None:
    draw(ax, dataset)
    plotting.zoom_on_change(ax, dataset)
