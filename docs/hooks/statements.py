"""Anchors of the statements of papers, made of what they are called: `thm-3-1`, `eq-6`."""

import functools
import re
from pathlib import Path


PAPERS = Path(__file__).resolve().parents[1] / "papers"
_KINDS = {
    "prop": r"Prop(?:osition)?s?\.?",
    "thm": r"Th(?:eore)?ms?\.?",
    "lemma": r"Lemmas?",
    "eq": r"Eqs?\.",
    "cor": r"Cor(?:\.|ollary)",
    "example": r"Examples?",
    "app": r"App(?:\.|endix)",
    "section": r"Sections?|§",
    "fig": r"Fig(?:ure)?s?\.?",
    "claim": r"Claims?",
    "def": r"Def(?:inition)?s?\.?",
    "remark": r"Remarks?",
    "assumption": r"Assumptions?",
}
_KIND = re.compile("|".join(f"(?P<{key}>{text})" for key, text in _KINDS.items()), re.I)
# 3.1, (3), A.7
_DIGITS = r"(?:[A-Z]\.)?\d+(?:\.\d+)*\b"
NUMBER = rf"(?:\({_DIGITS}\)|{_DIGITS})"
_MORE = r"(?:,\s+(?:and\s+)?|\s+(?:and|to|=)\s+|–)"
# Kind and numbers, "Lemmas 10 to 12"; one letter is the number of an appendix only.
REFERENCE = (
    rf"\b(?i:App(?:\.|endix))\s+[A-Z](?:\.\d+)?\b|"
    rf"(?:\b(?i:{'|'.join(_KINDS.values())})(?<!§)\s+|§){NUMBER}(?:{_MORE}{NUMBER})*"
)
_SECTION = re.compile(r"^## Statements$.*?(?=^## )", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| (?!statement \|)(?P<cell>[^|]+) \|", re.MULTILINE)


def parts(reference: str) -> list[tuple[str, str]]:
    """A reference in pieces, each with its anchor; joined they are the reference.

    "Lemmas 2 and 3" is "Lemmas 2" and "3", and " and " without an anchor between them.
    """
    found = _KIND.match(reference)
    assert found and found.lastgroup
    pieces, end = [], 0
    for number in re.finditer(rf"{NUMBER}|\b[A-Z]\b(?:\.\d+)?", reference[found.end() :]):
        start = found.end() + number.start()
        if pieces:
            pieces.append((reference[end:start], ""))
        begin, end = (start if pieces else 0), found.end() + number.end()
        name = f"{found.lastgroup}-{_slug(number[0])}"
        pieces.append((reference[begin:end], name))
    return [*pieces, (reference[end:], "")]


def anchors(cell: str) -> list[str]:
    """Of all statements that the first cell of a row names; of what it says, if of none.

    "eqs. 6 to 8" names three; numbers in brackets are those of another version.
    """
    text, found = re.sub(r"\s\([^)]*\)", "", cell), []
    for reference in re.finditer(REFERENCE, text):
        last = ""
        for piece, name in parts(reference[0]):
            if name and last == " to ":
                kind, end = name.rsplit("-", 1)
                start = int(found[-1].rsplit("-", 1)[1])
                found += [f"{kind}-{i}" for i in range(start + 1, int(end))]
            found += [name] if name else []
            last = piece
    return found or [_slug(cell)]


@functools.cache
def known(paper: str) -> frozenset[str]:
    """The anchors on the page of a paper."""
    text = (PAPERS / f"{paper}.md").read_text("utf-8")
    return frozenset(re.findall(r'<a id="([^"]+)"></a>', with_anchors(text)))


def with_anchors(markdown: str) -> str:
    """The page, with the anchors of its table of statements, each once."""
    seen: set[str] = set()

    def row(match: re.Match[str]) -> str:
        new = [name for name in anchors(match["cell"]) if name not in seen]
        seen.update(new)
        marks = "".join(f'<a id="{name}"></a>' for name in new)
        return f"| {marks}{match['cell']} |"

    return _SECTION.sub(lambda table: _ROW.sub(row, table[0]), markdown)


def _slug(text: str) -> str:
    return "-".join(re.findall(r"\w+", text.lower()))
