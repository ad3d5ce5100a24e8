"""Sweeps and Dask clusters in processes of their own that need no imports: they are forked
from one that has imported all, and in which JAX has not begun.
"""

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gfdyn import sweeps
from gfdyn._atomic import replace_atomically
from gfdyn.sweeps import _worker
from gfdyn.sweeps._compute import PointOutcome
from gfdyn.sweeps._plan import PointBatch
from gfdyn.sweeps._store import Store


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["gfdyn.cli", "distributed", "xarray", "scipy.io"])
# Seconds that any of them may take, on a busy machine.
PATIENCE = 120.0


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A function of this module at work."""
    process = _FORKS.Process(target=target, args=arguments)
    process.start()
    return process


def ends(process: BaseProcess) -> bool:
    """Whether it ends in time; it is killed if not."""
    process.join(PATIENCE)
    in_time = process.exitcode is not None
    kill(process)
    return in_time


def kill(*processes: BaseProcess) -> None:
    """End them, as `kill -9` does."""
    for process in processes:
        process.kill()
        process.join()


def end(process: BaseProcess) -> None:
    """Ask it to end, with those that it started."""
    process.terminate()
    ends(process)


def kill_workers_of(process: BaseProcess) -> int:
    """Kill the workers that a process has spawned; how many there were."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    spawned = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in map(int, children.read_text().split()):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(child, signal.SIGKILL)
                spawned += 1
    return spawned


def wait_for(condition: Callable[[], object]) -> bool:
    """Whether it holds in time."""
    deadline = time.monotonic() + PATIENCE
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return bool(holds)


def sweep(spec: sweeps.Spec, out: str | Path, folder: Path, mix: bool = False) -> None:
    """Run a sweep from a folder; what it says goes to said.txt there."""
    _settle(folder, "said.txt")
    _worker.configure(Store(out).cache, x64=True)
    sweeps.run(spec, out, progress=False, mix_versions=mix)


def limited_sweep(
    spec: sweeps.Spec,
    out: Path,
    folder: Path,
    longest: int | None,
    user: int | None = None,
) -> None:
    """Run a sweep that may write files of so many bytes, as a user."""
    _settle(folder, "said.txt")
    _worker.configure(Store(out).cache, x64=True)
    if longest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest, longest))
    if user is not None:
        os.setuid(user)
    sweeps.run(spec, out, progress=False)


def scheduler(folder: Path) -> None:
    """The scheduler of a Dask cluster; its address goes to the file `address`."""
    from distributed import Scheduler

    _settle(folder, "cluster.txt")

    async def serve() -> None:
        place = {"host": "127.0.0.1", "port": 0, "dashboard_address": ":0"}
        async with Scheduler(**place) as serving:  # pyright: ignore[reportArgumentType]
            replace_atomically(
                folder / "address", lambda path: path.write_text(serving.address)
            )
            await serving.finished()

    asyncio.run(serve())


def worker(
    address: str, folder: Path, elsewhere: Path | None = None, deadly: str | None = None
) -> None:
    """A worker of it, in a folder; it may see another folder in the place of the sweep's,
    and die of a batch."""
    from distributed import Worker

    _settle(folder, "cluster.txt")
    if elsewhere is not None:
        _see(elsewhere)
    if deadly is not None:
        _die_of(deadly)

    _serve(Worker, address, folder)


def nurse(address: str, folder: Path, megabytes: int) -> None:
    """A worker that may take no more memory than this, and is replaced if it does."""
    from distributed import Nanny

    _settle(folder, "cluster.txt")

    _serve(Nanny, address, folder, memory_limit=f"{megabytes}MB")


def _serve(kind: Callable[..., Any], address: str, folder: Path, **habits: Any) -> None:
    """Work for a scheduler, as one of its workers or what looks after one."""
    place = {"local_directory": str(folder), "dashboard_address": ":0"}

    async def serve() -> None:
        async with kind(address, nthreads=1, **place, **habits) as serving:
            await serving.finished()

    asyncio.run(serve())


def _settle(folder: Path, said: str) -> None:
    """Go to a folder, and write there what is printed."""
    os.chdir(folder)
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())


def _see(elsewhere: Path) -> None:
    """Where this process looks for the folder of any sweep."""
    begin = Store.__init__
    Store.__init__ = lambda self, path: begin(self, elsewhere / Path(path).name)


def _die_of(deadly: str) -> None:
    """Have this process die of the batch of a point."""
    compute = _worker.compute_batch

    def compute_or_die(store: Store, batch: PointBatch) -> list[PointOutcome]:
        if deadly in batch.digests:
            os.kill(os.getpid(), signal.SIGKILL)
        return compute(store, batch)

    _worker.compute_batch = compute_or_die
