"""Where batches are computed: here, in processes, on a Dask cluster, or on any executor."""

import contextlib
import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from ._build import has_doubles
from ._compute import compute_batch
from ._plan import PointBatch
from ._spec import EngineSettings
from ._store import Store
from ._worker import live_with, work


# Batches that a cluster is given ahead.
_AHEAD = 512


@dataclasses.dataclass
class Engine:
    """A place to compute.

    Attributes:
        submit: start a batch; a future of its outcomes.
        window: how many batches to submit ahead.
        renew: replace workers that broke, so that one may submit again; None if that
            cannot be done.
    """

    submit: Callable[[PointBatch], Future]
    window: int
    renew: Callable[[], None] | None = None


class SerialExecutor(Executor):
    """Computes at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Call it; a future that is done."""
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextlib.contextmanager
def open_engine(
    settings: EngineSettings, store: Store, executor: Executor | None
) -> Iterator[Engine]:
    """The engine of the settings, or one on the executor if that is given."""
    if executor is not None:
        yield _on(executor, store, _AHEAD)
    elif settings.name == "serial":
        yield Engine(lambda b: SerialExecutor().submit(compute_batch, store, b), window=1)
    elif settings.name == "processes":
        with _processes(settings.workers or os.cpu_count() or 1, store) as engine:
            yield engine
    else:
        with _dask(settings) as executor:
            yield _on(executor, store, _AHEAD)


def _on(executor: Executor, store: Store, window: int) -> Engine:
    doubles = has_doubles()
    return Engine(lambda batch: executor.submit(work, store, batch, doubles), window)


@contextlib.contextmanager
def _processes(workers: int, store: Store) -> Iterator[Engine]:
    """Spawned processes (a fork of a process with JAX in it deadlocks), that end with
    this one."""
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)

    def renew() -> None:
        pool = ProcessPoolExecutor(
            workers, context, initializer=live_with, initargs=(lifeline,)
        )
        engine.submit = _on(pool, store, workers).submit
        pools.append(pool)

    pools: list[ProcessPoolExecutor] = []
    engine = Engine(lambda _: Future(), workers + 1, renew)
    renew()
    try:
        yield engine
    finally:
        # Whatever they are at: it is checkpointed.
        held.close()
        pools[-1].shutdown(wait=True, cancel_futures=True)
        lifeline.close()


@contextlib.contextmanager
def _dask(settings: EngineSettings) -> Iterator[Executor]:
    # An optional dependency.
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ImportError(
            'engine.name="dask" needs Dask: pip install "gfdyn[dask]".'
        ) from error

    resources = {"resources": {"GPU": settings.gpus}} if settings.gpus else {}
    with contextlib.ExitStack() as stack:
        address: Any = settings.address
        if address is None:
            address = stack.enter_context(
                LocalCluster(
                    n_workers=settings.workers or os.cpu_count(),
                    threads_per_worker=1,
                    dashboard_address=None,  # pyright: ignore[reportArgumentType]
                )
            )
        client = stack.enter_context(Client(address))
        yield client.get_executor(**resources)
