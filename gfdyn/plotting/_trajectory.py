"""What is drawn of a trajectory: functions `(ax, dataset) -> None` on its dataset."""

import re
from typing import Any

import numpy as np

from .._numbers import check_number, is_not_negative
from ._annotated import Axes, DataArray, Dataset
from ._axes import clock_of, from_zero, log_axis, reach, symbol
from ._labels import label_ends
from ._style import PALETTE, shades


# Lines that are told apart; those beyond are grey.
_MOST_SHADES = 10


def loss(ax: Axes, dataset: Dataset) -> None:
    """The risk over the clock of the flow.

    Args:
        ax: where it is drawn.
        dataset: of `traj.to_xarray()`, with the record `risk`.
    """
    clock = clock_of(dataset)
    ax.plot(dataset[clock], _record(dataset, "risk"), color=PALETTE[0])
    ax.set(xlabel=symbol(clock), ylabel="risk", title="Loss")
    from_zero(ax)


def log_risk(ax: Axes, dataset: Dataset) -> None:
    """The log of the risk over the clock, where the risk itself underflows.

    Args:
        ax: where it is drawn.
        dataset: of `traj.to_xarray()`, with the record `log_risk`.
    """
    clock = clock_of(dataset)
    ax.plot(dataset[clock], _record(dataset, "log_risk"), color=PALETTE[0])
    ax.set(xlabel=symbol(clock), ylabel=r"$\log R$", title="Log loss")


def radius(ax: Axes, dataset: Dataset) -> None:
    """log r over the clock, straight where the norm grows exponentially.

    Args:
        ax: where it is drawn.
        dataset: of `traj.to_xarray()`, of an EscapeFlow.

    Raises:
        ValueError: if it is of another flow.
    """
    if "log_radius" not in dataset:
        raise ValueError(
            "the dataset has no log_radius: it is of no EscapeFlow; integrate one, or draw "
            "the norm of what was integrated by gf.plot(traj)."
        )
    clock = clock_of(dataset)
    ax.plot(dataset[clock], dataset["log_radius"], color=PALETTE[1])
    ax.set(xlabel=symbol(clock), ylabel=r"$\log r$", title="Radius")


def singular_values(ax: Axes, dataset: Dataset, layer: int) -> None:
    """The largest singular values of W_l of θ over the clock.

    Args:
        ax: where it is drawn.
        dataset: of `traj.to_xarray()`, with the record `singular_values`.
        layer: l, from 1 to L, as the papers count.
    """
    clock = clock_of(dataset)
    values = np.asarray(_record(dataset, "singular_values"))
    if not 1 <= layer <= values.shape[1]:
        raise ValueError(f"layer={layer}: layers are numbered 1 to {values.shape[1]}.")
    values = values[:, layer - 1, :]
    colours = _shades(values.shape[1])
    for i, column in enumerate(values.T):
        if not column.any():
            # Beyond the smaller side of the matrix there are none.
            continue
        name, order = rf"$\sigma_{{{i + 1}}}$", 2 - 0.01 * i
        ax.plot(dataset[clock], column, color=colours[i], zorder=order, label=name)
    ax.set(xlabel=symbol(clock), ylabel="singular values", title=f"$W_{{{layer}}}$")
    from_zero(ax)


def escape_speed(ax: Axes, dataset: Dataset) -> None:
    """The escape speed s(ρ) over the clock.

    Args:
        ax: where it is drawn.
        dataset: of `traj.to_xarray()`, with the record `escape_speed`.
    """
    clock = clock_of(dataset)
    ax.plot(dataset[clock], _record(dataset, "escape_speed"), color=PALETTE[2])
    ax.set(xlabel=symbol(clock), ylabel=r"$s(\rho)$", title="Escape speed")


def balance_drift(ax: Axes, dataset: Dataset) -> None:
    """The drift of the neurons' balance, over the largest ‖θ‖² of all saves.

    Args:
        ax: where it is drawn.
        dataset: of `traj.to_xarray()`, with the records `neuron_balance` and
            `layer_norms`.
    """
    clock = clock_of(dataset)
    _record(dataset, "layer_norms")
    largest = float((dataset["layer_norms"] ** 2).sum("layer").max())
    hidden = range(1, dataset.sizes["layer"])
    colours = _shades(len(hidden))
    for colour, layer in zip(colours, hidden, strict=True):
        balance = np.asarray(_record(dataset, f"neuron_balance_{layer}"))
        drift = np.abs(balance - balance[:1]).max(axis=1) / largest
        ax.plot(dataset[clock][1:], drift[1:], color=colour, label=f"layer {layer}")
    ax.set(
        xlabel=symbol(clock),
        ylabel=r"$\max_i |\delta_i - \delta_i(0)| / \max \|\theta\|^2$",
        title="Drift of the conserved balance",
        yscale="log",
    )
    label_ends(ax)


def stable_rank(ax: Axes, dataset: Dataset) -> None:
    """The stable rank of each W_l over the clock.

    Args:
        ax: where it is drawn.
        dataset: of `traj.to_xarray()`, with the record `stable_rank`.
    """
    clock = clock_of(dataset)
    layers = np.asarray(_record(dataset, "stable_rank")).T
    colours = _shades(len(layers))
    for layer, (column, colour) in enumerate(zip(layers, colours, strict=True), 1):
        ax.plot(dataset[clock], column, color=colour, label=f"$W_{{{layer}}}$")
    ax.set(xlabel=symbol(clock), ylabel="stable rank", title="Stable rank")
    reach(ax, 1.0)
    log_axis(ax)
    label_ends(ax)


def episodes(ax: Axes, dataset: Dataset, found: Any) -> None:
    """The loss with its plateaus shaded, over the clock of the flow.

    Args:
        ax: where it is drawn.
        dataset: of `traj.to_xarray()`, with the record `risk`.
        found: what `gf.escape.episodes` found in the trajectory.
    """
    loss(ax, dataset)
    plateaus = found.plateaus
    for k, (start, end) in enumerate(zip(plateaus.start, plateaus.end, strict=True)):
        ax.axvspan(start, end, color="0.92", zorder=-1)
        ax.annotate(
            f"{int(plateaus.bottleneck_rank[k])}",
            (0.5 * (start + end), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -3),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize="small",
        )
    ax.set_title("Plateaus and their bottleneck ranks")


def zoom_on_change(ax: Axes, dataset: Dataset, margin: float = 0.15) -> None:
    """Limit the time axis to where the risk changes: a long wait has no shape.

    Args:
        ax: whose axis it is.
        dataset: of `traj.to_xarray()`, with the record `risk`.
        margin: how much of the wait to keep before the first 0.1 % of the fall has
            happened, as a part of the time from there to the end; 0 or more.

    Raises:
        TypeError, ValueError: unless the margin is a number of at least 0.
    """
    remedy = "must be 0 or more: a part of the time after the wait, such as 0.15."
    check_number("margin", margin, is_not_negative, remedy)
    if window := change_window(dataset, margin):
        ax.set_xlim(*window)


def change_window(dataset: Dataset, margin: float = 0.15) -> tuple[float, float] | None:
    """The times to which `zoom_on_change` limits an axis; None if nothing falls
    before the last of them."""
    times = np.asarray(dataset[clock_of(dataset)])
    risk = np.asarray(_record(dataset, "risk"))
    fall = risk[0] - risk.min()
    moved = np.flatnonzero(risk < risk[0] - 1e-3 * fall)
    if not fall > 0 or times[moved[0]] == times[-1]:
        return None
    start, end = float(times[moved[0]]), float(times[-1])
    return max(float(times[0]), start - margin * (end - start)), end


def _record(dataset: Dataset, name: str) -> DataArray:
    if name not in dataset:
        name = re.sub(r"_\d+$", "", name)
        raise ValueError(
            f"the trajectory has no record {name!r}; pass "
            f"record={{{name!r}: gf.diagnostics.{name}}} to gf.solve."
        )
    return dataset[name]


def _shades(number: int) -> list[Any]:
    """A colour for each of so many lines that have an order."""
    told_apart = min(number, _MOST_SHADES)
    return [*shades(told_apart), *["0.7"] * (number - told_apart)]
