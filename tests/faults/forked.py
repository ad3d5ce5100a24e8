"""Sweeps and Dask clusters in processes of their own that need no imports: they are forked
from one that has imported all, and in which JAX has not begun.
"""

import asyncio
import contextlib
import ctypes
import functools
import multiprocessing
import os
import resource
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jax

import gfdyn as gf
from gfdyn import sweeps
from gfdyn._atomic import _machine, replace_atomically
from gfdyn.sweeps.results._store import Store
from gfdyn.sweeps.run import _worker
from gfdyn.sweeps.run._compute import PointOutcome
from gfdyn.sweeps.spec._plan import PointBatch


_FORKS = multiprocessing.get_context("forkserver")
# What is imported late, where it is used, among it.
_IMPORTED = ["gfdyn.cli", "distributed", "xarray", "scipy.io", "dask.array", "optax"]
_FORKS.set_forkserver_preload(_IMPORTED)
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


def temporary_of(process: BaseProcess, name: str) -> str:
    """The name of the temporary file that a process would write in the place of another."""
    token = f"{_machine()}-{process.pid}.{secrets.token_hex(8)}"
    return f".{name}.{token}"


@functools.cache
def can_mount() -> bool:
    """Whether this system lets a process have a file system of its own."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(_mount, Path(folder), "size=4k")
        return ends(process) and process.exitcode == 0


def nothing() -> None:
    """End at once."""


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


def save_in_turn(folder: Path, times: int) -> None:
    """Save the trajectories of first.nc and second.nc there to run.nc, in turn."""
    _settle_in_doubles(folder)
    both = [gf.load(folder / name) for name in ("first.nc", "second.nc")]
    for i in range(times):
        both[i % 2].save(folder / "run.nc")


def save_where_it_is_full(folder: Path, disk: Path, kilobytes: int, mount: bool) -> None:
    """Save the trajectory of second.nc to run.nc on a disk of its own that is full after
    so much, or where files may not be larger; what it says goes to said.txt."""
    _settle_in_doubles(folder)
    trajectory = gf.load("second.nc")
    older = (folder / "first.nc").read_bytes()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mount:
        _mount(disk, f"size={len(older) // 1024 + 1 + kilobytes}k")
        (disk / "run.nc").write_bytes(older)
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kilobytes, most))
    said = _tried(trajectory, disk / "run.nc")
    # What is printed goes to a file, too.
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    print(said)
    left = sorted(entry.name for entry in disk.iterdir())
    whole = (disk / "run.nc").read_bytes() == older
    print("left", left, "older" if whole else "newer")


def save_where_it_may_not(folder: Path, kind: str) -> None:
    """Save the trajectory of second.nc to run.nc in a folder that is read-only, by its
    rights or by its disk; what it says goes to said.txt."""
    _settle_in_doubles(folder)
    trajectory = gf.load("second.nc")
    place = folder / "closed"
    if kind == "disk":
        _mount(place, "ro")
    elif os.getuid() == 0:
        os.setuid(65534)
    print(_tried(trajectory, place / "run.nc"))


def solve_in_shapes(folder: Path, shapes: int) -> None:
    """Solve networks of as many widths; the risks that they end with go to risks.txt."""
    _settle_in_doubles(folder)
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    solver, risks = gf.solvers.Adaptive(rtol=1e-3), []
    for width in range(1, shapes + 1):
        net = gf.nets.MLP([2, width, 1], key=jax.random.key(0), scale=0.1)
        traj = gf.solve(gf.GradientFlow(problem), net, t1=0.1, ts=[0.1], solver=solver)
        risks.append(float(traj.final_risk))
    (folder / "risks.txt").write_text("\n".join(map(str, risks)))


def _tried(trajectory: gf.Trajectory, path: Path) -> str:
    """Save it; what is said if that fails."""
    try:
        trajectory.save(path)
    except OSError as error:
        return f"OSError {error.errno} {error}"
    return "saved"


def _mount(place: Path, options: str) -> None:
    """Mount a small file system that this process alone sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    root = os.getuid() == 0
    new_mounts, new_users = 0x00020000, 0x10000000
    if libc.unshare(new_mounts if root else new_mounts | new_users):
        raise OSError(ctypes.get_errno(), "unshare")
    read_only = 1 if options == "ro" else 0
    given = None if read_only else options.encode()
    if libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(
        b"tmpfs", str(place).encode(), b"tmpfs", read_only, given
    ):
        raise OSError(ctypes.get_errno(), "mount")


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


def _settle_in_doubles(folder: Path) -> None:
    """The same, to work at the precision of what trials have saved."""
    _settle(folder, "said.txt")
    jax.config.update("jax_enable_x64", True)


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
