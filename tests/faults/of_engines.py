"""Faults of engines: what computes is killed, mute, elsewhere, too small or of another
version; what a killed machine left in the folder of a sweep.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import forked
import numpy as np
from eight_points import (
    EIGHT,
    cluster,
    empty,
    half_done,
    has_begun,
    is_whole,
    named,
    on,
    resumed,
    said,
    undisturbed,
)
from table import Outcome, Row

from gfdyn import sweeps
from gfdyn.sweeps.results._store import Store
from gfdyn.sweeps.spec._plan import make_plan


# From the first point that is written to the last one, about.
SECONDS = 0.25
YEARS = 365.25 * 86400.0


# Killed after the first point was written


def amid(disturb: Callable[[np.random.Generator, Path], Outcome | None]) -> Any:
    """Tries until a sweep was still at work when it was disturbed."""

    def attempt(random: np.random.Generator, folder: Path) -> Outcome:
        undisturbed()
        for k in range(20):
            outcome = disturb(random, folder / str(k))
            if outcome is not None:
                return outcome
        raise AssertionError("each of 20 sweeps was over before it was disturbed")

    return attempt


def await_a_moment(random: np.random.Generator, process: BaseProcess, out: Path) -> None:
    """A moment after the first point is there."""
    assert forked.wait_for(lambda: has_begun(out) or not process.is_alive())
    time.sleep(random.uniform(0, SECONDS))


def is_over(out: Path) -> bool:
    """Whether all points are there."""
    return len(list(out.glob("points/*.nc"))) == len(EIGHT)


def main_process_killed(random: np.random.Generator, folder: Path) -> Outcome | None:
    out = empty(folder)
    process = forked.start(forked.sweep, EIGHT, out, folder)
    await_a_moment(random, process, out)
    forked.kill(process)
    return None if is_over(out) else resumed(out, folder)


def scheduler_killed(random: np.random.Generator, folder: Path) -> Outcome | None:
    """The sweep ends, and says how to go on."""
    out = empty(folder)
    with cluster(folder / "cluster", workers=2) as (address, scheduler, _):
        process = forked.start(forked.sweep, on("dask", address=address), out, folder)
        await_a_moment(random, process, out)
        forked.kill(scheduler)
        disturbed = not is_over(out)
        if not forked.ends(process):
            return Outcome.HANG
    if not disturbed:
        return None
    if f"go on with: gfdyn sweep {out}/spec.toml" not in said(folder):
        return Outcome.BARE
    return resumed(out, folder)


def dask_worker_killed(random: np.random.Generator, folder: Path) -> Outcome | None:
    """The other one takes over."""
    out = empty(folder)
    with cluster(folder / "cluster", workers=2) as (address, _, workers):
        process = forked.start(forked.sweep, on("dask", address=address), out, folder)
        await_a_moment(random, process, out)
        forked.kill(workers[random.integers(2)])
        if is_over(out):
            return None
        if not forked.ends(process):
            return Outcome.HANG
    return Outcome.HARMLESS if is_whole(out) else Outcome.LOST


def last_dask_worker_killed(random: np.random.Generator, folder: Path) -> Outcome | None:
    """The sweep waits for another one, ends, and says how to go on."""
    out = empty(folder)
    with cluster(folder / "cluster") as (address, _, workers):
        spec = on("dask", address=address, wait=2.0)
        process = forked.start(forked.sweep, spec, out, folder)
        await_a_moment(random, process, out)
        forked.kill(*workers)
        disturbed = not is_over(out)
        if not forked.ends(process):
            return Outcome.HANG
    if not disturbed:
        return None
    if "the Dask cluster had no worker for 2 s" not in said(folder):
        return Outcome.BARE
    return resumed(out, folder)


def worker_process_killed(random: np.random.Generator, folder: Path) -> Outcome | None:
    """Another one is started."""
    out = empty(folder)
    process = forked.start(forked.sweep, on("processes", workers=1), out, folder)
    await_a_moment(random, process, out)
    killed = forked.kill_workers_of(process)
    if not killed or is_over(out):
        forked.kill(process)
        return None
    if not forked.ends(process):
        return Outcome.HANG
    return Outcome.HARMLESS if is_whole(out) else Outcome.LOST


def point_kills_its_process(random: np.random.Generator, folder: Path) -> Outcome:
    """It is a row that names the worker, and all others are there."""
    undisturbed()
    out = empty(folder)
    batch = make_plan(EIGHT).batches[random.integers(len(EIGHT))]
    with cluster(folder / "cluster", workers=5, deadly=batch.digests[0]) as (address, *_):
        spec = on("dask", address=address)
        process = forked.start(forked.sweep, spec, out, folder)
        if not forked.ends(process):
            return Outcome.HANG
    if sweeps.status(out).results != {"successful": len(EIGHT) - 1, "error": 1}:
        return Outcome.LOST
    reason = Store(out).read_failures()[batch.digests[0]]
    if "all those workers died while running it" not in reason:
        return Outcome.BARE
    return Outcome.NAMED if resumed(out, folder) is Outcome.HARMLESS else Outcome.LOST


# Clusters that cannot compute


def memory_too_small(random: np.random.Generator, folder: Path) -> Outcome:
    """Python and JAX alone take more: it dies of them, or takes no batch."""
    undisturbed()
    out, there = empty(folder), folder / "cluster"
    with cluster(there, workers=0) as (address, *_):
        limit = int(random.integers(50, 250))
        nurse = forked.start(forked.nurse, address, there, limit)
        spec = on("dask", address=address, wait=15.0)
        try:
            return named(spec, out, folder, f"memory limit is {limit} MB")
        finally:
            forked.end(nurse)


def no_worker(random: np.random.Generator, folder: Path) -> Outcome:
    undisturbed()
    with cluster(folder / "cluster", workers=0) as (address, *_):
        spec = on("dask", address=address, wait=random.uniform(0.5, 1.0))
        return named(spec, empty(folder), folder, "the Dask cluster had no worker for")


def unanswered(port: int, random: np.random.Generator, folder: Path) -> Outcome:
    """What comes of an address of this machine at which no scheduler is."""
    undisturbed()
    address = f"tcp://127.0.0.1:{port}"
    message = f"engine.address={address!r}: no Dask scheduler answered within"
    spec = on("dask", address=address, wait=random.uniform(1, 2))
    return named(spec, empty(folder), folder, message)


def mute_address(random: np.random.Generator, folder: Path) -> Outcome:
    """It accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        return unanswered(mute.getsockname()[1], random, folder)


def address_of_nobody(random: np.random.Generator, folder: Path) -> Outcome:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    return unanswered(port, random, folder)


WRONG = (
    "{}",
    "tcp://{}",
    "tcp:/{}:8786",
    "http://{}:8786",
    "{}:port",
    "tcp://{}:",
    "tcp://:1",
)


def address_of_another_form(random: np.random.Generator, folder: Path) -> Outcome:
    """The message has a right one."""
    host = random.choice(["10.0.0.1", "node7", "localhost", "a b", ""])
    address = str(random.choice(WRONG)).format(host)
    try:
        on("dask", address=address)
    except ValueError as error:
        right = (
            f"engine.address={address!r} must be tcp://HOST:PORT, as tcp://10.0.0.1:8786."
        )
        return Outcome.NAMED if str(error) == right else Outcome.BARE
    return Outcome.SILENT


def workers_in_another_folder(random: np.random.Generator, folder: Path) -> Outcome:
    """And `out` is relative to that of the sweep."""
    undisturbed()
    out = empty(folder)
    with cluster(folder / "cluster") as (address, *_):
        process = forked.start(forked.sweep, on("dask", address=address), "out", folder)
        if not forked.ends(process):
            return Outcome.HANG
    return Outcome.HARMLESS if is_whole(out) else Outcome.LOST


def workers_that_see_another_folder(random: np.random.Generator, folder: Path) -> Outcome:
    """Nothing is computed."""
    undisturbed()
    out, elsewhere = empty(folder), folder / "elsewhere"
    if random.integers(2):
        # As it was before this sweep.
        half_done(elsewhere)
    with cluster(folder / "cluster", elsewhere=elsewhere) as (address, *_):
        spec = on("dask", address=address)
        return named(spec, out, folder, f"does not see {elsewhere / 'out'} as the")


# What is left in the folder


def clocks_apart(random: np.random.Generator, folder: Path) -> Outcome:
    """Files of the past and of the future, from a sweep that was killed."""
    out = half_done(folder)
    (out / "points" / f".x.nc.{'a' * 16}").write_bytes(b"half a file")
    for file in [out, *out.glob("*"), *out.glob("*/*")]:
        moment = time.time() + random.uniform(-20, 20) * YEARS
        os.utime(file, (moment, moment), follow_symlinks=False)
    return resumed(out, folder)


def mixed(out: Path, folder: Path, message: str) -> Outcome:
    """What comes of a folder that other versions have begun: refused, then mixed."""
    there = len(list(out.glob("points/*.nc")))
    refused = named(EIGHT, out, folder, message, there)
    if refused is not Outcome.NAMED:
        return refused
    process = forked.start(forked.sweep, EIGHT, out, folder, True)
    if not forked.ends(process):
        return Outcome.HANG
    shown = "of mixed versions" in str(sweeps.status(out))
    if not is_whole(out):
        return Outcome.LOST
    return Outcome.NAMED if shown else Outcome.SILENT


def manifest_gone(random: np.random.Generator, folder: Path) -> Outcome:
    """Or torn, or a folder."""
    out = half_done(folder)
    manifest = out / "manifest.json"
    content = manifest.read_bytes()
    manifest.unlink()
    kind = random.integers(3)
    if kind == 1:
        manifest.write_bytes(content[: random.integers(len(content) - 1)])
    if kind == 2:
        manifest.mkdir()
    return mixed(out, folder, "no manifest.json says which versions computed the points")


def manifest_of_another_version(random: np.random.Generator, folder: Path) -> Outcome:
    out = half_done(folder)
    manifest = json.loads((out / "manifest.json").read_text())
    name = str(random.choice(["gfdyn", "jax", "jaxlib"]))
    other = f"0.0.{random.integers(9)}"
    manifest["versions"][name] = other
    (out / "manifest.json").write_text(json.dumps(manifest))
    return mixed(out, folder, f"its points were computed with {name}={other} where")


def unreadable(random: np.random.Generator, folder: Path) -> Outcome:
    """A point, or why there is none: a dangling link, a folder, a part of a file."""
    out = half_done(folder)
    point = sorted(out.glob("points/*.nc"))[random.integers(4)]
    failure = out / "failures" / f"{point.name.partition('-')[0]}.json"
    failure.write_text(json.dumps({"reason": "killed"}))
    chosen = [point, failure][random.integers(2)]
    content = chosen.read_bytes()
    chosen.unlink()
    kind = random.integers(3)
    if kind == 0:
        chosen.symlink_to(folder / "nowhere")
    if kind == 1:
        (chosen / "inside").mkdir(parents=True)
    if kind == 2:
        chosen.write_bytes(content[: random.integers(len(content))])
    if chosen is point:
        failure.unlink()
    outcome = resumed(out, folder)
    told = f"{chosen}: " in said(folder) and "; moved to rejected/" in said(folder)
    kept = os.path.lexists(out / "rejected" / chosen.name)
    return outcome if told and kept else Outcome.SILENT


def _row(fault: str, expected: str, attempt: Callable[..., Outcome], trials: int) -> Row:
    return Row("engines", fault, expected, attempt, trials)


_GOES_ON = "run again: every point, to the last bit, and nothing else"
_SAYS_HOW = f"ends in time and says how to go on; {_GOES_ON}"
_REFUSED = "refused in one sentence, before anything is computed"

ROWS: tuple[Row, ...] = (
    _row("main process killed", _GOES_ON, amid(main_process_killed), 50),
    _row("Dask scheduler killed", _SAYS_HOW, amid(scheduler_killed), 50),
    _row(
        "one of two Dask workers killed",
        "every point, to the last bit",
        amid(dask_worker_killed),
        50,
    ),
    _row("the only Dask worker killed", _SAYS_HOW, amid(last_dask_worker_killed), 5),
    _row(
        "worker process killed",
        "every point, to the last bit",
        amid(worker_process_killed),
        10,
    ),
    _row(
        "a point kills its process",
        "a row that says so; all other points are there",
        point_kills_its_process,
        3,
    ),
    _row(
        "memory limit of a worker too small",
        "names the limit, in time",
        memory_too_small,
        5,
    ),
    _row("Dask cluster without workers", "named in time", no_worker, 5),
    _row("mute address", "named in time", mute_address, 5),
    _row("address of nobody", "named in time", address_of_nobody, 5),
    _row("address of another form", "says a right one", address_of_another_form, 50),
    _row(
        "workers in another folder, relative out",
        "every point, to the last bit",
        workers_in_another_folder,
        3,
    ),
    _row(
        "workers that do not see the folder", _REFUSED, workers_that_see_another_folder, 5
    ),
    _row("clocks apart", _GOES_ON, clocks_apart, 10),
    _row(
        "manifest missing, torn or a folder",
        f"{_REFUSED}; with mix_versions goes on and shows it",
        manifest_gone,
        5,
    ),
    _row(
        "manifest of other versions",
        f"{_REFUSED}; with mix_versions goes on and shows it",
        manifest_of_another_version,
        5,
    ),
    _row(
        "dangling link, folder or torn file in the folder",
        f"moved out of the way and named; {_GOES_ON}",
        unreadable,
        15,
    ),
)
