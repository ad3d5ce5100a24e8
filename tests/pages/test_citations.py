"""Citations in the text of a page become links to the statements of the papers."""

import re
import types
from importlib import import_module
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]


def hook(monkeypatch: pytest.MonkeyPatch, name: str) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    return import_module(name)


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("Prop. 3.2 = A.3", ["prop-3-2", "prop-a-3"]),
        ("Theorem 1, eq. 10", ["thm-1", "eq-10"]),
        ("Prop. 1, eqs. 6 to 9", ["prop-1", "eq-6", "eq-7", "eq-8", "eq-9"]),
        ("Lemmas 9 and 10 (10 and 11)", ["lemma-9", "lemma-10"]),
        ("Lemma 1 (2), 5 to 7", ["lemma-1", "lemma-5", "lemma-6", "lemma-7"]),
        ("App. F, first version", ["app-f"]),
        ("not in the paper", ["not-in-the-paper"]),
    ],
)
def test_anchors_of_a_row(monkeypatch, cell, names):
    assert hook(monkeypatch, "statements").anchors(cell) == names


def test_each_row_has_an_anchor(monkeypatch):
    """But one whose statements all have it in a row above."""
    statements = hook(monkeypatch, "statements")
    for paper in ("bantzis", "le_jegelka", "timor", "galanti"):
        text = (statements.PAPERS / f"{paper}.md").read_text("utf-8")
        shown = statements.with_anchors(text)
        assert re.sub(r'<a id="[^"]+"></a>', "", shown) == text
        names = re.findall(r'<a id="([^"]+)"></a>', shown)
        assert len(names) == len(set(names)) >= 10
        table = shown.split("## Statements")[1].split("\n## ")[0]
        rows = re.findall(r"^\| (?!statement)(.*?) \|", table, re.MULTILINE)
        bare = [row for row in rows if "<a id=" not in row]
        assert bare in ([], ["Theorem 1, by Weyl"], ["not in the paper"]), bare


def links(monkeypatch: pytest.MonkeyPatch, html: str, own: str | None) -> list[str]:
    """Each link as "text > target"; without them it is the page that was given."""
    url = f"papers/{own}.html" if own else "api/nets.html"
    shown = hook(monkeypatch, "citations").cited(html, url, own)
    pattern = r'<a class="cited" href="([^"]*)">(.*?)</a>'
    assert re.sub(pattern, r"\2", shown, flags=re.DOTALL) == html
    found = re.findall(pattern, shown, re.DOTALL)
    return [f"{text} > {to.removeprefix('../papers/')}" for to, text in found]


def test_elsewhere_the_paper_is_named(monkeypatch):
    def found(html):
        return links(monkeypatch, html, None)

    assert found("<p>(Bantzis et al., Prop. 3.2 = A.3); so it is.</p>") == [
        "Bantzis et al. > bantzis.html#bantzis-simon-and-jacot",
        "Prop. 3.2 > bantzis.html#prop-3-2",
        "A.3 > bantzis.html#prop-a-3",
    ]
    # No row has it; and the name may come after.
    assert found("<p>What eq. (99) of Galanti &amp;\nPoggio says</p>") == [
        "eq. (99) > galanti.html#galanti-and-poggio",
        "Galanti &amp;\nPoggio > galanti.html#galanti-and-poggio",
    ]
    two = "<p>Le &amp; Jegelka, <em>Theorem 1</em>; Timor et al., Lemma 9, Lemma 8</p>"
    assert [link for link in found(two) if "-and-" not in link] == [
        "Theorem 1 > le_jegelka.html#thm-1",
        "Lemma 9 > timor.html#lemma-9",
        "Lemma 8 > timor.html#lemma-8",
    ]
    # Of nobody, of someone else, of the next sentence
    assert not found("<p>Thm 3.1 is one.</p>")
    assert len(found("<p>Timor et al., after Anthony &amp; Bartlett, Thm 1.</p>")) == 1
    assert len(found("<p>As Timor et al. do. Lemma 9 is another.</p>")) == 1


def test_on_its_page_a_statement_is_cited_by_its_number(monkeypatch):
    def found(html):
        return links(monkeypatch, html, "bantzis")

    assert found("<p>Bantzis et al., Thm 3.1 (Lemma A.6).</p>") == [
        "Thm 3.1 > #thm-3-1",
        "Lemma A.6 > #lemma-a-6",
    ]
    assert found("<p>Timor et al., Lemma 9. So Example 1</p>") == [
        "Timor et al. > timor.html#timor-vardi-and-shamir",
        "Lemma 9 > timor.html#lemma-9",
        "Example 1 > #example-1",
    ]
    assert found("<p>Def. 2.1</p>") == ["Def. 2.1 > #bantzis-simon-and-jacot"]
    # Numbers of another version are others.
    assert not found("<p>Lemma A.6 of the first version</p>")


@pytest.mark.parametrize("tag", ["code", "pre", "h2", "a", "td", "span"])
def test_what_is_no_text_stays(monkeypatch, tag):
    html = f"<{tag}>Bantzis et al., Thm 3.1</{tag}>"
    html = f"<table><tr>{html}</tr></table>" if tag == "td" else html
    assert not links(monkeypatch, html, "bantzis")
    assert not links(monkeypatch, html, None)
