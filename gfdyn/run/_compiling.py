"""What is compiled on the way: counted, and said where it takes long."""

import gc
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


# Compilations that take longer, in seconds and all together, are spoken of.
_PATIENCE = 2.0
_MESSAGE = (
    "gfdyn: compiling (once for each shape; gf.enable_cache() keeps the programs for the "
    "processes that come after)"
)


class Compilations:
    """How many programs were compiled since it was opened.

    Between `begin` and `end` Python's collector of cycles rests: tracing makes some 10^5
    objects of which none is garbage yet, and looking through them time and again takes a
    third of its time.
    """

    def __init__(self) -> None:
        """None so far."""
        self.count = 0
        self.announced = False
        self._taken = 0.0
        self._begun = 0.0
        self._timer: threading.Timer | None = None
        self._resting_collector = False

    def begin(self) -> None:
        """One more; speak, once, if it takes long."""
        self.count += 1
        if gc.isenabled():
            gc.disable()
            self._resting_collector = True
        if self.announced or self._timer is not None:
            return
        self._begun = time.monotonic()
        left = max(0.0, _PATIENCE - self._taken)
        self._timer = threading.Timer(left, self._announce)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """What was compiled has been."""
        if self._resting_collector:
            gc.enable()
            self._resting_collector = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._taken += time.monotonic() - self._begun

    def _announce(self) -> None:
        self.announced = True
        # Seen unless logging is told otherwise, and silenced by it.
        logging.getLogger("gfdyn").warning(_MESSAGE)


_open: ContextVar[Compilations | None] = ContextVar("compilations", default=None)


@contextmanager
def counted() -> Iterator[Compilations]:
    """Count what is compiled inside."""
    compilations = Compilations()
    token = _open.set(compilations)
    try:
        yield compilations
    finally:
        compilations.end()
        _open.reset(token)


@contextmanager
def announced() -> Iterator[None]:
    """Inside a function is called that is compiled where its shapes are new."""
    try:
        yield
    finally:
        if (compilations := _open.get()) is not None:
            compilations.end()


def tracing() -> None:
    """To be called in what is jitted: it runs only as that is traced, to be compiled."""
    if (compilations := _open.get()) is not None:
        compilations.begin()
