"""The entry point of a worker: an application, which sets JAX up and computes a batch.

The settings of JAX are those of the process that runs the sweep.
"""

import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import jax

from .._cache import enable_cache
from ._compute import PointOutcome, compute_batch
from ._plan import PointBatch
from ._store import Store


def configure(cache: Path, x64: bool) -> None:
    """Set the precision, and keep compiled programs in a folder."""
    jax.config.update("jax_enable_x64", x64)
    enable_cache(cache)


def work(store: Store, batch: PointBatch, x64: bool) -> list[PointOutcome]:
    """Compute a batch in a process of its own."""
    configure(store.cache, x64)
    return compute_batch(store, batch)


def live_with(lifeline: Connection) -> None:
    """End this process as soon as the other end of the pipe is closed: when the process
    that started it lets go, or is killed. The keyboard is for that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)
    # Not sys.exit, which would end this thread alone.
    os._exit(1)
