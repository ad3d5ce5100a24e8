"""A notebook as a page: its text and its code, without what it prints."""

import json
from pathlib import Path


def page_of(path: Path) -> str:
    """The notebook in Markdown, and where it is to be had as a file."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    title, *parts = [_part(cell) for cell in cells]
    source = (
        f"This page is `notebooks/{path.name}` of the repository, which runs in "
        "`make test`; open the file in Jupyter for its figures."
    )
    return "\n\n".join([title, source, *parts]) + "\n"


def _part(cell: dict[str, object]) -> str:
    source = "".join(cell["source"])  # type: ignore[arg-type]
    return source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
