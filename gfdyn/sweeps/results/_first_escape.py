"""Of the points of a sweep: how many plateaus, and when they leave the first."""

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from ...escape.episodes import at, rests
from ._collect import SweepFolder


if TYPE_CHECKING:
    import xarray as xr


# As `gf.escape.episodes` has them.
_FLATNESS, _CONTRAST = 0.02, 10.0
_NAMES = ("num_plateaus", "escape_time", "escape_log_time")


def escapes(out: str | os.PathLike) -> "xr.Dataset":
    """How many plateaus each point of a sweep rests on, and when it leaves the first.

    The risk is segmented as by `gf.escape.episodes`. The first escape begins where the
    first plateau ends: `escape_time` in the clock of the flow, `escape_log_time` in log t.
    NaN where a point is missing, does not start on a plateau, or has hardly left it.

    Args:
        out: the folder of the sweep, whose points record the risk.

    Raises:
        FileNotFoundError: if there is no sweep.
        ValueError: if it does not record the risk.
    """
    import xarray as xr

    folder = SweepFolder(out)
    if "risk" not in folder.spec.records:
        raise ValueError(
            f"records={list(folder.spec.records)} has no risk, which plateaus are seen in; "
            "add 'risk'."
        )
    shape = [len(indices) for indices in folder.everywhere]
    found = {name: np.full(shape, np.nan) for name in _NAMES}
    for place, point in folder.points():
        for name, value in first_escape(point).items():
            found[name][place] = value
    coords = folder.outcomes({}, folder.everywhere).coords
    return xr.Dataset({n: (folder.dims, v) for n, v in found.items()}, coords=coords)


def first_escape(point: "xr.Dataset") -> dict[str, float]:
    """The same of one point."""
    found: dict[str, float] = dict.fromkeys(_NAMES, math.nan)
    risk = point["risk"].values if "risk" in point else np.array([math.nan])
    if not np.isfinite(risk).all():
        return found
    times = point[clock_of(point)].values
    plateaus = rests(risk, times, _FLATNESS, _CONTRAST)
    found["num_plateaus"] = float(len(plateaus))
    fallen = risk[0] - risk.min() > _FLATNESS * risk[0]
    if plateaus and plateaus[0].start == 0 and fallen:
        end = np.array([plateaus[0].end])
        found["escape_time"] = float(at(times, end)[0])
        found["escape_log_time"] = float(at(point["log_time"].values, end)[0])
    return found


def clock_of(point: "xr.Dataset") -> str:
    """The name of the clock of the flow."""
    return next(str(name) for name, c in point.coords.items() if c.dims == ("save",))
