"""Faults of saving: what is in the way of a file while it is written."""

import errno
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path

import equinox as eqx
import forked
import jax
import numpy as np
from of_files import saved
from table import Outcome, Row

import gfdyn as gf


@functools.cache
def other() -> tuple[gf.Trajectory, bytes]:
    """Another trajectory than `saved`, and the file of it."""
    problem = gf.Problem(gf.data.xor(), gf.losses.logistic)
    net = gf.nets.MLP([2, 4, 1], key=jax.random.key(0), scale=0.5)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.nc"
        gf.descend(problem, net, 0.1, 4).save(file)
        return gf.load(file), file.read_bytes()


def _begin(folder: Path) -> Path:
    """Both trajectories, and run.nc, which is the first; the path of that."""
    file = folder / "run.nc"
    for name in ("first.nc", "run.nc"):
        (folder / name).write_bytes(saved()[1])
    (folder / "second.nc").write_bytes(other()[1])
    return file


def _left(folder: Path) -> list[Path]:
    """Temporary files there."""
    return [entry for entry in folder.iterdir() if entry.name.startswith(".run.nc.")]


def _whole(file: Path) -> Outcome:
    """Whether the file is one of the two, and a later save leaves nothing else there."""
    try:
        found = gf.load(file)
    except ValueError:
        return Outcome.LOST
    if not any(eqx.tree_equal(found, each) for each in (saved()[0], other()[0])):
        return Outcome.SILENT
    saved()[0].save(file)
    return Outcome.SILENT if _left(file.parent) else Outcome.HARMLESS


def _is_said(text: str, path: Path, numbers: set[int]) -> bool:
    """Whether an error of such a number was said in a sentence about the path."""
    return any(
        line.startswith(f"OSError {number} {path} was not written: ")
        for number in numbers
        for line in text.splitlines()
    )


def killed(random: np.random.Generator, folder: Path) -> Outcome:
    """The process is killed while it writes."""
    file = _begin(folder)
    process = forked.start(forked.save_in_turn, folder, 10**6)
    seen = forked.wait_for(lambda: _left(folder))
    # In this write, or in one of those that come next.
    pause = random.uniform(0, 0.003 if random.random() < 0.5 else 0.3)
    time.sleep(pause)
    forked.kill(process)
    return _whole(file) if seen else Outcome.HANG


def two_writers(random: np.random.Generator, folder: Path) -> Outcome:
    """Two processes write to it at once."""
    file = _begin(folder)
    writers = [forked.start(forked.save_in_turn, folder, 3 + i) for i in range(2)]
    ended = [forked.ends(writer) for writer in writers]
    if not all(ended):
        return Outcome.HANG
    if any(writer.exitcode for writer in writers) or _left(folder):
        return Outcome.BARE
    return _whole(file)


def full_disk(random: np.random.Generator, folder: Path) -> Outcome:
    """The disk is full before it is written, or files may not be so large."""
    file = _begin(folder)
    mount = bool(random.integers(2)) and forked.can_mount()
    disk = folder / "disk"
    disk.mkdir()
    shutil.copy(file, disk / "run.nc")
    needed = len(other()[1]) // 1024
    room = int(random.integers(0, needed + needed // 4))
    process = forked.start(forked.save_where_it_is_full, folder, disk, room, mount)
    if not forked.ends(process):
        return Outcome.HANG
    said = (folder / "said.txt").read_text()
    if process.exitcode:
        return Outcome.BARE
    if "left ['run.nc'] newer" in said and "saved" in said:
        return Outcome.HARMLESS
    if "left ['run.nc'] older" not in said:
        return Outcome.LOST
    full = {errno.ENOSPC, errno.EFBIG}
    return Outcome.NAMED if _is_said(said, disk / "run.nc", full) else Outcome.BARE


def read_only(random: np.random.Generator, folder: Path) -> Outcome:
    """The folder, or the disk that it is on, is read-only."""
    _begin(folder)
    folder.chmod(0o755)
    kind = "disk" if bool(random.integers(2)) and forked.can_mount() else "rights"
    place = folder / "closed"
    place.mkdir()
    (place / "run.nc").write_bytes(saved()[1])
    place.chmod(0o555)
    process = forked.start(forked.save_where_it_may_not, folder, kind)
    if not forked.ends(process):
        return Outcome.HANG
    said = (folder / "said.txt").read_text()
    if [entry.name for entry in place.iterdir()] != ["run.nc"]:
        return Outcome.SILENT
    if (place / "run.nc").read_bytes() != saved()[1]:
        return Outcome.LOST
    closed = {errno.EACCES, errno.EPERM, errno.EROFS}
    return Outcome.NAMED if _is_said(said, place / "run.nc", closed) else Outcome.BARE


def no_such_place(random: np.random.Generator, folder: Path) -> Outcome:
    """Its path cannot be that of a file."""
    file = _begin(folder)
    (folder / "inside").mkdir()
    paths = [
        folder / "missing" / "run.nc",
        file / "run.nc",
        folder / "inside",
        folder / ("long" * 70 + ".nc"),
    ]
    path = paths[random.integers(len(paths))]
    before = sorted(folder.rglob("*"))
    try:
        other()[0].save(path)
    except OSError as error:
        named = str(error).startswith(f"{path} was not written: ") and error.errno
        untouched = before == sorted(folder.rglob("*")) and file.read_bytes() == saved()[1]
        if not untouched:
            return Outcome.LOST
        return Outcome.NAMED if named else Outcome.BARE
    return Outcome.SILENT


def clock_set_back(random: np.random.Generator, folder: Path) -> Outcome:
    """What is there, an orphan among it, is of a time that has yet to come."""
    file = _begin(folder)
    ended = forked.start(forked.nothing)
    forked.ends(ended)
    name = forked.temporary_of(ended, "run.nc")
    (folder / name).write_bytes(b"half of the new")
    later = float(random.uniform(2e9, 4e9))
    for entry in folder.iterdir():
        os.utime(entry, (later, later))
    other()[0].save(file)
    if not eqx.tree_equal(gf.load(file), other()[0]):
        return Outcome.LOST
    return Outcome.SILENT if _left(folder) else Outcome.HARMLESS


def many_shapes(random: np.random.Generator, folder: Path) -> Outcome:
    """One process solves in 300 shapes, which would take more mappings than it may have."""
    process = forked.start(forked.solve_in_shapes, folder, 300)
    process.join(3600)
    if process.exitcode is None:
        forked.kill(process)
        return Outcome.HANG
    risks = folder / "risks.txt"
    whole = risks.exists() and len(risks.read_text().split()) == 300
    return Outcome.HARMLESS if whole else Outcome.LOST


_OLDER = "the older file stays, and nothing else"
_EITHER = "the older file or the newer, whole; a later save leaves nothing else there"

# tests/run/test_room.py has a few shapes, with a limit of their own.
IN_MANY_SHAPES = Row(
    "memory", "300 shapes in one process", "every risk", many_shapes, trials=1, sample=0
)

ROWS: tuple[Row, ...] = (
    Row("files", "killed while it is saved", _EITHER, killed, trials=200),
    Row("files", "two writers at once", _EITHER, two_writers, trials=10),
    Row(
        "files",
        "disk full, or files limited in size",
        f"a sentence that names the path and what helps; {_OLDER}",
        full_disk,
        trials=50,
        sample=2,
    ),
    Row(
        "files",
        "folder or disk read-only",
        f"a sentence that names the path and what helps; {_OLDER}",
        read_only,
        trials=20,
    ),
    Row(
        "files",
        "saved to where no file can be",
        f"a sentence that names the path and what helps; {_OLDER}",
        no_such_place,
        trials=50,
        sample=4,
    ),
    Row(
        "files",
        "clock set back",
        "the newer file, and nothing else",
        clock_set_back,
        trials=20,
    ),
    IN_MANY_SHAPES,
)
