"""Classes of matplotlib and xarray as annotations name them, neither of which is loaded."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.text import Text as Text
    from xarray import DataArray as DataArray, Dataset as Dataset
else:
    Axes = Figure = Text = DataArray = Dataset = Any
