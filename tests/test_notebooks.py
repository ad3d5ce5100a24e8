"""Every notebook runs from a fresh kernel, and is stored without outputs."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient


FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / name, as_version=4)


def test_quickstart_is_there():
    assert "quickstart.ipynb" in NOTEBOOKS


@pytest.mark.slow
# The kernel's own machinery (zmq, tornado, asyncio) is not ours to keep quiet.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_runs(name, tmp_path):
    """It runs, draws, and warns of nothing; other packages may warn."""
    notebook = read(name)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    said = "".join(o["text"] for o in outputs if o.get("name") == "stderr")
    warned = [line for line in said.splitlines() if "Warning:" in line]
    assert all("site-packages" in line for line in warned), said
    assert not list(tmp_path.iterdir()), "it leaves files behind"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_is_stored_without_outputs(name):
    notebook = read(name)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count is None and not cell.outputs
            assert not cell.metadata
    nbformat.validate(notebook)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_is_short_and_tells_before_it_computes(name):
    notebook = read(name)
    assert len(notebook.cells) < 15
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert "pip install" in notebook.cells[0].source


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_knows_nothing_of_the_machine(name):
    text = (FOLDER / name).read_text("utf-8")
    assert not re.search(r"/(home|Users|root|tmp|work|mnt)/|[A-Z]:\\\\", text)
