"""A notebook as a page: its text, its code, and what it printed and drew."""

import json
from pathlib import Path
from typing import Any


def page_of(path: Path) -> str:
    """The notebook in Markdown, and where it is to be had as a file."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    title, *parts = [_part(cell) for cell in cells]
    source = (
        f"This page is the notebook [{path.name}]({path.name}), as `make notebooks` has "
        "run it: save the file, and open it in Jupyter. `make test` runs it again."
    )
    return "\n\n".join([title, source, *parts]) + "\n"


def _part(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    shown = [_output(output) for output in cell["outputs"]]
    return "\n\n".join([f"```python\n{source}\n```", *shown])


def _output(output: dict[str, Any]) -> str:
    """A figure within the page, or text."""
    data = output.get("data", {})
    if image := data.get("image/png"):
        image = "".join("".join(image).split())
        return f'<img alt="what the cell draws" src="data:image/png;base64,{image}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"
