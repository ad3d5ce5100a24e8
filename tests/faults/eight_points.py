"""A sweep of eight points for trials: what it is when undisturbed, and what comes of it.

It is run in processes that are forked from one that has imported all, with compiled
programs that all trials share.
"""

import contextlib
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import forked
import killed_sweeps
from fixtures import sweep_files
from table import Outcome

from gfdyn import sweeps
from gfdyn.sweeps.spec._plan import resolved


AXES = {"net.init_scale": (1.0, 0.1), "net.seed": sweeps.seeds(4)}
EIGHT = resolved(dataclasses.replace(killed_sweeps.SPEC, name="eight", axes=AXES))


on = functools.partial(killed_sweeps.on, spec=EIGHT)


@functools.cache
def shelf() -> tempfile.TemporaryDirectory:
    """What trials share: compiled programs, and the sweep as it is when undisturbed."""
    kept = tempfile.TemporaryDirectory()
    (Path(kept.name) / "cache").mkdir()
    return kept


@functools.cache
def undisturbed() -> Path:
    """The sweep, run at once."""
    folder = Path(shelf().name)
    out = empty(folder)
    assert forked.ends(forked.start(forked.sweep, EIGHT, out, folder))
    assert len(sweep_files(out)) == len(EIGHT)
    return out


def empty(folder: Path) -> Path:
    """A folder for the sweep, where nothing need be compiled."""
    out = folder / "out"
    out.mkdir(parents=True)
    (out / "cache").symlink_to(Path(shelf().name) / "cache")
    return out


def half_done(folder: Path) -> Path:
    """The sweep, of which every other point is done."""
    out = folder / "out"
    shutil.copytree(undisturbed(), out, symlinks=True)
    for file in sorted(out.glob("points/*.nc"))[::2]:
        file.unlink()
    return out


def has_begun(out: Path) -> bool:
    """Whether a point is there."""
    return any(out.glob("points/*.nc"))


def said(folder: Path) -> str:
    """What a sweep that was run there has printed."""
    file = folder / "said.txt"
    return file.read_text() if file.exists() else ""


def is_whole(out: Path) -> bool:
    """Every point is there to the last bit, and nothing else."""
    folders = [out, *(out / name for name in ("points", "failures", "checkpoints"))]
    orphans = [file for folder in folders for file in folder.glob(".*")]
    left = [*(out / "failures").iterdir(), *(out / "checkpoints").iterdir(), *orphans]
    return sweep_files(out) == sweep_files(undisturbed()) and not left


def resumed(out: Path, folder: Path, spec: sweeps.Spec = EIGHT) -> Outcome:
    """What comes of the sweep when it is run again."""
    again = forked.start(forked.sweep, spec, out, folder)
    if not forked.ends(again):
        return Outcome.HANG
    return Outcome.HARMLESS if is_whole(out) else Outcome.LOST


def named(
    spec: sweeps.Spec, out: Path, folder: Path, message: str, points: int = 0
) -> Outcome:
    """What comes of a sweep that is to be refused in these words, with no more points in
    its folder than there were."""
    process = forked.start(forked.sweep, spec, out, folder)
    if not forked.ends(process):
        return Outcome.HANG
    if len(list(out.glob("points/*.nc"))) != points:
        return Outcome.SILENT
    return Outcome.NAMED if process.exitcode and message in said(folder) else Outcome.BARE


@contextlib.contextmanager
def cluster(
    folder: Path, workers: int = 1, **habits: Any
) -> Iterator[tuple[str, BaseProcess, list[BaseProcess]]]:
    """A scheduler and its workers: its address, and all of them."""
    folder.mkdir(exist_ok=True)
    scheduler = forked.start(forked.scheduler, folder)
    started: list[BaseProcess] = []
    try:
        assert forked.wait_for((folder / "address").exists)
        address = (folder / "address").read_text()
        worker = functools.partial(forked.worker, **habits)
        started += [forked.start(worker, address, folder) for _ in range(workers)]
        yield address, scheduler, started
    finally:
        forked.kill(scheduler, *started)
