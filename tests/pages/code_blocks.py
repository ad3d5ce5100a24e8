"""The blocks of code in the pages."""

import re
from pathlib import Path


DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code in one language; in none, "", what is said to others."""
    found = _BLOCK.findall((DOCS / page).read_text("utf-8"))
    return [text for name, text in found if name == language]
