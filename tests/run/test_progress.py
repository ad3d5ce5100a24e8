"""Progress bars know a terminal from a file."""

import io
import sys

import pytest

from gfdyn import _progress
from gfdyn._progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})


def run(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a bar of three steps writes to stderr."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(total=3, unit=" steps") as bar:
        for i in range(3):
            bar.update()
            bar.set_postfix_str(f"risk={i}")
    return stream.getvalue()


@pytest.mark.parametrize("kind", [Terminal, Notebook])
def test_a_terminal_and_a_notebook_are_drawn_over(kind, monkeypatch):
    written = run(kind(), monkeypatch)
    assert written.count("\r") >= 3
    assert written.count("\n") == 1


def test_a_file_has_one_line_of_a_short_run(monkeypatch):
    written = run(io.StringIO(), monkeypatch)
    assert "\r" not in written
    (line,) = written.splitlines()
    assert line.startswith("100%") and "3/3" in line and "risk=2" in line


def test_a_file_has_a_line_whenever_one_is_due(monkeypatch):
    monkeypatch.setattr(_progress, "_INTERVAL", 0.0)
    lines = run(io.StringIO(), monkeypatch).splitlines()
    assert "0/3" in lines[0] and "3/3" in lines[-1]
    assert {"risk=0", "risk=1", "risk=2"} <= {line[-7:-1] for line in lines}


def test_a_bar_that_is_off_writes_nothing(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(total=3, disable=True) as bar:
        bar.update(3)
    assert not stream.getvalue()
