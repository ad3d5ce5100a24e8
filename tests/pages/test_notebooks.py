"""Every notebook runs from a fresh kernel, to the outputs with which it is stored."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import pytest


FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / name, as_version=4)


def test_quickstart_is_there():
    assert "quickstart.ipynb" in NOTEBOOKS


def shape_of(output: Any) -> str:
    """What an output is, its numbers left out, which differ in their last digits."""
    data = output.get("data", {})
    if "image/png" in data:
        return "a figure"
    return re.sub(
        r"[-+]?[\d.]+(e[-+]?\d+)?|\s+", "#", output.get("text", data.get("text/plain"))
    )


# The kernel's own machinery (zmq, tornado, asyncio) is not ours to keep quiet.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_runs_to_what_is_stored(name, tmp_path, monkeypatch):
    """It draws, warns of nothing, leaves no file, and prints what is stored, but for
    digits; other packages may warn."""
    monkeypatch.syspath_prepend(str(FOLDER))
    run = import_module("run")
    notebook = run.executed(FOLDER / name, str(tmp_path))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    said = "".join(o["text"] for o in outputs if o.get("name") == "stderr")
    warned = [line for line in said.splitlines() if "Warning:" in line]
    assert all("site-packages" in line for line in warned), said
    assert not list(tmp_path.iterdir()), "it leaves files behind"
    for now, before in zip(run.stored(notebook).cells, read(name).cells, strict=True):
        shapes = [[shape_of(o) for o in cell.get("outputs", ())] for cell in (now, before)]
        assert shapes[0] == shapes[1], now.source


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_is_stored_with_outputs_alone(name):
    """With those, but no counts, times, messages and settings of the one who ran it."""
    notebook = read(name)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    for cell in notebook.cells:
        assert not cell.metadata
        if cell.cell_type == "code":
            assert cell.execution_count is None
    nbformat.validate(notebook)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_ends_with_what_to_try(name):
    last = read(name).cells[-1]
    assert last.cell_type == "markdown" and "try" in last.source.lower()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_is_short_and_tells_before_it_computes(name):
    notebook = read(name)
    assert len(notebook.cells) < 16
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert "pip install" in notebook.cells[0].source


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_knows_nothing_of_the_machine(name):
    text = (FOLDER / name).read_text("utf-8")
    assert not re.search(r"/(home|Users|root|tmp|work|mnt)/|[A-Z]:\\\\", text)
