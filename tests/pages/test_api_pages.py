"""Each public name stands in a page of the API with an example, which runs as a doctest."""

import re
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("docs/api/*.md"), *ROOT.glob("docs/papers/*.md")))


@pytest.fixture
def see_also(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    return import_module("see_also")


def entries(see_also: Any) -> dict[str, str]:
    """The example of each name, empty without one."""
    return {
        match["path"]: match["example"] or ""
        for page in PAGES
        for match in see_also.ENTRY.finditer(page.read_text("utf-8"))
    }


def test_each_public_name_has_an_example(see_also):
    """The example has its name; a name that two rooms share stands in one of them."""
    examples = entries(see_also)
    names = import_module("names").public_names()
    shared = {name for name in names["gfdyn"] if f"gfdyn.{name}" not in examples}
    assert shared == {"Dataset", "EscapeFlow", "GradientFlow", "plot"}
    paths = [f"{room}.{name}" for room, all_ in names.items() for name in all_]
    paths = [path for path in paths if path not in {f"gfdyn.{name}" for name in shared}]
    assert len(paths) > 400
    without = [
        path
        for path in paths
        if not re.search(rf"\b{path.rsplit('.', 1)[1]}\b", examples.get(path, ""))
    ]
    assert not without


def test_a_name_without_an_example_is_seen(see_also):
    page = (
        "# A\n\n::: gfdyn.data.xor\n\n::: gfdyn.data.circle\n\n```python\n>>> 1\n1\n\n```\n"
    )
    found = {m["path"]: m["example"] for m in see_also.ENTRY.finditer(page)}
    assert found == {"gfdyn.data.xor": None, "gfdyn.data.circle": ">>> 1\n1\n\n"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_name_says_what_to_see_beside_it(see_also, page):
    text = page.read_text("utf-8")
    shown = see_also.with_see_also(text, page.relative_to(ROOT / "docs").as_posix())
    names = len(see_also.ENTRY.findall(text))
    assert shown.count("**See also:** [") == names
    # Without these lines it is the page
    assert re.sub(r"\n\*\*See also:\*\* .*\n\{ \.see-also \}\n", "", shown) == text


def test_neighbours_and_guides_are_named(see_also):
    page = (
        "## A\n\n::: gfdyn.nets.MLP\n\n::: gfdyn.nets.norm\n\n## B\n\n::: gfdyn.nets.Dag\n"
    )
    shown = see_also.with_see_also(page, "api/nets.md")
    first, second, third = re.findall(r"\*\*See also:\*\* (.*)", shown)
    assert first.startswith("[`norm`][gfdyn.nets.norm], ") and "(../start.md)" in first
    assert second.startswith("[`MLP`][gfdyn.nets.MLP], ") and "Dag" not in second
    assert third.startswith("[`MLP`]")
