"""The commands `gfdyn sweep SPEC --out DIR`, `sweep status DIR`, `sweep collect DIR` and
`report DIR`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from .._netcdf import write_netcdf
from ._collect import collect, status
from ._page import report
from ._run import run
from ._spec import Spec
from ._store import Store
from ._toml import read_spec
from ._worker import configure


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRun:
    """Compute the points of a sweep that its folder lacks."""

    spec: tyro.conf.Positional[Path]
    """TOML or JSON file that describes it."""
    out: Path
    """Its folder."""
    workers: int | None = None
    """Compute in so many processes."""
    dask: str | None = None
    """Compute on the Dask cluster of this address, or on one started here: local."""
    wait: float | None = None
    """Seconds that the Dask cluster has until a worker is there, a third of them until it
    answers; 60 if None."""
    mix_versions: bool = False
    """Go on where other versions of gfdyn or JAX have begun."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """How far a sweep is."""

    out: tyro.conf.Positional[Path]
    """Its folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepCollect:
    """Gather the results of a sweep in one netCDF file."""

    out: tyro.conf.Positional[Path]
    """Its folder."""
    file: Path | None = None
    """The file; DIR/collected.nc if None."""


Action = (
    Annotated[SweepRun, tyro.conf.subcommand("run")]
    | Annotated[SweepStatus, tyro.conf.subcommand("status")]
    | Annotated[SweepCollect, tyro.conf.subcommand("collect")]
)
_ACTIONS = ("run", "status", "collect")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Run a sweep: `gfdyn sweep SPEC --out DIR`; see how far it is, gather its results."""

    action: tyro.conf.OmitArgPrefixes[tyro.conf.OmitSubcommandPrefixes[Action]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Write the report of a sweep: heat maps and trajectories in one HTML file."""

    out: tyro.conf.Positional[Path]
    """Folder of the sweep."""
    file: Path | None = None
    """The file; DIR/report.html if None."""


def expand(arguments: list[str]) -> list[str]:
    """`sweep run SPEC …` for its short form, `sweep SPEC …`."""
    if arguments[:1] != ["sweep"] or arguments[1:2] in ([], ["-h"], ["--help"]):
        return arguments
    named = arguments[1] in _ACTIONS
    return arguments if named else ["sweep", "run", *arguments[1:]]


def write_report(command: Report) -> int:
    """Write the report of a sweep, and say where it is."""
    print(f"{report(command.out, command.file)}: open it in a browser")
    return 0


def run_sweep(command: Sweep) -> int:
    """Run a command on a sweep.

    Returns:
        The exit status: 1 if points are missing or failed, 130 after Ctrl-C.
    """
    action = command.action
    if isinstance(action, SweepRun):
        return _run(action)
    if isinstance(action, SweepStatus):
        print(status(action.out))
        return 0
    import xarray as xr

    found = collect(action.out)
    file = action.file or action.out / "collected.nc"
    nodes = {"/": found} if isinstance(found, xr.Dataset) else found.to_dict()
    write_netcdf(file, nodes)
    print(f"{file}\n{found}")
    return 0


def _run(action: SweepRun) -> int:
    spec = _placed(read_spec(action.spec), action)
    configure(Store(action.out).cache, spec.dtype == "float64")
    try:
        found = run(spec, action.out, mix_versions=action.mix_versions)
    except KeyboardInterrupt:
        return 130
    print(found)
    return 0 if found.ok == found.total else 1


def _placed(spec: Spec, action: SweepRun) -> Spec:
    """The spec, computed where the command says."""
    engine = spec.engine
    if action.workers is not None:
        name = "dask" if action.dask else "processes"
        engine = dataclasses.replace(
            engine, name=name, address=None, workers=action.workers
        )
    if action.dask is not None:
        address = None if action.dask == "local" else action.dask
        engine = dataclasses.replace(engine, name="dask", address=address)
    if action.wait is not None:
        if engine.name != "dask":
            raise ValueError(f"--wait {action.wait:g}: is for a Dask cluster; give --dask.")
        engine = dataclasses.replace(engine, wait=action.wait)
    return dataclasses.replace(spec, engine=engine)
