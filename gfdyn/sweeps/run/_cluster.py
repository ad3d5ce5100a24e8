"""A Dask cluster: one that runs, or one of this machine; and whether it can compute."""

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..spec import EngineSettings
from ._worker import Employer, UnfitWorkerError, unfit


if TYPE_CHECKING:
    from distributed import Client


# Of the seconds that a cluster has, those until its scheduler answers, and of those the
# ones until something is there: told apart, as what accepts may be mute.
_TO_ANSWER = 1 / 3
_TO_CONNECT = 1 / 2
# Between two looks at a cluster without workers.
_PAUSE = 0.1


@dataclasses.dataclass
class Cluster:
    """A client of a Dask cluster that answers within `engine.wait` seconds, or is given up.

    Attributes:
        client: of its scheduler.
        settings: what batches take of it.
        seen: when a worker was seen that could take one.
    """

    client: "Client"
    settings: EngineSettings
    seen: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def executor(self) -> Executor:
        """Where batches are submitted."""
        gpus = self.settings.gpus
        return self.client.get_executor(**({"resources": {"GPU": gpus}} if gpus else {}))

    def examine(self, employer: Employer) -> None:
        """Wait for a worker, and ask each one that is there whether it is fit.

        Raises:
            ConnectionError: if there is no worker, or one dies of the question.
            UnfitWorkerError: if one sees another folder, or is of other versions.
        """
        # Some clusters start workers only where there is something to do.
        self.executor.submit(unfit, employer)
        while not (workers := self.watch()):
            time.sleep(_PAUSE)
        client, there = self.client, list(workers)
        answers = self._ask(
            lambda: client.run(unfit, employer, workers=there, on_error="return")
        )
        for address, answer in answers.items():
            if isinstance(answer, Exception):
                raise ConnectionError(
                    f"the worker {address} did not answer ({answer}); "
                    f"{_limit(workers[address])}"
                )
            if answer:
                raise UnfitWorkerError(f"the worker {address} {answer}")

    def watch(self) -> dict[str, Any]:
        """The workers that can take a batch, by their addresses.

        Raises:
            ConnectionError: if there has been none for too long, saying what is there.
        """
        scheduler: Any = self.client.scheduler
        if scheduler is None:
            raise ConnectionError("the Dask cluster is gone")
        found = self._ask(lambda: scheduler.identity(n_workers=-1))["workers"]
        able = {a: each for a, each in found.items() if self._is_able(each)}
        if able:
            self.seen = time.monotonic()
        elif time.monotonic() - self.seen > self.settings.wait:
            raise ConnectionError(self._why(found))
        return able

    def _is_able(self, worker: dict[str, Any]) -> bool:
        return worker["status"] == "running" and self._has_gpus(worker)

    def _has_gpus(self, worker: dict[str, Any]) -> bool:
        return worker["resources"].get("GPU", 0) >= self.settings.gpus

    def _why(self, found: dict[str, Any]) -> str:
        """Why none of these workers can take a batch."""
        wait = f"for {self.settings.wait:g} s"
        if not found:
            return (
                f"the Dask cluster had no worker {wait}; start one (dask worker ADDRESS), "
                "or give it more time by engine.wait (--wait)"
            )
        equipped = {a: each for a, each in found.items() if self._has_gpus(each)}
        if not equipped:
            return (
                f"no worker of {len(found)} has engine.gpus={self.settings.gpus} of the "
                f'resource GPU; start them with --resources "GPU={self.settings.gpus}"'
            )
        address, worker = next(iter(equipped.items()))
        state = f"{address} is {worker['status']}; {_limit(worker)}"
        return f"no worker took a batch {wait}: {state}"

    def _ask(self, question: Callable[[], Awaitable[Any]]) -> Any:
        """What the cluster answers, in time."""

        async def ask() -> Any:
            return await question()

        wait = self.settings.wait
        try:
            return self.client.sync(ask, callback_timeout=wait)
        except OSError as error:
            raise ConnectionError(
                f"the Dask cluster is gone, or did not answer within {wait:g} s, as "
                "engine.wait (--wait) says"
            ) from error


@contextlib.contextmanager
def open_cluster(settings: EngineSettings) -> Iterator[Cluster]:
    """The Dask cluster of the settings, started here if they have no address.

    Raises:
        ImportError: if Dask is not installed.
        ConnectionError: if no scheduler answers at the address in time.
    """
    # An optional dependency.
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ImportError(
            'engine.name="dask" needs Dask: pip install "gfdyn[dask]".'
        ) from error

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
        else:
            _greet(address, settings.wait * _TO_ANSWER)
        client = stack.enter_context(Client(address))
        yield Cluster(client, settings)


def _greet(address: str, seconds: float) -> None:
    """Raise unless a scheduler answers: `Client` waits for ever for what accepts and is
    mute."""
    from distributed import Security
    from distributed.comm.core import connect

    async def greet() -> None:
        arguments = Security().get_connection_args("client")
        answer = connect(address, seconds * _TO_CONNECT, **arguments)
        comm = await asyncio.wait_for(answer, seconds)
        await comm.close()

    # In a thread, as notebooks have a loop of their own. What answers may be no scheduler.
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(asyncio.run, greet()).result()
        except Exception as error:
            raise ConnectionError(
                f"engine.address={address!r}: no Dask scheduler answered within "
                f"{seconds:g} s ({type(error).__name__}); give the address that it "
                "printed, as tcp://10.0.0.1:8786, or more time by engine.wait (--wait)"
            ) from error


def _limit(worker: dict[str, Any]) -> str:
    """What to do about the memory that a worker may take."""
    limit = worker.get("memory_limit") or 0
    if not limit:
        return "its log says why"
    return (
        f"its memory limit is {limit / 1e6:.0f} MB, which one point and JAX itself must "
        "fit in: give it more (dask worker --memory-limit), or its log says why"
    )
