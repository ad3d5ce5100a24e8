"""The report of a sweep: one HTML file that opens without a server.

The page is a template; what is put into it is a table of the points: where each is on the
axes, how it ended, the numbers that heat maps show, and its curves, thinned out.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._atomic import replace_atomically
from ._collect import Place, SweepFolder
from ._first_escape import clock_of, first_escape
from ._manifest import mixture
from ._toml import format_spec


if TYPE_CHECKING:
    import xarray as xr


# Rows of the curves of a point, fewer where there are so many points that all of them
# together would have more than `_MOST_ROWS`.
_ROWS, _FEWEST_ROWS, _MOST_ROWS = 200, 12, 400_000


def report(out: str | os.PathLike, file: str | os.PathLike | None = None) -> Path:
    """Write the report of a sweep, one self-contained HTML file, and return its path.

    It shows the settings and how many points ended how; heat maps over two of the axes,
    the median over the others, of

    - the risk at the end,
    - the end of the first plateau, the escape, in the clock of the flow and in log t, and
      the number of plateaus, as `gf.escape.episodes` segments the risk,
    - the stable rank of each layer at the end, if it was recorded,
    - the certificate;

    the trajectories behind each cell; and the points that failed, with their reasons.

    Args:
        out: the folder of the sweep.
        file: where to; report.html in that folder if None.

    Raises:
        FileNotFoundError: if there is no sweep.
    """
    folder = SweepFolder(out)
    path = Path(out, "report.html") if file is None else Path(file)
    template = files("gfdyn.sweeps").joinpath("report.html").read_text(encoding="utf-8")
    page = template.replace("/* TABLE */ null", _embedded(_table(folder)))
    replace_atomically(path, partial(Path.write_text, data=page, encoding="utf-8"))
    return path


def _embedded(value: Any) -> str:
    """JSON for a script in a page: none of its letters means anything in HTML, and none
    ends a line of JavaScript."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # Half of a surrogate pair is no letter, and a browser may end at one.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _table(folder: SweepFolder) -> dict[str, Any]:
    """All that the page shows, as JSON holds it."""
    rows = int(np.clip(_MOST_ROWS / max(1, len(folder.places)), _FEWEST_ROWS, _ROWS))
    points = dict(_points(folder, rows))
    failures = {
        place: {"result": "error", "reason": end["reason"]}
        for place, end in folder.failures().items()
    }
    return {
        "name": folder.spec.name,
        "spec": _in_rows(format_spec(folder.spec)),
        "manifest": folder.store.manifest_text(),
        "mixture": mixture(folder.store),
        "axes": [
            {"name": dim, "values": [_plain(value) for value in folder.values(i)]}
            for i, dim in enumerate(folder.dims)
        ],
        "total": len(folder.places),
        "points": [
            {"place": list(place), **entry}
            for place, entry in sorted((failures | points).items())
        ],
    }


def _in_rows(toml: str) -> str:
    """The same settings, with every list of numbers or texts in one row."""
    return re.sub(
        r"\[\n\s*([^\[\]]*?),?\n\s*\]",
        lambda found: "[" + re.sub(r",\n\s*", ", ", found[1]) + "]",
        toml,
    )


def _points(folder: SweepFolder, rows: int) -> Iterator[tuple[Place, dict[str, Any]]]:
    for place, point in folder.points():
        ends = point.attrs
        yield (
            place,
            {
                "result": ends["result"],
                "reason": ends.get("reason", ""),
                "numbers": _numbers(point),
                "curves": _curves(point, rows),
            },
        )


def _numbers(point: "xr.Dataset") -> dict[str, float | None]:
    """What the heat maps show of a point."""
    ends = point.attrs
    escape = first_escape(point)
    found = {
        "final risk": ends["final_risk"],
        "plateaus": escape["num_plateaus"],
        f"escape, {clock_of(point)}": escape["escape_time"],
        "escape, log t": escape["escape_log_time"],
    }
    if "stable_rank" in point:
        for layer, value in enumerate(point["stable_rank"].values[-1], 1):
            found[f"stable rank of W{layer} at the end"] = value
    for name in ("energy_residual", "balance_drift", "risk_increase"):
        if name in ends:
            found[name.replace("_", " ")] = ends[name]
    found["steps"] = ends.get("num_steps", math.nan)
    return {name: _plain(value) for name, value in found.items()}


def _curves(point: "xr.Dataset", rows: int) -> dict[str, list]:
    """The trajectory of a point, thinned out to so many rows."""
    clock = clock_of(point)
    chosen = np.unique(np.linspace(0, point.sizes["save"] - 1, rows).round().astype(int))
    found = {clock: point[clock], "log t": point["log_time"]}
    found |= {name: point[name] for name in ("risk", "stable_rank") if name in point}
    return {
        name.replace("_", " "): _plain(values.isel(save=chosen).values)
        for name, values in found.items()
    }


def _plain(value: Any) -> Any:
    """Numbers as JSON holds them, to six digits; None where they are not finite."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
