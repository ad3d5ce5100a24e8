"""A chain of saddles in one figure."""

import numpy as np

from ..escape import Chain
from ._annotated import Axes, Figure
from ._style import PALETTE, TWO_COLUMNS, shades, style


def chain_figure(found: Chain, width: float = TWO_COLUMNS) -> Figure:
    """The risk, and the size of each branch, over the clock of what grows.

    In this clock both waits and escapes are seen: from e^-200 at speed s a wait is 200/s
    long, an escape some 10/s.
    """
    from matplotlib.figure import Figure as NewFigure

    with style():
        figure = NewFigure(figsize=(width, 0.33 * width), layout="constrained")
        left, right = figure.subplots(1, 2)
        _risk(left, found)
        _branches(right, found)
        for ax in (left, right):
            ax.set(xlabel=r"$\tau$, the clock of what grows", xlim=(0, found.clock[-1]))
    return figure


def _risk(ax: Axes, found: Chain) -> None:
    ax.plot(found.clock, found.risk, color=PALETTE[0])
    for saddle in found.saddles:
        ax.axhline(saddle.risk, color="0.85", linewidth=0.6, zorder=-1)
    ax.set(ylabel="$R$", title="Risk, and that of each saddle")


def _branches(ax: Axes, found: Chain) -> None:
    sizes = found.log_radii
    # From dark to light as they learn, those that do not last.
    grown = sizes >= 0.5 * (sizes[:1] + found.log_radii.max())
    order = np.argsort(np.where(grown.any(axis=0), grown.argmax(axis=0), len(sizes)))
    for branch, colour in zip(order, shades(len(order)), strict=True):
        ax.plot(found.clock, sizes[:, branch], color=colour)
    ax.set(ylabel=r"$\log r_b$", title="The size of each branch")
