"""Files of trajectories: netCDF for every tool, and beside it what restores them."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ._atomic import remove_orphans
from ._netcdf import write_netcdf
from ._serialise import decode_fields, encode


if TYPE_CHECKING:
    import xarray as xr


_Made = TypeVar("_Made")

_FORMAT = 1
_STATE = "state"


def write_file(
    path: str | os.PathLike, dataset: "xr.Dataset", fields: Mapping[str, Any]
) -> None:
    """A file of the dataset, and of the fields in a group of its own, with a checksum over
    their names and numbers; temporary files that killed processes left beside it go."""
    import xarray as xr

    arrays: dict[str, np.ndarray] = {}
    tree = json.dumps({name: encode(v, name, arrays) for name, v in fields.items()})
    state = xr.Dataset(
        {
            name: ([f"{name}:{i}" for i in range(array.ndim)], array)
            for name, array in arrays.items()
        },
        attrs={"format": _FORMAT, "fields": tree, "checksum": _checksum(tree, arrays)},
    )
    remove_orphans(Path(path).parent)
    write_netcdf(path, {"/": dataset, _STATE: state})


def read_file(
    path: str | os.PathLike, cls: type[_Made], check: Callable[[_Made], None]
) -> _Made:
    """The object of a class of whose fields `write_file` was given all, once it is checked.

    Warns:
        UserWarning: on a file of before there were checksums.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is none of these files, damaged, or its check raises.
    """
    import xarray as xr

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; give one that traj.save wrote.")
    try:
        with xr.open_dataset(path, engine="h5netcdf", group=_STATE) as state:
            state.load()
    except Exception as error:
        raise _unreadable(path, error) from error
    if state.attrs.get("format") != _FORMAT:
        raise ValueError(
            f"{path}: format {state.attrs.get('format')}, but this version of gfdyn "
            f"reads format {_FORMAT}."
        )
    try:
        arrays = {str(name): variable.values for name, variable in state.items()}
        tree = str(state.attrs["fields"])
        expected = state.attrs.get("checksum")
        if expected is not None and expected != _checksum(tree, arrays):
            raise ValueError("its numbers or settings are not those of its checksum")
        made: _Made = decode_fields(cls, json.loads(tree), arrays)
        check(made)
    except Exception as error:
        raise _unreadable(path, error) from error
    if expected is None:
        warnings.warn(
            f"{path} was written before files had checksums; save it again to have one.",
            stacklevel=3,
        )
    return made


def _checksum(tree: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the tree, and name, kind, shape and bytes of each array."""
    digest = hashlib.sha256(tree.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"|{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path}: no readable trajectory ({type(error).__name__}: {error}); it is "
        "truncated, damaged, edited, or was not written by traj.save."
    )
