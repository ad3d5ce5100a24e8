"""What mkdocs calls as it builds: pages from beside docs/, tables, links."""

import re
from pathlib import Path
from typing import Any

from cells import page_of
from citations import cited
from equations import Equations
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from names import public_names
from see_also import with_see_also
from statements import with_anchors
from tables import filled


ROOT = Path(__file__).resolve().parents[2]
_TYPED = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)
_CODE = re.compile(r"(?<!\">)<code>(gf\.|gfdyn\.)?([A-Za-z_][\w.]*)</code>(?!</a>)")


@event_priority(100)
def on_config(config: Any) -> Any:
    """Equations, in docstrings as well: before mkdocstrings looks for the extensions."""
    config.markdown_extensions.append(Equations())
    return config


def on_files(files: Files, config: Any) -> Files:
    """The pages that stand elsewhere in the repository."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        page = File.generated(config, f"notebooks/{path.stem}.md", content=page_of(path))
        files.append(page)
        # Beside its page, to be saved
        name = f"notebooks/{path.name}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    image = ROOT / "benchmarks" / "work_precision.png"
    files.append(
        File.generated(config, f"benchmarks/{image.name}", abs_src_path=str(image))
    )
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changes))
    return files


def on_page_markdown(markdown: str, page: Any, **unused: Any) -> str:
    """Tables are drawn from the files of measurements; sessions are shown as such; names of
    the API are followed by what to see beside them; statements of papers have anchors."""
    del unused
    text = with_see_also(with_anchors(filled(markdown)), page.file.src_uri)
    return _TYPED.sub("```pycon\n", text)


def on_page_content(html: str, page: Any, **unused: Any) -> str:
    """Names of the package, of papers and their statements are links to where these are
    described."""
    del unused
    room = page.meta.get("room", "gfdyn")
    names = public_names()
    known = {f"{place}.{name}" for place, all_ in names.items() for name in all_}
    known |= set(names)

    def link(match: re.Match[str]) -> str:
        prefix, name = match[1], match[2]
        target = f"gfdyn.{name}" if prefix else f"{room}.{name}"
        if target not in known:
            return match[0]
        shown = f"<code>{prefix or ''}{name}</code>"
        return f'<autoref optional identifier="{target}">{shown}</autoref>'

    paper = room.removeprefix("gfdyn.theory.")
    return cited(_CODE.sub(link, html), page.url, None if paper == room else paper)
