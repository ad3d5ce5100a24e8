"""Workers and clusters that are unfit, mute or gone."""

import asyncio
import dataclasses
import pickle
import platform
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from fixtures import sweep_files
from killed_sweeps import SPEC

from gfdyn import sweeps
from gfdyn.sweeps.results._manifest import versions
from gfdyn.sweeps.results._store import Store
from gfdyn.sweeps.run import _cluster, _queue, _run
from gfdyn.sweeps.run._cluster import Cluster, open_cluster
from gfdyn.sweeps.run._engines import Engine
from gfdyn.sweeps.run._queue import Queue
from gfdyn.sweeps.run._worker import Employer, UnfitWorkerError, unfit
from gfdyn.sweeps.spec._plan import make_plan, resolved


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
    assert _cluster._TO_ANSWER * 60 == pytest.approx(20)


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
