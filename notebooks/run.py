"""Run notebooks and store them with what they print and draw, in place.

    python notebooks/run.py [NAME.ipynb ...]

All of them without names. Warnings and messages (stderr) are not stored.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient


FOLDER = Path(__file__).parent
# What of an output is kept: the rest says the same, or when and where it was made.
_KINDS = ("text/plain", "image/png")


def executed(path: Path, folder: str) -> nbformat.NotebookNode:
    """The notebook after a run from a fresh kernel, in this folder."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": folder}}
    # What is printed comes in pieces, as it happens: they are stored as one.
    options = {"timeout": 600, "resources": resources, "coalesce_streams": True}
    NotebookClient(notebook, **options).execute()
    return notebook


def stored(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The same without counts, times, messages and the versions of the kernel."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [_plain(o) for o in cell.outputs if o.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)
    return notebook


def _plain(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    if "data" in output:
        output.metadata = {}
        kept = [kind for kind in _KINDS if kind in output.data]
        output.data = {kind: output.data[kind] for kind in kept}
        if "image/png" in kept:
            output.data = {"image/png": output.data["image/png"]}
    if "execution_count" in output:
        output.execution_count = None
    return output


def main(names: list[str]) -> None:
    """Run each, and write it."""
    for name in names or sorted(path.name for path in FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(stored(executed(FOLDER / name, folder)), FOLDER / name)


if __name__ == "__main__":
    main(sys.argv[1:])
