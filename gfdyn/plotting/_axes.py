"""The clock along an axis, and axes in the log."""

from typing import Literal

import numpy as np
from jaxtyping import Float

from ._annotated import Axes, Dataset


# Beyond this ratio a straight axis hides what is small.
_WIDE = 100.0


def clock_of(dataset: Dataset) -> str:
    """The clock of a trajectory's dataset: the coordinate along its saves."""
    return next(str(name) for name, c in dataset.coords.items() if c.dims == ("save",))


def symbol(clock: str) -> str:
    """The clock as it is written along an axis."""
    return {"t": "$t$", "tau": r"$\tau$"}[clock]


def is_wide(values: Float[np.ndarray, "..."]) -> bool:
    """Whether the values are positive and span more than two decades, NaN apart."""
    known = values[np.isfinite(values)]
    return bool(len(known) and known.min() > 0 and known.max() > _WIDE * known.min())


def reach(ax: Axes, value: float) -> None:
    """Have the y-axis reach this value."""
    if ax.lines:
        ax.update_datalim([(ax.dataLim.x0, value)])
        ax.autoscale_view()


def from_zero(ax: Axes) -> None:
    """Have the y-axis begin at 0 exactly, unless something lies below."""
    for line in ax.lines:
        line.sticky_edges.y.append(0.0)
    reach(ax, 0.0)


def log_axis(ax: Axes, name: Literal["x", "y"] = "y") -> None:
    """The x- or y-axis in the log, with few ticks: powers of ten where there are two or
    more of them in view, round numbers in plain digits else."""
    from matplotlib.ticker import (
        FixedLocator,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
    )

    ax.set(**{f"{name}scale": "log"})
    axis = {"x": ax.xaxis, "y": ax.yaxis}[name]
    low, high = axis.get_view_interval()
    axis.set_minor_formatter(NullFormatter())
    powers = np.arange(np.ceil(np.log10(low)), np.floor(np.log10(high)) + 1)
    if len(powers) > 1:
        axis.set_major_locator(LogLocator(numticks=5))
        return
    decade = 10.0 ** np.floor(np.log10(low))
    round_numbers = decade * np.array([1.0, 2.0, 5.0, 10.0, 20.0, 50.0])
    in_view = round_numbers[(low <= round_numbers) & (round_numbers <= high)]
    few = MaxNLocator(nbins=4, steps=[1, 2, 5, 10])
    axis.set_major_locator(FixedLocator(in_view) if len(in_view) > 2 else few)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
