"""One rule for all progress bars: redrawn in a terminal, lines now and then in a file."""

import sys
import time
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from tqdm import tqdm


# Seconds between two lines in a file
_INTERVAL = 30.0


def progress_bar(**options: Any) -> "tqdm":
    """A progress bar on stderr; where that is a file or a pipe, a line every half minute
    and one at the end. The options are those of tqdm."""
    from tqdm import tqdm

    stream = sys.stderr
    if _redraws(stream):
        return tqdm(file=stream, **options)
    # No other place than the top one: lines are not moved between.
    return tqdm(file=LogLines(stream), position=0, **options)


class LogLines:
    """A stream to which tqdm draws a bar, of which it passes on a line now and then."""

    def __init__(self, stream: Any):
        """For a stream that cannot draw over what it has written."""
        self.stream = stream
        self.encoding = stream.encoding
        self.line = ""
        self.due = time.monotonic() + _INTERVAL

    def write(self, text: str) -> None:
        """Take the bar as it stands, drawn over the one before; a line feed ends it."""
        self.line = text.strip("\r\n ") or self.line
        if text == "\n" or time.monotonic() >= self.due:
            print(self.line, file=self.stream, flush=True)
            self.due = time.monotonic() + _INTERVAL

    def flush(self) -> None:
        """Nothing waits."""


def _redraws(stream: Any) -> bool:
    """Whether a line can be drawn over. Notebooks do so, and are no terminals."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")
