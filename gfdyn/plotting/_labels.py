"""Lines named at their ends, in their colours, where a legend would have too many rows."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .._numbers import check_number, is_positive
from ._annotated import Axes, Text


# Points between the axes and a label, and the height of a row over the size of its letters.
_OFFSET, _SPACING = 3.0, 1.15
_LABEL = "end label"


def label_ends(ax: Axes, fontsize: float = 7.0) -> list[Text]:
    """Write the label of each line at the right of the axes, in the colour of the line.

    Labels keep the order in which the lines end and do not overlap; where there is no room
    for all, evenly chosen ones are left out. Lines without a label (`_...`) get none.

    They are placed for the limits and the size of the axes as they are. Called again, as
    after `figure.draw_without_rendering()` has made the layout, it places them anew.

    Args:
        ax: the axes that the lines are in.
        fontsize: of the labels, in points.

    Raises:
        TypeError, ValueError: unless the size is a positive number.
    """
    check_number("fontsize", fontsize, is_positive, "must be positive, such as 7 points.")
    for text in [text for text in ax.texts if text.get_gid() == _LABEL]:
        text.remove()
    lines = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    height = ax.bbox.height * 72 / ax.figure.dpi
    gap = _SPACING * fontsize
    room = 1 + int(height / gap)
    if len(lines) > room:
        chosen = np.linspace(0, len(lines) - 1, room).round().astype(int)
        lines = [lines[i] for i in chosen]
    ends = np.array([_end(ax, line) for line in lines]) * height
    texts = []
    for line, end, place in zip(lines, ends, spread(ends, gap, height), strict=True):
        texts.append(
            ax.annotate(
                str(line.get_label()),
                (1.0, end / height),
                xycoords="axes fraction",
                xytext=(_OFFSET, place - end),
                textcoords="offset points",
                color=line.get_color(),
                fontsize=fontsize,
                va="center_baseline",
                annotation_clip=False,
                gid=_LABEL,
            )
        )
    return texts


def spread(
    ends: Float[np.ndarray, " labels"], gap: float, height: float
) -> Float[np.ndarray, " labels"]:
    r"""The places in [0, height] nearest to the ends, in their order and `gap` apart.

    The least $\sum_i (p_i - e_i)^2$: isotonic regression of what is left when the gaps are
    taken out, by pooling neighbours that are out of order.
    """
    order = np.argsort(ends, kind="stable")
    gaps = gap * np.arange(len(ends))
    means: list[float] = []
    counts: list[int] = []
    for value in ends[order] - gaps:
        mean, count = float(value), 1
        while means and means[-1] > mean:
            before, number = means.pop(), counts.pop()
            mean = (before * number + mean * count) / (number + count)
            count += number
        means.append(mean)
        counts.append(count)
    most = max(0.0, height - gap * (len(ends) - 1))
    places = np.empty(len(ends))
    places[order] = np.clip(np.repeat(means, counts), 0.0, most) + gaps
    return places


def _end(ax: Axes, line: Any) -> float:
    """Where the last point of the line is, as a fraction of the height of the axes."""
    x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not len(known):
        return 0.0
    at = ax.transData.transform((x[known[-1]], y[known[-1]]))
    fraction = ax.transAxes.inverted().transform(at)[1]
    return float(np.clip(np.nan_to_num(fraction), 0.0, 1.0))
