"""The entry point of a worker: an application, which sets JAX up and computes a batch.

The settings of JAX are those of the process that runs the sweep.
"""

import dataclasses
import functools
import os
import platform
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import jax

from ..._cache import enable_cache
from ..results import Store, versions
from ..spec import PointBatch
from ._compute import PointOutcome, compute_batch


def configure(cache: Path, x64: bool) -> None:
    """Set the precision, and keep compiled programs in a folder."""
    jax.config.update("jax_enable_x64", x64)
    enable_cache(cache)


@dataclasses.dataclass(frozen=True)
class Employer:
    """The process that runs the sweep, as its workers know it.

    Attributes:
        store: its folder.
        mark: what it has noted in the log of this folder.
        versions: of the packages that decide results.
        x64: its precision.
    """

    store: Store
    mark: str
    versions: dict[str, str]
    x64: bool


class UnfitWorkerError(ConnectionError):
    """A worker cannot compute for a sweep; nothing that it computes is kept."""


def unfit(employer: Employer) -> str:
    """Why this process cannot work for that one; empty if it can."""
    store = employer.store
    if not _sees(store.path, employer.mark):
        return (
            f"does not see {store.path} as the process that runs the sweep does; give a "
            "folder (out, --out) that all of them mount under the same path"
        )
    ours = versions()
    for name, theirs in employer.versions.items():
        if ours[name] != theirs:
            return (
                f"has {name}={ours[name]} where the process that runs the sweep has "
                f"{theirs}; install the same there"
            )
    return ""


@functools.cache
def _sees(folder: Path, mark: str) -> bool:
    """Whether the log of this folder has this mark; each process reads it once, and not
    for each batch."""
    return Store(folder).has_noted(mark)


def work(employer: Employer, batch: PointBatch) -> list[PointOutcome]:
    """Compute a batch in a process of its own.

    Raises:
        UnfitWorkerError: if the process sees another folder, or is of other versions.
    """
    # Workers may come at any time.
    if reason := unfit(employer):
        raise UnfitWorkerError(f"a worker on {platform.node()} {reason}")
    configure(employer.store.cache, employer.x64)
    return compute_batch(employer.store, batch)


def live_with(lifeline: Connection) -> None:
    """End this process as soon as the other end of the pipe is closed: when the process
    that started it lets go, or is killed. The keyboard is for that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)
    # Not sys.exit, which would end this thread alone.
    os._exit(1)
