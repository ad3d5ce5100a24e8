"""Files of trajectories: netCDF for every tool, and beside it what restores them."""

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .._atomic import remove_orphans
from .._netcdf import netcdf_content, write_content
from .._seal import check_unbroken, is_sealed, seal
from ._serialise import decode_fields, encode
from ._state import FORMAT, read_state, write_state


if TYPE_CHECKING:
    import numpy as np
    import xarray as xr


_Made = TypeVar("_Made")


def write_file(
    path: str | os.PathLike, dataset: "xr.Dataset", fields: Mapping[str, Any]
) -> None:
    """A file of the dataset, and of the fields in a group of its own, with a checksum over
    their names and numbers; temporary files that killed processes left beside it go."""
    arrays: dict[str, np.ndarray] = {}
    tree = json.dumps({name: encode(v, name, arrays) for name, v in fields.items()})
    content = netcdf_content({"/": dataset})
    write_state(content, tree, arrays, says_sealed=True)
    seal(content)
    remove_orphans(Path(path).parent)
    write_content(path, content)


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
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; give one that traj.save wrote.")
    try:
        check_unbroken(path)
        state = read_state(path)
    except Exception as error:
        raise _unreadable(path, error) from error
    if state.format != FORMAT:
        raise ValueError(
            f"{path}: format {state.format}, but this version of gfdyn reads format "
            f"{FORMAT}."
        )
    try:
        if not state.is_whole:
            raise ValueError("its numbers or settings are not those of its checksum")
        if state.checksum is not None and state.says_sealed and not is_sealed(path):
            raise ValueError("its end is missing")
        made: _Made = decode_fields(cls, json.loads(state.tree), state.arrays)
        check(made)
    except Exception as error:
        raise _unreadable(path, error) from error
    if state.checksum is None:
        warnings.warn(
            f"{path} was written before files had checksums; save it again to have one.",
            stacklevel=3,
        )
    return made


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path}: no readable trajectory ({type(error).__name__}: {error}); it is "
        "truncated, damaged, edited, or was not written by traj.save."
    )
