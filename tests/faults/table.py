"""The table of faults: what is done to gfdyn, what it must answer, how often that is."""

import dataclasses
import enum
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np


class Outcome(enum.Enum):
    """What came of one trial."""

    HARMLESS = "as without the fault"
    NAMED = "named"
    UNRESOLVED = "not resolved"
    SILENT = "wrong without a word"
    LOST = "work lost"
    HANG = "no end in its time"
    BARE = "a bare error"

    @property
    def is_good(self) -> bool:
        """Whether nothing was silent, lost, hanging or left to the user to make out."""
        return self in (Outcome.HARMLESS, Outcome.NAMED, Outcome.UNRESOLVED)


# Does a fault once: `attempt(random, folder)`, with numbers of its own and an empty folder
# of its own.
Attempt = Callable[[np.random.Generator, Path], Outcome]


@dataclasses.dataclass(frozen=True)
class Row:
    """A fault of one part of gfdyn (solver, files, engines or command).

    It is attempted `trials` times in `make faults`, `sample` times in `make test`; of
    several attempts, which are faults of one kind, one after the other.
    """

    part: str
    fault: str
    expected: str
    attempt: Attempt | tuple[Attempt, ...]
    trials: int
    sample: int = 1

    def outcomes(self, trials: Iterable[int]) -> Iterator[Outcome]:
        """What comes of trials; each is the same in every run."""
        several = self.attempt if isinstance(self.attempt, tuple) else (self.attempt,)
        for i in trials:
            random = np.random.default_rng([zlib.crc32(self.fault.encode()), i])
            with tempfile.TemporaryDirectory() as folder:
                yield several[i % len(several)](random, Path(folder))


GOOD = frozenset(outcome.value for outcome in Outcome if outcome.is_good)
