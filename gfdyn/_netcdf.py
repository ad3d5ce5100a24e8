"""netCDF files, complete or not there."""

import io
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._atomic import replace_atomically


if TYPE_CHECKING:
    import xarray as xr


def write_netcdf(path: str | os.PathLike, groups: Mapping[str, "xr.Dataset"]) -> None:
    """A file of datasets by the names of their groups, that of "/" for any tool.

    Raises:
        OSError: if it cannot be written there; says why, and what helps.
    """
    write_content(path, netcdf_content(groups))


def netcdf_content(groups: Mapping[str, "xr.Dataset"]) -> io.BytesIO:
    """The bytes of a file of datasets by the names of their groups."""
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        for name, dataset in groups.items():
            group: Any = file if name == "/" else file.create_group(name)
            dataset.dump_to_store(H5NetCDFStore(group))
    return buffer


def write_content(path: str | os.PathLike, content: io.BytesIO) -> None:
    """A file of bytes that were written to memory: HDF5 on a disk that is full brings the
    process down at its end.

    Raises:
        OSError: if it cannot be written there; says why, and what helps.
    """
    replace_atomically(path, partial(Path.write_bytes, data=content.getbuffer()))
