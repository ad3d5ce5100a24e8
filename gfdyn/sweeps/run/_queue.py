"""Batches on their way through an engine, whose workers may die."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait

from ..spec import PointBatch
from ._compute import PointOutcome
from ._engines import Engine
from ._worker import UnfitWorkerError


# A batch that breaks so many pools while it runs alone is to blame.
_STRIKES = 3
# Seconds after which an engine that finishes nothing is looked at.
_GLANCE = 1.0


class Queue:
    """Batches that wait, that run, and that are suspected of killing their worker."""

    def __init__(self, engine: Engine, batches: Sequence[PointBatch]):
        """All of them wait."""
        self.engine = engine
        self.waiting = deque(batches)
        self.suspects: deque[PointBatch] = deque()
        self.strikes: Counter[str] = Counter()
        self.running: dict[Future, PointBatch] = {}

    def results(self) -> Iterator[tuple[PointBatch, list[PointOutcome] | Exception]]:
        """What became of each batch, as they finish: its outcomes, or why there are none.

        Raises:
            ConnectionError: if the engine is gone, and batches with it.
        """
        while self.waiting or self.suspects or self.running:
            try:
                self._submit()
                for future in self._finished():
                    error = future.exception()
                    if isinstance(error, BrokenExecutor | UnfitWorkerError):
                        raise error
                    batch = self.running.pop(future)
                    if error is not None and not isinstance(error, Exception):
                        raise error
                    yield batch, future.result() if error is None else error
            except CancelledError as error:
                raise ConnectionError("the connection to the workers is lost") from error
            except BrokenExecutor as error:
                yield from self._recover(error)

    def cancel(self) -> None:
        """Take back what has not begun."""
        for future in self.running:
            future.cancel()

    def _finished(self) -> set[Future]:
        """Those that are done, once there are any or the engine has been looked at."""
        watch = self.engine.watch
        seconds = None if watch is None else _GLANCE
        done, _ = wait(self.running, seconds, return_when=FIRST_COMPLETED)
        if watch is not None and not done:
            watch()
        return done

    def _submit(self) -> None:
        """Keep the engine busy; with a suspect alone, if there is one."""
        if self.suspects:
            if not self.running:
                self._start(self.suspects)
            return
        while self.waiting and len(self.running) < self.engine.window:
            self._start(self.waiting)

    def _start(self, source: deque[PointBatch]) -> None:
        self.running[self.engine.submit(source[0])] = source[0]
        source.popleft()

    def _recover(self, error: BrokenExecutor) -> Iterator[tuple[PointBatch, Exception]]:
        """Renew the workers after one died. Any of the batches that ran may have killed
        it: each of them is tried again, alone."""
        if self.engine.renew is None:
            raise ConnectionError(f"the workers are gone ({error})") from error
        self.engine.renew()
        ran = list(self.running.values())
        self.running.clear()
        for batch in ran:
            self.strikes[batch.digest] += len(ran) == 1
            if self.strikes[batch.digest] < _STRIKES:
                self.suspects.append(batch)
            else:
                reason = f"killed its worker {_STRIKES} times, as for want of memory"
                yield batch, RuntimeError(reason)
