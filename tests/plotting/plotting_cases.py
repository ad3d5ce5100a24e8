"""A dataset to draw, and what is read from axes."""

import itertools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg


DEPTH, TIMES = 3, np.array([0.0, 0.5, 2.0, 3.0])


def dataset(clock: str = "tau", depth: int = DEPTH) -> xr.Dataset:
    """A dataset as `to_xarray` makes it, of numbers that are told apart."""
    rng, save = np.random.default_rng(0), len(TIMES)
    variables = {
        "risk": ("save", np.array([2.0, 1.9, 0.5, 0.25])),
        "log_risk": ("save", np.array([2.0, -10.0, -500.0, -9000.0])),
        "log_radius": ("save", np.array([-200.0, -100.0, -50.0, 0.5])),
        "escape_speed": ("save", rng.normal(size=save)),
        "layer_norms": (("save", "layer"), rng.uniform(1, 2, (save, depth))),
        "stable_rank": (("save", "layer"), rng.uniform(1, 5, (save, depth))),
        "singular_values": (("save", "layer", "k"), rng.uniform(size=(save, depth, 12))),
    }
    for layer in range(1, depth):
        balance = rng.normal(size=(save, 4))
        variables[f"neuron_balance_{layer}"] = (("save", f"neuron_{layer}"), balance)
    return xr.Dataset(variables, coords={clock: ("save", TIMES)})


def extents(figure, texts):
    """The boxes of texts as they are drawn, in pixels."""
    FigureCanvasAgg(figure).draw()
    return [text.get_window_extent() for text in texts]


def apart(figure, texts) -> bool:
    boxes = extents(figure, texts)
    # The letters, without the leading of a line.
    return not any(
        a.y0 + 1 < b.y1 - 1 and b.y0 + 1 < a.y1 - 1 and a.x0 < b.x1 and b.x0 < a.x1
        for a, b in itertools.combinations(boxes, 2)
    )
