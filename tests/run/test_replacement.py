"""Files are replaced in one step, whatever happens."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage_cases import (
    assert_identical,
    classifying_escape,
    decaying_flow,
    descent,
    leftovers,
    made,
    plain_flow,
)

import gfdyn as gf
from gfdyn._atomic import replace_atomically


def test_failing_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_atomically(path, write)
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_writer_sees_the_old_file_until_it_returns(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary: Path) -> None:
        assert temporary.parent == path.parent and temporary != path
        temporary.write_text("new")
        assert path.read_text() == "old"

    replace_atomically(path, write)
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_failing_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        made(plain_flow).save(path)
    assert leftovers(tmp_path) == []
    assert_identical(gf.load(path), made(descent))


def child(code: str, *arguments: Path) -> subprocess.Popen[str]:
    """Python in another process, waited for until it says `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        process.kill()
        process.communicate()
    assert line == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """As `kill -9` does."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


SAVE_AGAIN_AND_AGAIN = """
import sys
import gfdyn as gf
first, second, path = sys.argv[1:]
trajectories = gf.load(first), gf.load(second)
trajectories[0].save(path)
print("ready", flush=True)
while True:
    for trajectory in reversed(trajectories):
        trajectory.save(path)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_while_saving(tmp_path, seed):
    """Whenever the process dies, one of the two trajectories is there, whole."""
    candidates = made(decaying_flow), made(classifying_escape)
    for i, candidate in enumerate(candidates):
        candidate.save(tmp_path / f"{i}.nc")
    path = tmp_path / "trajectory.nc"
    arguments = tmp_path / "0.nc", tmp_path / "1.nc", path
    process = child(SAVE_AGAIN_AND_AGAIN, *arguments)
    delay = np.random.default_rng(seed).uniform(0, 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=delay)
    kill(process)
    loaded = gf.load(path)
    same = [type(loaded.flow) is type(candidate.flow) for candidate in candidates]
    assert_identical(loaded, candidates[same.index(True)])


WRITE_SLOWLY = """
import sys, time
from gfdyn._atomic import replace_atomically

def write(temporary):
    with open(temporary, "w") as file:
        file.write("half of the ")
        file.flush()
        print("ready", flush=True)
        time.sleep(600)
        file.write("new")

replace_atomically(sys.argv[1], write)
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_the_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    process = child(WRITE_SLOWLY, path)
    (temporary,) = leftovers(tmp_path)
    assert (tmp_path / temporary).read_text() == "half of the "
    kill(process)
    assert path.read_text() == "old"
    # What it left goes with the next save into the folder; what is written there stays.
    writing = child(WRITE_SLOWLY, tmp_path / "other")
    made(descent).save(tmp_path / "trajectory.nc")
    (left,) = leftovers(tmp_path)
    assert left != temporary and left.startswith(".other.")
    kill(writing)
