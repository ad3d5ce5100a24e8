"""Below each name of the API: its neighbours, and the guides whose code uses it."""

import functools
import posixpath
import re
from pathlib import Path


DOCS = Path(__file__).resolve().parents[1]
# A name, and the example that belongs to it
ENTRY = re.compile(
    r"^::: (?P<path>[\w.]+)\n(?:\n```python\n(?P<example>>>> .*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_SECTION = re.compile(r"^## ", re.MULTILINE)
_CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NEIGHBOURS, _GUIDES = 4, 3


def with_see_also(markdown: str, page: str) -> str:
    """The page, of which `page` is the path within the site's sources, with these lines."""
    sections = [0, *(mark.start() for mark in _SECTION.finditer(markdown)), len(markdown)]
    entries = list(ENTRY.finditer(markdown))
    places = [sum(start <= entry.start() for start in sections) for entry in entries]

    def line(match: re.Match[str]) -> str:
        own = next(i for i, e in enumerate(entries) if e.start() == match.start())
        # The same section first, then by distance
        others = sorted(
            (i for i in range(len(entries)) if i != own),
            key=lambda i: (places[i] != places[own], abs(i - own)),
        )
        alike = [i for i in others if places[i] == places[own]] or others
        paths = [entries[i]["path"] for i in sorted(alike[:_NEIGHBOURS])]
        links = [f"[`{path.rsplit('.', 1)[1]}`][{path}]" for path in paths]
        links += [
            f"[{title}]({posixpath.relpath(guide, posixpath.dirname(page))})"
            for guide, title, code in guides()
            if re.search(rf"\b{_used(match['path'])}\b", code)
        ][:_GUIDES]
        if not links:
            links = ["[all of the API](index.md)"]
        return f"{match[0]}\n**See also:** {', '.join(links)}.\n{{ .see-also }}\n"

    return ENTRY.sub(line, markdown)


@functools.cache
def guides() -> tuple[tuple[str, str, str], ...]:
    """Path, title and code of each page that is neither of the API nor of a paper."""
    found = []
    first = [DOCS / "start.md", *sorted(DOCS.glob("howto/*.md"))]
    for path in dict.fromkeys((*first, *sorted(DOCS.glob("*.md")))):
        text = path.read_text("utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        if title and path.name != "index.md":
            code = "\n".join(_CODE.findall(text))
            found.append((path.relative_to(DOCS).as_posix(), title[1], code))
    return tuple(found)


def _used(path: str) -> str:
    """A pattern of a name as it is typed: `gf.nets.MLP`; `gf.Dataset` and the like too."""
    _, *rooms, name = path.split(".")
    short = rooms in (["flows"], ["data"], ["plotting"])
    room = "".join(rf"{room}\." for room in rooms)
    return rf"gf\.(?:{room}){'?' if short else ''}{name}"
