"""Sweeps on all engines: the same bytes, whatever is killed, and a disk that is full.

The environment variable GFDYN_KILLS says how often each kind of process is killed.
"""

import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pickle
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures import sweep_files
from killed_sweeps import SPEC, on

from gfdyn import sweeps
from gfdyn.sweeps.results._manifest import versions
from gfdyn.sweeps.results._store import Store
from gfdyn.sweeps.run import _cluster, _queue, _run
from gfdyn.sweeps.run._cluster import Cluster, open_cluster
from gfdyn.sweeps.run._compute import PointOutcome
from gfdyn.sweeps.run._engines import Engine
from gfdyn.sweeps.run._queue import Queue
from gfdyn.sweeps.run._worker import Employer, UnfitWorkerError, unfit
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def employer(store: Store, **changes: object) -> Employer:
    """A process that runs a sweep in this folder, and has said so in the log."""
    store.create()
    store.note("two points, of them two to compute (run 1a2b)")
    known = Employer(store, "run 1a2b", versions(), True)
    return dataclasses.replace(known, **changes)  # pyright: ignore[reportArgumentType]


def test_workers_that_are_fit(tmp_path):
    assert unfit(employer(Store(tmp_path))) == ""


def test_workers_that_see_another_folder(tmp_path):
    """One that is not there, or a copy from before the sweep was run."""
    known = employer(Store(tmp_path / "here"))
    sent = pickle.loads(pickle.dumps(known))
    assert sent.store.path == known.store.path and unfit(sent) == ""
    for name in ("copy", "none"):
        other = Store(tmp_path / name)
        if name == "copy":
            other.create()
            other.note("two points, of them two to compute (run 3c4d)")
        reason = unfit(dataclasses.replace(known, store=other))
        assert reason == (
            f"does not see {other.path} as the process that runs the sweep does; give a "
            "folder (out, --out) that all of them mount under the same path"
        )


@pytest.mark.parametrize("name", ["gfdyn", "jax", "jaxlib"])
def test_workers_of_another_version(name, tmp_path):
    theirs = employer(Store(tmp_path), versions=versions() | {name: "0.0.1"})
    reason = (
        f"has {name}={versions()[name]} where the process that runs the sweep has 0.0.1"
    )
    assert unfit(theirs) == f"{reason}; install the same there"


def test_a_worker_that_is_unfit_ends_the_sweep(tmp_path, monkeypatch):
    """On any executor, whenever it comes; nothing is computed."""
    out = tmp_path / "out"
    asked = []

    def sees(self, text):
        asked.append(text)
        return False

    monkeypatch.setattr(Store, "has_noted", sees)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConnectionError) as error:
        sweeps.run(SPEC, out, pool, progress=False)
    assert asked and asked[0] in (out / "log.txt").read_text()
    message = f"{out}: a worker on {platform.node()} does not see {out} as the process"
    assert str(error.value).startswith(message)
    assert sweep_files(out) == [] and not list((out / "failures").iterdir())


def test_an_engine_that_finishes_nothing_is_looked_at(monkeypatch):
    looks = []

    def watch() -> None:
        looks.append(None)
        if len(looks) == 3:
            raise ConnectionError("nobody is there")

    monkeypatch.setattr(_queue, "_GLANCE", 0.01)
    engine = Engine(lambda _: Future(), window=2, watch=watch)
    with pytest.raises(ConnectionError, match="nobody is there"):
        list(Queue(engine, make_plan(resolved(SPEC)).batches).results())
    assert len(looks) == 3


class Scheduler:
    """Knows some workers."""

    def __init__(self, workers):
        self.workers = workers

    async def identity(self, n_workers):
        assert n_workers == -1
        return {"workers": self.workers}


class Client:
    """Of such a scheduler; what workers answer is given."""

    def __init__(self, workers, answers=None):
        self.scheduler, self.answers = Scheduler(workers), answers or {}

    def sync(self, question, callback_timeout):
        assert callback_timeout == 0.05
        return asyncio.run(question())

    async def run(self, function, argument, workers, on_error):
        assert function is unfit and on_error == "return"
        return {worker: self.answers[worker] for worker in workers}

    def get_executor(self, **resources):
        return ThreadPoolExecutor(1)


def worker(status: str = "running", limit: int = 0, **resources: float) -> dict:
    return {"status": status, "memory_limit": limit, "resources": resources}


def cluster_of(client: object, **settings: int) -> Cluster:
    engine = sweeps.EngineSettings(name="dask", wait=0.05, **settings)  # pyright: ignore
    return Cluster(client, engine)  # pyright: ignore[reportArgumentType]


LIMIT = (
    "its memory limit is 300 MB, which one point and JAX itself must fit in: give it more "
    "(dask worker --memory-limit), or its log says why"
)


@pytest.mark.parametrize(
    ("workers", "settings", "message"),
    [
        (
            {},
            {},
            "the Dask cluster had no worker for 0.05 s; start one (dask worker ADDRESS), "
            "or give it more time by engine.wait (--wait)",
        ),
        (
            {"tcp://a:1": worker("paused", 300_000_000)},
            {},
            f"no worker took a batch for 0.05 s: tcp://a:1 is paused; {LIMIT}",
        ),
        (
            {"tcp://a:1": worker("closing")},
            {},
            "no worker took a batch for 0.05 s: tcp://a:1 is closing; its log says why",
        ),
        (
            {"tcp://a:1": worker(GPU=1), "tcp://b:1": worker()},
            {"gpus": 2},
            "no worker of 2 has engine.gpus=2 of the resource GPU; start them with "
            '--resources "GPU=2"',
        ),
    ],
    ids=["none", "paused", "closing", "gpus"],
)
def test_clusters_without_a_worker_for_too_long(workers, settings, message, tmp_path):
    cluster = cluster_of(Client(workers), **settings)
    assert cluster.watch() == {}
    with pytest.raises(ConnectionError) as error:
        cluster.examine(employer(Store(tmp_path)))
    assert str(error.value) == message


def test_workers_of_a_cluster_are_asked_first(tmp_path):
    able = {"tcp://a:1": worker(GPU=1), "tcp://b:1": worker(limit=300_000_000, GPU=2)}
    idle = {"tcp://c:1": worker("paused"), "tcp://d:1": worker()}
    boss = employer(Store(tmp_path))

    def ask(a: object, b: object) -> None:
        answers = {"tcp://a:1": a, "tcp://b:1": b}
        cluster_of(Client(able | idle, answers), gpus=1).examine(boss)

    ask("", "")
    with pytest.raises(UnfitWorkerError, match="^the worker tcp://a:1 has another jax$"):
        ask("has another jax", "")
    with pytest.raises(ConnectionError) as error:
        ask("", OSError("removed"))
    assert str(error.value) == f"the worker tcp://b:1 did not answer (removed); {LIMIT}"


def test_a_cluster_that_is_gone(tmp_path):
    class Gone(Client):
        def sync(self, question, callback_timeout):
            raise TimeoutError

    message = "the Dask cluster is gone, or did not answer within 0.05 s, as engine.wait"
    with pytest.raises(ConnectionError, match=message):
        cluster_of(Gone({})).watch()
    closed = Client({})
    closed.scheduler = None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConnectionError, match="^the Dask cluster is gone$"):
        cluster_of(closed).watch()


@pytest.mark.parametrize("is_mute", [True, False])
def test_an_address_at_which_no_scheduler_answers(is_mute):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        if not is_mute:
            server.close()
        engine = sweeps.EngineSettings(name="dask", address=address, wait=6.0)
        started = time.monotonic()
        with pytest.raises(ConnectionError) as error, open_cluster(engine):
            raise AssertionError
    assert time.monotonic() - started < 20
    why = "TimeoutError" if is_mute else "OSError"
    assert str(error.value) == (
        f"engine.address={address!r}: no Dask scheduler answered within 2 s ({why}); "
        "give the address that it printed, as tcp://10.0.0.1:8786, or more time by "
        "engine.wait (--wait)"
    )


def test_defaults_of_waiting():
    assert sweeps.EngineSettings().wait == 60
    assert _cluster._TO_CONNECT * 60 == pytest.approx(20)


def test_a_point_that_kills_its_workers_names_their_memory(tmp_path):
    class KilledWorker(Exception):
        last_worker = SimpleNamespace(memory_limit=300_000_000)

    store = Store(tmp_path)
    store.create()
    batch = make_plan(resolved(SPEC)).batches[0]
    (outcome,) = _run._outcomes(store, batch, KilledWorker("4 workers died."))
    expected = "KilledWorker: 4 workers died. Its memory limit is 300 MB."
    assert outcome.result == "error" and outcome.reason == expected
    assert store.read_failures() == {outcome.digest: expected}


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
