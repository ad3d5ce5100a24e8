"""Sweeps on all engines: the same bytes, whatever is killed, and a disk that is full."""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest
from fixtures import sweep_files
from killed_sweeps import SPEC, on

from gfdyn import sweeps
from gfdyn.sweeps.run._compute import PointOutcome
from gfdyn.sweeps.run._engines import Engine
from gfdyn.sweeps.run._queue import Queue
from gfdyn.sweeps.spec._plan import make_plan, resolved


KILLS = int(os.environ.get("GFDYN_KILLS", "1"))
SCRIPT = Path(__file__).parents[1] / "killed_sweeps.py"


# Processes start slowly on a busy machine.
PATIENCE = 600


def assert_undisturbed(out: Path, undisturbed: Path) -> None:
    """Every point is there, to the last bit, and nothing else."""
    assert sweep_files(out) == sweep_files(undisturbed)
    folders = (out, *(p for p in out.iterdir() if p.is_dir()))
    assert not [file for folder in folders for file in folder.glob(".*")]
    assert not list((out / "checkpoints").iterdir())
    assert not list((out / "failures").iterdir())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """The sweep, run at once in this process."""
    out = tmp_path_factory.mktemp("sweeps") / "undisturbed"
    assert sweeps.run(SPEC, out, progress=False).ok == len(SPEC)
    return out


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A folder for compiled programs."""
    return tmp_path_factory.mktemp("cache")


def script(*arguments: object, **options: object) -> subprocess.Popen:
    """The script at work, in a process of its own."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, text=True, **options)  # pyright: ignore


def wait_for(
    condition: Callable[[], object], process: subprocess.Popen | None = None
) -> None:
    """Until it holds; a process that ends before is a failure."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def at_work(out: Path, since: float = 0.0) -> bool:
    """Whether some batch has left a checkpoint since then."""
    with contextlib.suppress(FileNotFoundError):
        return any(f.stat().st_mtime > since for f in out.glob("checkpoints/*.eqx"))
    return False


@pytest.mark.slow
def test_killed_workers_are_replaced(undisturbed, tmp_path):
    """And two processes give the same bytes as this one."""
    out = tmp_path / "out"
    done = threading.Event()
    killed = []

    def kill_workers() -> None:
        while len(killed) < KILLS and not done.is_set():
            workers = multiprocessing.active_children()
            if workers and at_work(out):
                worker = workers[len(killed) % len(workers)]
                killed.append(worker.pid)
                worker.kill()
                worker.join(PATIENCE)
            time.sleep(0.1)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    try:
        status = sweeps.run(on("processes", workers=2), out, progress=False)
    finally:
        done.set()
        killer.join()
    if status.ok < len(SPEC):
        # Whose worker was killed three times in a row: given up, and tried again here.
        status = sweeps.run(on("processes", workers=2), out, progress=False)
    assert killed and status.ok == len(SPEC)
    assert_undisturbed(out, undisturbed)
    assert not multiprocessing.active_children()


def test_a_batch_that_kills_its_worker_is_a_row(undisturbed, tmp_path):
    """Of each: the pool breaks, all that ran are tried alone, and only it fails."""
    batches = make_plan(resolved(SPEC)).batches
    guilty = batches[4]
    pool: dict[Future, object] = {}
    renewed = []

    def submit(batch: object) -> Future:
        """Batches finish in pairs; with the guilty one all that run are lost."""
        pool[future := Future()] = batch
        if batch is guilty:
            for each in pool:
                each.set_exception(BrokenProcessPool("killed"))
            pool.clear()
        elif len(pool) == 2 or renewed:
            for each, ran in pool.items():
                each.set_result([PointOutcome(ran.digest, "successful", "")])  # pyright: ignore
            pool.clear()
        return future

    engine = Engine(submit, window=2, renew=lambda: renewed.append(1))
    results = dict(Queue(engine, batches).results())
    assert len(renewed) == 4 and len(results) == len(batches)
    failed = [batch for batch, found in results.items() if isinstance(found, Exception)]
    assert failed == [guilty]
    assert "killed its worker 3 times" in str(results[guilty])


def test_a_killed_sweep_goes_on(undisturbed, cache, tmp_path):
    """`kill -9` of the process that runs it, at random moments."""
    process = script(cache, tmp_path / "out", "kill", KILLS, stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=PATIENCE * (1 + KILLS))
    assert process.returncode == 0 and f"kill {KILLS}," in output
    assert_undisturbed(tmp_path / "out", undisturbed)


@contextlib.contextmanager
def dask_cluster(folder: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """A scheduler and a worker, as on a cluster: its address, and the scheduler."""
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    dask = [sys.executable, "-m", "distributed.cli"]
    alone = ["--no-dashboard", "--scheduler-file", str(file)]
    with contextlib.ExitStack() as stack:

        def start(kind: str, *options: str) -> subprocess.Popen:
            command = [*dask[:2], f"{dask[2]}.{kind}", *alone, *options]
            log = stack.enter_context((folder / f"{kind}.log").open("w"))
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        scheduler = start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        wait_for(lambda: file.exists() and file.stat().st_size, scheduler)
        start("dask_worker", "--nthreads", "1", "--no-nanny", "--death-timeout", "60")
        yield json.loads(file.read_text())["address"], scheduler


def test_dask_gives_the_same_bytes(undisturbed, tmp_path):
    """On a cluster of its own."""
    out = tmp_path / "out"
    assert sweeps.run(on("dask"), out, progress=False).ok == len(SPEC)
    assert_undisturbed(out, undisturbed)


@pytest.mark.slow
def test_a_killed_dask_scheduler(undisturbed, cache, tmp_path):
    """The sweep ends with how to go on; it does, here in this process."""
    out = tmp_path / "out"
    for _ in range(max(1, KILLS // 2)):
        with dask_cluster(tmp_path) as (address, scheduler):
            started = time.time()
            process = script(cache, out, address, stderr=subprocess.PIPE)
            wait_for(partial(at_work, out, started), process)
            scheduler.kill()
            _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode != 0
        assert f"What is done is kept; go on with: gfdyn sweep {out}/spec.toml" in error
    assert sweeps.run(SPEC, out, progress=False).ok == len(SPEC)
    assert_undisturbed(out, undisturbed)


SMALL_DISK = """
set -e
mount -t tmpfs -o size={size}k none {folder}
{python} {script} {cache} {folder}/out serial 2> {folder}.err && exit 3
cp -r {folder}/out {folder}.kept
mount -o remount,size=100M {folder}
{python} {script} {cache} {folder}/out serial
cp -r {folder}/out {folder}.done
"""


@pytest.mark.slow
def test_a_disk_that_is_full(undisturbed, cache, tmp_path):
    """A small tmpfs, on which some of the points fit; then it grows."""
    probe = "mount -t tmpfs none /mnt"
    private = ["unshare", "-rm", "sh", "-c"]
    with contextlib.suppress(OSError):
        if subprocess.run([*private, probe], capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
    folder = tmp_path / "disk"
    folder.mkdir()
    commands = SMALL_DISK.format(
        size=60, folder=folder, python=sys.executable, script=SCRIPT, cache=cache
    )
    result = subprocess.run([*private, commands], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    message = Path(f"{folder}.err").read_text()
    assert f"no space left in {folder}/out. Free some. What is done is kept" in message
    kept = sweep_files(Path(f"{folder}.kept"))
    assert 0 < len(kept) < len(SPEC) and set(kept) < set(sweep_files(undisturbed))
    assert_undisturbed(Path(f"{folder}.done"), undisturbed)


SHARDED = """
import dataclasses, sys
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
import gfdyn as gf
sys.path.insert(0, {tests!r})
from killed_sweeps import S, SPEC
assert jax.device_count() == 2
axes = {{"net.seed": S.seeds(3)}}
short = dataclasses.replace(SPEC, run=S.DescentSettings(steps=40), axes=axes)
found = []
for devices in (1, 2):
    engine = S.EngineSettings(lanes=4, devices=devices, checkpoint_every=20)
    folder = f"{out}/{{devices}}"
    S.run(dataclasses.replace(short, engine=engine), folder, progress=False)
    found.append(S.collect(folder).risk.values)
assert np.isfinite(found[0]).all()
np.testing.assert_allclose(*found, rtol=1e-12)
"""


def test_lanes_on_two_devices(tmp_path):
    """As on one, three points in four lanes."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    result = subprocess.run(
        [sys.executable, "-c", SHARDED.format(tests=str(SCRIPT.parent), out=tmp_path)],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert result.returncode == 0, result.stderr
