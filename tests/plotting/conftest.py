"""Axes to draw on."""

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure


@pytest.fixture
def ax() -> Axes:
    return Figure().subplots()
