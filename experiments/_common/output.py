"""The files of an experiment: data, figures, and the report with its claims.

Each is complete or not there at all.
"""

import dataclasses
import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import xarray as xr
from matplotlib.figure import Figure

from experiments._common.claims import Claim, as_json, table
from gfdyn._atomic import replace_atomically
from gfdyn._netcdf import write_netcdf


_PACKAGES = ("gfdyn", "jax", "jaxlib", "diffrax", "equinox", "numpy", "scipy")


def write(
    out: Path,
    settings: Any,
    claims: Sequence[Claim],
    data: Mapping[str, xr.Dataset],
    figures: Mapping[str, Figure],
    started: float,
) -> None:
    """Print the claims; write `claims.json`, NAME.nc and NAME.png to the folder.

    Args:
        settings: the dataclass of all settings of the run; `smoke` says that it is a trial.
        started: `time.perf_counter()` when it began.
    """
    claims = [dataclasses.replace(claim, trial=settings.smoke) for claim in claims]
    out.mkdir(parents=True, exist_ok=True)
    for name, dataset in data.items():
        write_netcdf(out / f"{name}.nc", {"/": dataset})
    for name, figure in figures.items():
        replace_atomically(out / f"{name}.png", partial(_write_figure, figure))
    report = {
        "settings": dataclasses.asdict(settings),
        "claims": as_json(claims),
        "seconds": time.perf_counter() - started,
        "versions": {name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {jax.devices()[0].device_kind}",
    }
    text = json.dumps(_strict(report), indent=2, allow_nan=False, ensure_ascii=False)
    replace_atomically(out / "claims.json", partial(_write_text, text))
    print(table(claims))
    files = ", ".join([*(f"{n}.nc" for n in data), *(f"{n}.png" for n in figures)])
    print(f"{report['seconds']:.0f} s; written {out}/: claims.json, {files}")


def _strict(value: Any) -> Any:
    """As strict JSON holds it: paths as text, numbers that are not finite by name."""
    if isinstance(value, Mapping):
        return {name: _strict(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if isinstance(value, Path) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


def _write_figure(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="png", dpi=150)


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
