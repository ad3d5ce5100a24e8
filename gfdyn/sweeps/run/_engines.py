"""Where batches are computed: here, in processes, on a Dask cluster, or on any executor."""

import contextlib
import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from ..spec import EngineSettings, PointBatch
from ._cluster import open_cluster
from ._compute import compute_batch
from ._worker import Employer, live_with, work


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
        watch: raise a ConnectionError if nobody has been at work for too long; None if
            that cannot be told.
    """

    submit: Callable[[PointBatch], Future]
    window: int
    renew: Callable[[], None] | None = None
    watch: Callable[[], None] | None = None


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
    settings: EngineSettings, employer: Employer, executor: Executor | None
) -> Iterator[Engine]:
    """The engine of the settings, or one on the executor if that is given.

    Raises:
        ConnectionError: if a Dask cluster does not answer, or its workers are unfit.
    """
    if executor is not None:
        yield _on(executor, employer, _AHEAD)
    elif settings.name == "serial":
        store = employer.store
        yield Engine(lambda b: SerialExecutor().submit(compute_batch, store, b), window=1)
    elif settings.name == "processes":
        with _processes(settings.workers or os.cpu_count() or 1, employer) as engine:
            yield engine
    else:
        with open_cluster(settings) as cluster:
            cluster.examine(employer)
            engine = _on(cluster.executor, employer, _AHEAD)
            yield dataclasses.replace(engine, watch=cluster.watch)


def _on(executor: Executor, employer: Employer, window: int) -> Engine:
    return Engine(lambda batch: executor.submit(work, employer, batch), window)


@contextlib.contextmanager
def _processes(workers: int, employer: Employer) -> Iterator[Engine]:
    """Spawned processes (a fork of a process with JAX in it deadlocks), that end with
    this one."""
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)

    def renew() -> None:
        pool = ProcessPoolExecutor(
            workers, context, initializer=live_with, initargs=(lifeline,)
        )
        engine.submit = _on(pool, employer, workers).submit
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
