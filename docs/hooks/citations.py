"""Names of papers, and the statements that are cited of them, become links."""

import posixpath
import re
from collections.abc import Callable

from statements import REFERENCE, known, parts


# The papers by the names that docstrings give them, and the headings of their pages
_NAMES = {
    "bantzis": r"Bantzis(?:\s+et\s+al\.|,\s+Simon\s+(?:&amp;|and)\s+Jacot)",
    "le_jegelka": r"Le\s+&amp;\s+Jegelka",
    "timor": r"Timor(?:\s+et\s+al\.|,\s+Vardi\s+(?:&amp;|and)\s+Shamir)",
    "galanti": r"Galanti\s+&amp;\s+Poggio",
}
_HEADINGS = {
    "bantzis": "bantzis-simon-and-jacot",
    "le_jegelka": "le-and-jegelka",
    "timor": "timor-vardi-and-shamir",
    "galanti": "galanti-and-poggio",
}
_NAME = "|".join(f"(?P<{paper}>{name})" for paper, name in _NAMES.items())
# Someone else, whose statements the next ones are
_OTHER = r"[A-Z]\w+\s+(?:&amp;\s+[A-Z]\w+|et\s+al\.|(?:19|20)\d\d\b)"
_TOKEN = re.compile(rf"{_NAME}|(?P<other>{_OTHER})|(?P<cited>{REFERENCE})")
_OF = re.compile(rf"\s+(?:of|in)\s+(?:{_NAME})")
# Their numbers are others.
_VERSION = re.compile(r"\s+of\s+the\s+(?:first|corrected)\s+version")
# What stays as it is: code, headings, links, formulas, tables; and the marks of emphasis
_KEPT = re.compile(
    r"<(pre|code|h[1-6]|a|autoref|math|table|span|script|style)\b[^>]*>.*?</\1>"
    r"|</?(?:em|strong)>",
    re.DOTALL,
)
_STASHED = re.compile("\ue000(\\d+)\ue001")
_TAG = re.compile(r"(<[^>]*>)")
# Whose full stops end no sentence
_SHORT = ("al", "App", "Prop", "Thm", "Cor", "Def", "Fig", "Figs", "Eq", "eq", "eqs")
_ENDS = "".join(rf"(?<!\b{short})" for short in _SHORT)
_SENTENCE = re.compile(rf"({_ENDS}[.!?]\)?\s+(?=[^a-z\s]))")


def cited(html: str, url: str, own: str | None) -> str:
    """A finished page with its citations as links.

    Args:
        url: of the page, within the site.
        own: the paper of which it is the page, and whose statements it may cite by their
            numbers alone.
    """
    kept: list[str] = []

    def stash(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\ue000{len(kept) - 1}\ue001"

    def link(paper: str, anchor: str, text: str) -> str:
        fragment = anchor if anchor in known(paper) else _HEADINGS[paper]
        page = posixpath.relpath(f"papers/{paper}.html", posixpath.dirname(url) or ".")
        page = "" if paper == own else page
        return f'<a class="cited" href="{page}#{fragment}">{text}</a>'

    pieces = _TAG.split(_KEPT.sub(stash, html))
    for i in range(0, len(pieces), 2):
        sentences = _SENTENCE.split(pieces[i])
        pieces[i] = "".join(_with_links(text, own, link) for text in sentences)
    return _STASHED.sub(lambda match: kept[int(match[1])], "".join(pieces))


def _with_links(
    sentence: str, own: str | None, link: Callable[[str, str, str], str]
) -> str:
    """A statement is of the paper that is named right after it, or else last before it."""
    paper = own

    def replaced(match: re.Match[str]) -> str:
        nonlocal paper
        if match["other"]:
            paper = None
            return match[0]
        if not match["cited"]:
            paper = match.lastgroup
            assert paper
            return match[0] if paper == own else link(paper, "", match[0])
        after = _OF.match(sentence, match.end())
        of = after.lastgroup if after else paper
        if of is None or _VERSION.match(sentence, match.end()):
            return match[0]
        pieces = parts(match[0])
        return "".join(link(of, name, text) if name else text for text, name in pieces)

    return _TOKEN.sub(replaced, sentence)
