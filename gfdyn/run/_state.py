"""The part of a trajectory's file that restores it: fields as text, arrays by name.

It is plain HDF5: as netCDF, so many small arrays take seven times as long to write, and
twenty times as long to read.
"""

import hashlib
import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np


if TYPE_CHECKING:
    import h5py


FORMAT = 1
_GROUP = "state"

_File = str | os.PathLike | io.BytesIO


class StoredState(NamedTuple):
    """What a file holds, of whatever format."""

    format: Any
    tree: str
    checksum: str | None
    arrays: dict[str, np.ndarray]
    # Whether the file says that a checksum over all its bytes stands at its end
    says_sealed: bool

    @property
    def is_whole(self) -> bool:
        """Whether the checksum, where there is one, is that of tree and arrays."""
        return self.checksum in (None, _checksum(self.tree, self.arrays))


def write_state(
    file: _File, tree: str, arrays: Mapping[str, np.ndarray], *, says_sealed: bool = False
) -> None:
    """Put them into an HDF5 file, in the place of those that are there."""
    import h5py

    with h5py.File(file, "r+") as opened:
        opened.pop(_GROUP, None)
        group = opened.create_group(_GROUP)
        group.attrs.update(format=FORMAT, fields=tree, checksum=_checksum(tree, arrays))
        if says_sealed:
            group.attrs["sealed"] = True
        for name, array in arrays.items():
            group[name] = array


def read_state(file: _File) -> StoredState:
    """What an HDF5 file holds; raises whatever h5py does on another file."""
    import h5py

    with h5py.File(file, "r") as opened:
        group: Any = opened[_GROUP]
        arrays = {name: _array(item) for name, item in group.items() if not _is_axis(item)}
        # Files that xarray wrote have their numbers in arrays.
        number = np.ravel(group.attrs.get("format", "none")).tolist()
        return StoredState(
            number[0] if len(number) == 1 else number,
            str(group.attrs.get("fields")),
            group.attrs.get("checksum"),
            arrays,
            "sealed" in group.attrs,
        )


def _is_axis(dataset: "h5py.Dataset") -> bool:
    """Whether it is an axis in a file that xarray wrote."""
    return "CLASS" in dataset.attrs


def _array(dataset: "h5py.Dataset") -> np.ndarray:
    array = np.asarray(dataset[()])
    # As xarray writes it
    return array.astype(bool) if dataset.attrs.get("dtype") == "bool" else array


def _checksum(tree: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the tree, and name, kind, shape and bytes of each array."""
    digest = hashlib.sha256(tree.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"|{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
