"""Figures of a trajectory: functions `(ax, dataset) -> None` on `Trajectory.to_xarray()`.

They draw on the axes they are given and leave figures, sizes and files to the caller.
"""

import re
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes


def loss(ax: Axes, dataset: xr.Dataset) -> None:
    """The risk over the clock of the flow. Needs the record `risk`."""
    clock = _clock(dataset)
    ax.plot(dataset[clock], _record(dataset, "risk"), color="C0")
    ax.set(xlabel=_symbol(clock), ylabel="risk", title="Loss")
    ax.set_ylim(bottom=min(0.0, float(dataset["risk"].min())))


def singular_values(ax: Axes, dataset: xr.Dataset, layer: int) -> None:
    """The largest singular values of W_l of θ over the clock.

    Needs the record `singular_values`. `layer` counts from 1, as the papers do.
    """
    clock = _clock(dataset)
    values = np.asarray(_record(dataset, "singular_values"))
    if not 1 <= layer <= values.shape[1]:
        raise ValueError(f"layer={layer}: layers are numbered 1 to {values.shape[1]}.")
    values = values[:, layer - 1, :]
    for i, column in enumerate(values.T):
        ax.plot(dataset[clock], column, color=_shade(i), zorder=-i, lw=1.2)
    ax.set(xlabel=_symbol(clock), ylabel="singular values", title=f"$W_{{{layer}}}$")
    ax.set_ylim(bottom=0)


def escape_speed(ax: Axes, dataset: xr.Dataset) -> None:
    """The escape speed s(ρ) over the clock. Needs the record `escape_speed`."""
    clock = _clock(dataset)
    ax.plot(dataset[clock], _record(dataset, "escape_speed"), color="C2")
    ax.set(xlabel=_symbol(clock), ylabel=r"$s(\rho)$", title="Escape speed")


def balance_drift(ax: Axes, dataset: xr.Dataset) -> None:
    """The drift of the neurons' balance, over the largest ‖θ‖² of all saves.

    Needs the records `neuron_balance` and `layer_norms`.
    """
    clock = _clock(dataset)
    _record(dataset, "layer_norms")
    largest = float((dataset["layer_norms"] ** 2).sum("layer").max())
    hidden = range(1, dataset.sizes["layer"])
    for i, layer in enumerate(hidden):
        balance = np.asarray(_record(dataset, f"neuron_balance_{layer}"))
        drift = np.abs(balance - balance[:1]).max(axis=1) / largest
        ax.plot(dataset[clock][1:], drift[1:], color=_shade(i), label=f"layer {i + 1}")
    ax.set(
        xlabel=_symbol(clock),
        ylabel=r"$\max_i |\delta_i - \delta_i(0)| / \max \|\theta\|^2$",
        title="Drift of the conserved balance",
        yscale="log",
    )
    if hidden:
        ax.legend(fontsize="small", frameon=False)


def stable_rank(ax: Axes, dataset: xr.Dataset) -> None:
    """The stable rank of each W_l over the clock. Needs the record `stable_rank`."""
    clock = _clock(dataset)
    for i, column in enumerate(np.asarray(_record(dataset, "stable_rank")).T):
        ax.plot(dataset[clock], column, color=_shade(i), label=f"$W_{{{i + 1}}}$")
    ax.set(xlabel=_symbol(clock), ylabel="stable rank", title="Stable rank", yscale="log")
    ax.legend(fontsize="small", frameon=False)


def episodes(ax: Axes, dataset: xr.Dataset, found: Any) -> None:
    """The loss with its plateaus shaded, over the clock of the flow.

    Needs the record `risk`; `found` is what `gf.escape.episodes` found in the trajectory.
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


def zoom_on_change(ax: Axes, dataset: xr.Dataset, margin: float = 0.15) -> None:
    """Limit the time axis to where the risk changes: a long wait has no shape.

    From where the first 0.1 % of the fall has happened back by `margin` of what follows.
    """
    clock = _clock(dataset)
    times, risk = np.asarray(dataset[clock]), np.asarray(_record(dataset, "risk"))
    fall = risk[0] - risk.min()
    moved = np.flatnonzero(risk < risk[0] - 1e-3 * fall)
    if fall > 0 and len(moved):
        start, end = times[moved[0]], times[-1]
        ax.set_xlim(max(times[0], start - margin * (end - start)), end)


def _clock(dataset: xr.Dataset) -> str:
    return next(str(name) for name, c in dataset.coords.items() if c.dims == ("save",))


def _symbol(clock: str) -> str:
    return {"t": "$t$", "tau": r"$\tau$"}[clock]


def _record(dataset: xr.Dataset, name: str) -> xr.DataArray:
    if name not in dataset:
        name = re.sub(r"_\d+$", "", name)
        raise ValueError(
            f"the trajectory has no record {name!r}; pass "
            f"record={{{name!r}: gf.diagnostics.{name}}} to gf.solve."
        )
    return dataset[name]


def _shade(i: int) -> Any:
    """The colour of the i-th line: those beyond ten are grey."""
    return f"C{i}" if i < 10 else "0.7"
