"""The finished batches of a search on disk: one netCDF file each, and no pickle."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from ..._netcdf import netcdf_content, write_content
from ..._seal import check_unbroken, seal
from ...run import decode, encode
from ._convergence import Found


_FORMAT = 1


class Batch(eqx.Module):
    """What became of some starts: the speed after the descent, the direction of each
    (−1: died), counted over all batches, and the directions not met in earlier ones."""

    descent_speeds: Float[np.ndarray, " starts"]
    rows: Int[np.ndarray, " starts"]
    found: tuple[Found, ...]


class SearchFolder(eqx.Module):
    """A folder with the batches of one search, which its `settings` tell from others."""

    path: Path
    settings: dict[str, Any]

    def read(self, first: int, last: int) -> Batch | None:
        """The batch of the starts first, …, last − 1, if it is there.

        Raises:
            ValueError: if it belongs to another search, or cannot be read.
        """
        import xarray as xr

        file = self._file(first, last)
        if not file.exists():
            return None
        try:
            check_unbroken(file)
            with xr.open_dataset(file, engine="h5netcdf") as stored:
                stored.load()
            form, settings = stored.attrs["format"], json.loads(stored.attrs["settings"])
        except Exception as error:
            raise _unreadable(file, error) from error
        if form != _FORMAT:
            raise ValueError(
                f"{file}: format {form}, but this version of gfdyn reads {_FORMAT}."
            )
        _check_same(file, settings, self.settings)
        try:
            arrays = {str(name): values.values for name, values in stored.items()}
            fields = decode(json.loads(stored.attrs["fields"]), arrays, "fields")
            found = tuple(Found(**each) for each in fields["found"])
        except Exception as error:
            raise _unreadable(file, error) from error
        return Batch(arrays["fields.descent_speeds"], arrays["fields.rows"], found)

    def write(self, first: int, batch: Batch) -> None:
        """Keep a batch; the file is complete or not there at all."""
        import xarray as xr

        arrays: dict[str, np.ndarray] = {}
        fields = {
            "descent_speeds": batch.descent_speeds,
            "rows": batch.rows,
            "found": tuple(vars(found) for found in batch.found),
        }
        tree = encode(fields, "fields", arrays)
        stored = xr.Dataset(
            {
                name: ([f"{name}:{i}" for i in range(array.ndim)], array)
                for name, array in arrays.items()
            },
            attrs={
                "format": _FORMAT,
                "settings": json.dumps(self.settings),
                "fields": json.dumps(tree),
            },
        )
        self.path.mkdir(parents=True, exist_ok=True)
        content = netcdf_content({"/": stored})
        seal(content)
        write_content(self._file(first, first + len(batch.rows)), content)

    def _file(self, first: int, last: int) -> Path:
        return self.path / f"starts_{first:06d}_{last:06d}.nc"


def digest(value: Any) -> str:
    """A fingerprint of a pytree of gfdyn's classes."""
    arrays: dict[str, np.ndarray] = {}
    tree = encode(value, "value", arrays)
    found = hashlib.sha256(json.dumps(tree).encode())
    for name, array in arrays.items():
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def _check_same(file: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    ours = json.loads(json.dumps(ours))
    for name in sorted({*theirs, *ours}):
        if theirs.get(name) != ours.get(name):
            raise ValueError(
                f"{file} belongs to another search, with {name}={theirs.get(name)} where "
                f"this one has {ours.get(name)}; give a folder of its own."
            )


def _unreadable(file: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{file}: no readable part of a search ({type(error).__name__}: {error}); delete "
        "it to have it computed again."
    )
