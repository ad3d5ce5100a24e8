"""Faults of files: what is done to a saved trajectory before it is loaded."""

import functools
import pickle
import tempfile
import warnings
from pathlib import Path

import equinox as eqx
import h5py
import jax
import numpy as np
import xarray as xr
from edits import edited
from table import Outcome, Row

import gfdyn as gf


@functools.cache
def saved() -> tuple[gf.Trajectory, bytes]:
    """A trajectory with a crossing and a slide, and the file of it."""
    data = gf.data.teacher(6, [2, 2, 1], key=jax.random.key(0))
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    net = gf.nets.MLP([2, 3, 1], key=jax.random.key(6), scale=0.5)
    traj = gf.solve(flow, net, t1=4.0, ts=[0.0, 1.0, 2.0, 3.0, 4.0], kinks=20)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.nc"
        traj.save(file)
        return gf.load(file), file.read_bytes()


def loaded(file: Path) -> Outcome:
    """What comes of loading it: what was saved, or a sentence that names the file."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = gf.load(file)
        except (ValueError, FileNotFoundError) as error:
            return Outcome.NAMED if str(file) in str(error) else Outcome.BARE
        except Exception:
            return Outcome.BARE
    if eqx.tree_equal(found, saved()[0]):
        return Outcome.HARMLESS
    return Outcome.NAMED if said else Outcome.SILENT


def bit_flipped(random: np.random.Generator, folder: Path) -> Outcome:
    """One bit of the file is another one."""
    content = bytearray(saved()[1])
    content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    file = folder / "run.nc"
    file.write_bytes(content)
    return loaded(file)


def truncated(random: np.random.Generator, folder: Path) -> Outcome:
    """The file ends before its end."""
    content = saved()[1]
    file = folder / "run.nc"
    file.write_bytes(content[: random.integers(len(content))])
    return loaded(file)


def foreign(random: np.random.Generator, folder: Path) -> Outcome:
    """The file is of another kind."""
    file = folder / "run.nc"
    kind = random.integers(5)
    numbers = random.normal(size=4)
    if kind == 0:
        file.write_bytes(random.bytes(int(random.integers(2000))))
    elif kind == 1:
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + random.bytes(500))
    elif kind == 2:
        file.write_bytes(pickle.dumps({"ts": numbers}))
    elif kind == 3:
        with h5py.File(file, "w") as made:
            made["state/ts"] = numbers
    else:
        xr.Dataset({"ts": ("time", numbers)}).to_netcdf(file, engine="h5netcdf")
    return loaded(file)


def symlinked(random: np.random.Generator, folder: Path) -> Outcome:
    """The path is a link: to the file, to nothing, to itself."""
    file, link = folder / "run.nc", folder / "link.nc"
    file.write_bytes(saved()[1])
    link.symlink_to([file, folder / "gone.nc", link][random.integers(3)])
    return loaded(link)


def forged(random: np.random.Generator, folder: Path) -> Outcome:
    """Its metadata were edited, and its checksum computed anew."""
    file = folder / "run.nc"
    file.write_bytes(saved()[1])
    edited(random, file)
    return loaded(file)


_LOADS_OR_SAYS = "the trajectory that was saved, or a sentence that names the file"

ROWS: tuple[Row, ...] = (
    Row("files", "one bit flipped", _LOADS_OR_SAYS, bit_flipped, trials=1000, sample=10),
    Row("files", "truncated", _LOADS_OR_SAYS, truncated, trials=200, sample=5),
    Row(
        "files",
        "of another kind",
        "a sentence that names it",
        foreign,
        trials=100,
        sample=5,
    ),
    Row(
        "files",
        "metadata edited, checksum computed anew",
        "a sentence that names the file and the field",
        forged,
        trials=400,
        sample=5,
    ),
    Row("files", "a symbolic link", _LOADS_OR_SAYS, symlinked, trials=30, sample=3),
)
