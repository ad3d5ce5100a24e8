"""All of a trajectory in one figure."""

import math
import textwrap
from collections.abc import Callable, Sequence

import numpy as np

from ..escape import Chain
from ..run import Trajectory, is_ok, name_of
from . import _trajectory as panels
from ._annotated import Axes, Dataset, Figure
from ._axes import clock_of, is_wide, log_axis, symbol
from ._caption import caption as caption_of, lanes
from ._chain import chain_figure
from ._labels import label_ends
from ._measurements import measurements, with_steps
from ._style import PALETTE, TWO_COLUMNS, style


# Inches of a panel: its least width, its height; a letter of the caption, and a line.
_NARROWEST, _HEIGHT, _LETTER, _LINE = 1.55, 1.45, 0.046, 0.11
_CAPTION_SIZE = 6.5
_MOST_LAYERS = 8
# A line that jumps by more than this part of its axis shows its saves.
_JUMP = 0.15
# Time is in the log where the middle save comes before this part of it.
_EARLY = 0.1
# A wait is left out where it takes more than this part of it.
_LONG = 0.5


def plot(
    traj: Trajectory | Chain,
    *,
    layers: Sequence[int] | None = None,
    width: float = TWO_COLUMNS,
    caption: bool = True,
) -> Figure:
    """Draw a trajectory: risk, norm, escape speed, stable ranks and singular values.

    Of a chain of saddles the risk and the size of each branch, in the clock of what grows.

    Risk and norm are drawn at all steps of the solver too, by `traj.course`, however few
    saves there are; all else at the saves, as is the risk of a descent, with a penalty, or
    in a clock of the loss or of arc length. Of a flow that was solved under `jax.vmap` all
    lanes, one over the other, without spectra. Axes are in the log where values are
    positive and span more than two decades.

    Lines are straight, as the velocity jumps at kinks. Where one jumps, its points are
    marked: `ts=gf.AcceptedSteps()` has as many saves as there are steps, and
    `ts=jnp.linspace(0, traj.final_time, 500)` takes as many as you like from the dense
    output of the steps.

    The figure belongs to no window: `figure.savefig("run.pdf")` writes it; in a notebook
    `%matplotlib inline` shows it. Fonts are embedded as text when it is saved inside
    `with gf.plotting.style():`.

    Args:
        traj: what `gf.solve`, `gf.descend`, `gf.load` or `gf.escape.chain` gave.
        layers: those whose singular values are drawn, from 1; at most eight of them, evenly
            chosen, if None. With `()` no spectra are computed.
        width: of the figure in inches.
        caption: whether to write below what `gf.plotting.caption(traj)` says.

    Raises:
        TypeError: if `traj` is no trajectory.
        ValueError: on layers that are not there, or no width.
    """
    from matplotlib.figure import Figure as NewFigure

    if not (math.isfinite(width) and width > 0):
        raise ValueError(f"width={width} must be positive, in inches, such as 6.75.")
    if isinstance(traj, Chain):
        return chain_figure(traj, width)
    if not isinstance(traj, Trajectory):
        raise TypeError(
            f"traj must be a gf.Trajectory, got {type(traj).__name__}; gf.solve gives one. "
            "The functions of gf.plotting draw a dataset."
        )
    parts = lanes(traj)
    spectra = len(parts) == 1 and (layers is None or len(layers) > 0)
    found = [measurements(part, spectra) for part in parts]
    dense = [with_steps(part, saves) for part, saves in zip(parts, found, strict=True)]
    drawn = _layers(found[0], layers)
    summary = _summary_panels(found[0])
    columns = max(1, int(width / _NARROWEST))
    rows = [math.ceil(len(summary) / columns), math.ceil(len(drawn) / columns)]
    text = textwrap.fill(caption_of(traj), int(width / _LETTER)) if caption else ""
    notice = _notice(parts)
    lines = text.count("\n") + 1 if text else 0
    height = _HEIGHT * sum(rows) + _LINE * lines + (0.2 if notice else 0.0)
    with style():
        figure = NewFigure(figsize=(width, height), layout="constrained")
        halves = [figure]
        if drawn:
            halves = list(figure.subfigures(2, 1, height_ratios=rows, squeeze=False).flat)
        grid = _grid(halves[0], len(summary), columns, sharey=False)
        for ax, (name, draw) in zip(grid, summary.items(), strict=True):
            _draw_lanes(ax, dense if name in dense[0] else found, draw)
        _label_lowest(grid, columns)
        if len(parts) > 1:
            _note(grid[0], f"{len(parts)} lanes")
        if drawn:
            small = _grid(halves[1], len(drawn), columns, sharey=True)
            _draw_layers(small, found[0], drawn, traj.flow.is_polar)
            grid = [*grid, *small]
            _label_lowest(small, columns)
        _limit_times(grid, found, traj.flow.is_polar)
        for ax in grid:
            _thin_ticks(ax)
            if len(parts) == 1:
                _mark_jumps(ax)
        if text:
            figure.supxlabel(text, fontsize=_CAPTION_SIZE, x=0.01, ha="left")
        if notice:
            figure.suptitle(notice, color=PALETTE[1])
        labelled = [ax for ax in grid if any(text.get_gid() for text in ax.texts)]
        if labelled:
            # The layout gives the axes their heights, in which labels are kept apart.
            figure.draw_without_rendering()
        for ax in labelled:
            label_ends(ax)
    return figure


def _layers(found: Dataset, layers: Sequence[int] | None) -> list[int]:
    """The layers to draw, none of a dataset without spectra."""
    if "singular_values" not in found:
        if layers:
            raise ValueError(
                f"layers={tuple(layers)}: a batch, or a model that was wrapped as it is, "
                "has no spectra to draw; leave layers out, or plot one lane, "
                "traj.lane(0)."
            )
        return []
    number = found.sizes["layer"]
    if layers is None:
        chosen = np.linspace(1, number, min(number, _MOST_LAYERS))
        return chosen.round().astype(int).tolist()
    for layer in layers:
        if not 1 <= layer <= number:
            raise ValueError(
                f"layers={tuple(layers)}: {layer} is no layer; they are numbered 1 to "
                f"{number}."
            )
    return list(layers)


def _summary_panels(found: Dataset) -> dict[str, Callable[[Axes, Dataset], None]]:
    """What is drawn of all layers together, by the variable that it shows."""
    known = {
        "risk": _risk,
        "log_risk": panels.log_risk,
        "norm": _norm,
        "log_radius": panels.radius,
        "escape_speed": panels.escape_speed,
        "stable_rank": panels.stable_rank,
    }
    return {name: draw for name, draw in known.items() if name in found}


def _grid(figure: Figure, number: int, columns: int, sharey: bool) -> list[Axes]:
    """So many axes in rows."""
    columns = min(columns, number)
    rows = math.ceil(number / columns)
    grid = figure.subplots(rows, columns, sharex=True, sharey=sharey, squeeze=False)
    axes = list(grid.flat)
    for ax in axes[number:]:
        ax.set_axis_off()
    return axes[:number]


def _label_lowest(axes: Sequence[Axes], columns: int) -> None:
    """Times and clock below the lowest axes of each column, not between rows."""
    for ax in axes[:-columns]:
        ax.set_xlabel("")
    for ax in axes[-columns:]:
        ax.tick_params(labelbottom=True)


def _draw_lanes(
    ax: Axes, found: Sequence[Dataset], draw: Callable[[Axes, Dataset], None]
) -> None:
    """The lanes over each other, faint where there is more than one; risk and norm in the
    log where they are wide."""
    for dataset in found:
        draw(ax, dataset)
    if len(found) > 1:
        for line in ax.lines:
            line.set(alpha=max(0.15, min(0.7, 5 / len(found))), linewidth=0.7)
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    if draw in (_risk, _norm) and is_wide(values):
        ax.relim()
        log_axis(ax)


def _risk(ax: Axes, dataset: Dataset) -> None:
    panels.loss(ax, dataset)
    ax.set_ylabel("$R$")


def _norm(ax: Axes, dataset: Dataset) -> None:
    clock = clock_of(dataset)
    ax.plot(dataset[clock], dataset["norm"], color=PALETTE[1])
    ax.set(xlabel=symbol(clock), ylabel=r"$\|\theta\|$", title="Norm")


def _draw_layers(
    axes: Sequence[Axes], found: Dataset, layers: Sequence[int], of_direction: bool
) -> None:
    """The singular values of each layer, in the log where the largest ones grow far."""
    for ax, layer in zip(axes, layers, strict=True):
        panels.singular_values(ax, found, layer)
        ax.set_ylabel("")
    axes[0].set_ylabel(r"$\sigma_i$ of $\rho$" if of_direction else r"$\sigma_i$")
    values = found["singular_values"].values[:, [layer - 1 for layer in layers]]
    if is_wide(values[..., 0]):
        # What is far below all that the largest ones go through is rounding.
        axes[0].set_ylim(0.1 * values[..., 0].min(), 2 * values.max())
        for ax in axes:
            log_axis(ax)
    else:
        axes[0].set_ylim(0.0, 1.05 * values.max())


def _limit_times(axes: Sequence[Axes], found: Sequence[Dataset], keep_wait: bool) -> None:
    """The times at which something happens: in the log where most saves, which follow the
    steps, or most of the fall are early; without a long wait. Of an escape flow the wait
    is kept, as its direction converges in it."""
    times = [dataset[clock_of(dataset)].values for dataset in found]
    every, end = np.concatenate(times), max(part[-1] for part in times)
    later = every[every > 0]
    early = len(later) > 0 and np.median(later) < _EARLY * end
    if not keep_wait and "risk" in found[0]:
        early = early or _most_fallen(found[0]) < _EARLY * end
    if every.min() == 0 and len(later) and early:
        for ax in axes:
            ax.set_xlim(max(later.min(), 1e-4 * end), end)
            log_axis(ax, "x")
    elif not keep_wait and len(found) == 1 and "risk" in found[0]:
        window = panels.change_window(found[0])
        if window and window[0] - every.min() > _LONG * (end - every.min()):
            for ax in axes:
                ax.set_xlim(*window)


def _most_fallen(dataset: Dataset) -> float:
    """When the risk has fallen by nine tenths of all that it falls; ∞ if it does not."""
    risk = dataset["risk"].values
    fallen = risk <= risk[0] - 0.9 * (risk[0] - risk.min())
    times = dataset[clock_of(dataset)].values
    return float(times[fallen][0]) if risk.min() < risk[0] else math.inf


def _thin_ticks(ax: Axes) -> None:
    """A few ticks on each straight axis: panels are small."""
    for axis in ("x", "y"):
        if getattr(ax, f"get_{axis}scale")() == "linear":
            ax.locator_params(axis=axis, nbins=4, min_n_ticks=3)


def _mark_jumps(ax: Axes) -> None:
    """Show the saves between which a line jumps: what is between them is a guess."""
    to_axes = ax.transData - ax.transAxes
    for line in ax.lines:
        heights = to_axes.transform(line.get_xydata())[:, 1]
        jumps = np.abs(np.diff(np.clip(heights, 0.0, 1.0)))
        before = np.flatnonzero(jumps > _JUMP)
        if len(before):
            ends = sorted({*before.tolist(), *(before + 1).tolist()})
            line.set(marker="o", markersize=2.5, markevery=ends)


def _note(ax: Axes, text: str) -> None:
    ax.annotate(
        text,
        (1.0, 1.0),
        xycoords="axes fraction",
        xytext=(-2, -2),
        textcoords="offset points",
        ha="right",
        va="top",
    )


def _notice(parts: Sequence[Trajectory]) -> str:
    """What must not be overlooked: that a solve failed, or the certificate of a flow, which
    no descent is."""
    failed = [part for part in parts if not is_ok(part.result)]
    if failed:
        reasons = sorted({name_of(part.result).replace("_", " ") for part in failed})
        of = f"{len(failed)} of {len(parts)} lanes " if len(parts) > 1 else ""
        return f"{of}failed: {', '.join(reasons)}".capitalize()
    flows = [part for part in parts if not part.is_descent]
    if not all(bool(part.certificate.holds) for part in flows):
        return "The certificate does not hold"
    return ""
