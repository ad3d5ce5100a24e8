"""The classes of matplotlib that are named in annotations, which do not load it."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.text import Text as Text
else:
    Axes = Figure = Text = Any
