"""How figures look: sizes, colours and letters."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .._numbers import check_counts


ONE_COLUMN = 3.25
"""The width of one column, in inches."""

TWO_COLUMNS = 6.75
"""The width of the text of a page of two columns, in inches."""

PALETTE = ("#004488", "#BB5566", "#DDAA33", "#44AA99", "#222222")
"""Colours that colour-blind readers tell apart, and all of us in grey: no two are equally
light (after P. Tol)."""

_SETTINGS = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "figure.titlesize": 9.0,
    "axes.prop_cycle": f"cycler('color', {list(PALETTE)})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.xmargin": 0.0,
    "axes.grid": False,
    "axes.unicode_minus": True,
    "axes.formatter.use_mathtext": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.0,
    "figure.figsize": (ONE_COLUMN, 2.2),
    "figure.dpi": 150.0,
    "savefig.dpi": "figure",
    # As text, which journals ask for, and not as outlines
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """The style of the figures, for what is made and saved inside `with style():`.

    matplotlib's settings outside are as they were. To be printed as drawn, a figure is
    `ONE_COLUMN` or `TWO_COLUMNS` inches wide.
    """
    from matplotlib import rc_context

    settings: Any = _SETTINGS
    with rc_context(settings):
        yield


def shades(number: int) -> list[tuple[float, float, float, float]]:
    """Colours of things that have an order, from dark to light.

    They are those of viridis but for its lightest fifth, which is lost on white.

    Args:
        number: how many; 0 or more.

    Raises:
        ValueError: unless it is a whole number of at least 0.
    """
    check_counts(0, number=number)
    from matplotlib import colormaps

    viridis = colormaps["viridis"]
    return [viridis(0.8 * i / max(1, number - 1)) for i in range(number)]
