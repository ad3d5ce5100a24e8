"""The folder of a sweep: a file a point, named by what was computed and what came out.

    spec.toml                   the sweep
    manifest.json               versions, git revision
    log.txt
    points/SETTINGS-CONTENT.RESULT.nc
                                what came out; CONTENT is a checksum of all the rest
    failures/SETTINGS.json      points that could not be computed; tried again on resume
    checkpoints/BATCH.eqx       batches under way
    rejected/                   files that are not what their names say, or cannot be read
    cache/                      compiled programs

All are written to temporary names and renamed: they are complete or not there.
"""

import contextlib
import datetime
import errno
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx

from ..._atomic import is_temporary, replace_atomically
from ..spec import Point, plain


if TYPE_CHECKING:
    import xarray as xr


_POINT = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.([a-z_]+)\.nc")
_CHECKSUM_BYTES = 32
# A second sweep that tidies up may take a temporary file away before it is renamed.
_ATTEMPTS = 5
# Dangling links, folders, what is not ours to read, circles of links, bad sectors.
_UNREADABLE = (errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ELOOP, errno.EIO)


class PointFile(NamedTuple):
    """A file of a point: the fingerprint of its settings, its result, and where it is."""

    digest: str
    result: str
    path: Path


class Store:
    """Reads and writes the folder of a sweep.

    It holds no more than the path: any number of processes may have one of their own.
    """

    def __init__(self, path: str | os.PathLike):
        """The store in this folder, which `create` makes."""
        # Workers may be in other folders.
        self.path = Path(path).absolute()
        self.spec = self.path / "spec.toml"
        self.manifest = self.path / "manifest.json"
        self.log = self.path / "log.txt"
        self.cache = self.path / "cache"
        self.points = self.path / "points"
        self.failures = self.path / "failures"
        self.checkpoints = self.path / "checkpoints"
        self.rejected = self.path / "rejected"

    def __reduce__(self):
        """Travels as its path."""
        return Store, (self.path,)

    def note(self, text: str) -> None:
        """Add a line to the log."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{now} {text}\n")

    def has_noted(self, text: str) -> bool:
        """Whether the log says so; not if there is none."""
        return text.encode() in (_read(self.log) or b"")

    def manifest_text(self) -> str:
        """The manifest as it stands; empty if there is none that can be read."""
        return (_read(self.manifest) or b"").decode("utf-8", "replace")

    def create(self) -> None:
        """Make the folder, and those inside it."""
        for folder in (self.points, self.failures, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)

    def write_point(self, digest: str, point: Point, dataset: "xr.Dataset") -> None:
        """Keep the result of a point."""
        settings = json.dumps(plain(point))
        # netCDF-3: thirty times faster than HDF5 at this size, and the same bytes always.
        labelled = dataset.assign_attrs(settings=settings)
        content = bytes(labelled.to_netcdf(engine="scipy"))
        result = dataset.attrs["result"]
        checksum = _checksum(digest, result, content)
        _write(self.points / f"{digest}-{checksum}.{result}.nc", content)
        self.failures.joinpath(f"{digest}.json").unlink(missing_ok=True)

    def write_failure(self, digest: str, reason: str) -> None:
        """Keep why a point could not be computed."""
        text = json.dumps({"reason": reason}, indent=2)
        _write(self.failures / f"{digest}.json", text.encode())

    def read_failures(self) -> dict[str, str]:
        """Why points could not be computed, by their fingerprints."""
        unreadable = "the file that says why cannot be read"
        return {
            file.stem: reason or unreadable for file, reason in self._failures().items()
        }

    def unreadable(self) -> list[Path]:
        """Failures that cannot be read, and checkpoints that are no files."""
        failures = [file for file, reason in self._failures().items() if reason is None]
        checkpoints = sorted(self.checkpoints.glob("*.eqx"))
        return failures + [file for file in checkpoints if not file.is_file()]

    def _failures(self) -> dict[Path, str | None]:
        """Why points could not be computed, by their files; None if that is unreadable."""
        return {
            file: _reason(file) for file in sorted(self.failures.glob("[0-9a-f]*.json"))
        }

    def point_files(self) -> Iterator[PointFile]:
        """The files of points, by their names."""
        for file in sorted(self.points.iterdir()):
            if match := _POINT.fullmatch(file.name):
                yield PointFile(match[1], match[3], file)

    def strangers(self) -> list[Path]:
        """Other files among them."""
        return [
            file
            for file in sorted(self.points.iterdir())
            if not _POINT.fullmatch(file.name) and not is_temporary(file)
        ]

    def read_point(self, file: Path) -> "xr.Dataset | None":
        """What a file of a point holds; None if it is not what its name says."""
        import xarray as xr

        content = self.verified(file)
        if content is None:
            return None
        with xr.open_dataset(io.BytesIO(content), engine="scipy") as dataset:
            return dataset.load()

    def read_attributes(self, file: Path) -> dict[str, Any] | None:
        """The attributes alone, which is faster."""
        import xarray as xr

        content = self.verified(file)
        if content is None:
            return None
        source = io.BytesIO(content)
        with xr.open_dataset(source, engine="scipy", decode_cf=False) as dataset:
            return dataset.attrs

    def verified(self, file: Path) -> bytes | None:
        """The bytes of a file of a point; None if they are not what its name says, or
        cannot be read."""
        content, match = _read(file), _POINT.fullmatch(file.name)
        if content is None or match is None:
            return None
        sound = _checksum(match[1], match[3], content) == match[2]
        return content if sound else None

    def is_readable(self, file: Path) -> bool:
        """Whether a file is one whose bytes can be read."""
        return _read(file) is not None

    def reject(self, file: Path) -> None:
        """Move a file out of the way, under a name that no other one has there."""
        self.rejected.mkdir(exist_ok=True)
        names = itertools.chain(
            [file.name], (f"{file.name}.{k}" for k in itertools.count(2))
        )
        free = (n for n in names if not os.path.lexists(self.rejected / n))
        with contextlib.suppress(FileNotFoundError):  # Another sweep was faster.
            file.replace(self.rejected / next(free))

    def write_checkpoint(self, digest: str, state: Any) -> None:
        """Keep the state of a batch under way."""
        buffer = io.BytesIO()
        eqx.tree_serialise_leaves(buffer, state)
        content = buffer.getvalue()
        checksum = hashlib.sha256(content).digest()
        _write(self.checkpoints / f"{digest}.eqx", checksum + content)

    def read_checkpoint(self, digest: str, like: Any) -> Any | None:
        """The state of a batch, in the shape of `like`; None if there is none, or none
        that is sound."""
        stored = _read(self.checkpoints / f"{digest}.eqx")
        if stored is None:
            return None
        checksum, content = stored[:_CHECKSUM_BYTES], stored[_CHECKSUM_BYTES:]
        if hashlib.sha256(content).digest() != checksum:
            return None
        try:
            return eqx.tree_deserialise_leaves(io.BytesIO(content), like)
        except (RuntimeError, ValueError):
            return None  # Of another version.

    def has_checkpoints(self) -> bool:
        """Whether batches are under way."""
        return any(self.checkpoints.glob("*.eqx"))

    def drop_checkpoint(self, digest: str) -> None:
        """Forget the state of a batch."""
        (self.checkpoints / f"{digest}.eqx").unlink(missing_ok=True)

    def tidy(self, finished: Iterable[str]) -> None:
        """Remove what killed processes left: temporary files, and the checkpoints of
        batches that are finished."""
        for folder in (self.path, self.points, self.failures, self.checkpoints):
            for file in folder.iterdir():
                if is_temporary(file):
                    file.unlink(missing_ok=True)
        for digest in finished:
            self.drop_checkpoint(digest)


def _read(file: Path) -> bytes | None:
    """The bytes of a file; None if there is none that can be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        if error.errno in _UNREADABLE:
            return None
        raise


def _reason(file: Path) -> str | None:
    """What a file of `write_failure` says; None if it cannot be read."""
    try:
        return str(json.loads(_read(file) or b"")["reason"])
    except (ValueError, KeyError, TypeError):
        return None


def _write(file: Path, content: bytes) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            return replace_atomically(file, lambda path: path.write_bytes(content))
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise


def _checksum(digest: str, result: str, content: bytes) -> str:
    return hashlib.sha256(f"{digest}.{result}.".encode() + content).hexdigest()[:16]
