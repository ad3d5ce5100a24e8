"""CONTRIBUTING.md leads to what is there, in few steps."""

import re
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
WALKS = re.findall(
    r"^- \*\*(.*?)\*\*: (.*?)(?=\n- |\n\n)",
    PAGE.partition("## Three walks")[2].partition("\n## ")[0] + "\n\n",
    re.MULTILINE | re.DOTALL,
)


def test_there_are_three_walks():
    assert len(WALKS) == 3


@pytest.mark.parametrize(("what", "walk"), WALKS)
def test_a_walk_is_short_and_each_stop_is_there(what, walk):
    hops = walk.split("→")
    assert len(hops) <= 3, what
    for hop in hops:
        files = [name for name in re.findall(r"`([^`]*\.py)`", hop) if "PAPER" not in name]
        names = [
            name for name in re.findall(r"`([\w.]+)`", hop) if not name.endswith(".py")
        ]
        for file in files:
            text = (ROOT / "gfdyn" / file).read_text("utf-8")
            for name in names:
                for part in name.split("."):
                    assert re.search(rf"^ *(def|class) {part}\b", text, re.MULTILINE), name


def test_rooms_are_those_of_the_package():
    table = PAGE.partition("| room |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)/", table))
    folders = {p.parent.name for p in (ROOT / "gfdyn").glob("*/__init__.py")}
    assert folders <= named


def test_the_glossary_is_short_and_has_each_word_once():
    rows = re.findall(
        r"^\| ([^|]*) \|", (ROOT / "docs/glossary.md").read_text("utf-8"), re.M
    )
    words = [word.strip() for word in rows if word.strip() not in ("word", "---")]
    assert len(words) <= 60 and len(set(words)) == len(words)
