"""Faults of the folder of a sweep: its disk is full, it must not be written, or two sweeps
write there at once.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import forked
import numpy as np
from eight_points import EIGHT, empty, is_whole, resumed, said, undisturbed
from table import Outcome, Row


_NOBODY = 65534


@contextlib.contextmanager
def disk(folder: Path, kilobytes: int) -> Iterator[bool]:
    """A disk of that size at a folder; whether this process may make one."""
    folder.mkdir()
    size = f"size={kilobytes}k"
    made = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    try:
        allowed = subprocess.run(made, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", str(folder)], check=True)


def disk_full(random: np.random.Generator, folder: Path) -> Outcome:
    """Or, where no disk can be made, files may not be longer than so; smaller ones, until
    one is too small."""
    undisturbed()
    for pages in range(int(random.integers(2, 20)), 0, -2):
        there = folder / str(pages)
        there.mkdir()
        outcome = on_disk_of(pages, there)
        if outcome is not None:
            return outcome
    raise AssertionError("a sweep fits on a disk of one page")


def on_disk_of(pages: int, folder: Path) -> Outcome | None:
    """What comes of the sweep on a disk of that size; None if it fits."""
    with disk(folder / "disk", 4 * pages) as allowed:
        out = empty(folder / "disk")
        limit = None if allowed else 1024 * pages
        process = forked.start(forked.limited_sweep, EIGHT, out, folder, limit)
        if not forked.ends(process):
            return Outcome.HANG
        if not process.exitcode:
            return None if is_whole(out) else Outcome.SILENT
        if f"no space left in {out}. Free some" not in said(folder):
            return Outcome.BARE
        if allowed:
            larger = ["mount", "-o", "remount,size=10m", str(folder / "disk")]
            subprocess.run(larger, check=True)
        found = resumed(out, folder)
    return Outcome.NAMED if found is Outcome.HARMLESS else found


def not_to_be_written(random: np.random.Generator, folder: Path) -> Outcome:
    """By a user who may read it only."""
    undisturbed()
    out = empty(folder)
    for file in [*undisturbed().glob("*"), *undisturbed().glob("points")]:
        if file.is_file() and random.integers(2):
            (out / file.name).write_bytes(file.read_bytes())
    out.chmod(0o555)
    folder.chmod(0o777)
    process = forked.start(forked.limited_sweep, EIGHT, out, folder, None, _NOBODY)
    if not forked.ends(process):
        return Outcome.HANG
    text = said(folder).rstrip().splitlines()
    told = bool(text) and "PermissionError" in text[-1] and str(out) in text[-1]
    if not process.exitcode:
        return Outcome.SILENT
    return Outcome.NAMED if told else Outcome.BARE


def two_sweeps(random: np.random.Generator, folder: Path) -> Outcome:
    """Begun at the same moment, or almost."""
    undisturbed()
    out = empty(folder)
    both = [forked.start(forked.sweep, EIGHT, out, folder) for _ in range(2)]
    if not all([forked.ends(process) for process in both]):
        return Outcome.HANG
    if any(process.exitcode for process in both):
        return Outcome.BARE
    return Outcome.HARMLESS if is_whole(out) else Outcome.LOST


_GOES_ON = "run again: every point, to the last bit, and nothing else"

ROWS: tuple[Row, ...] = (
    Row("folders", "disk full", f"says so, and how to go on; {_GOES_ON}", disk_full, 30),
    Row("folders", "not to be written", "an error that names it", not_to_be_written, 10),
    Row("folders", "two sweeps at once", "every point, to the last bit", two_sweeps, 20),
)
