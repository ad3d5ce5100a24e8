"""LaTeX between dollars becomes MathML, which browsers draw, as a page is built."""

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor


# Before the backslashes of Markdown (180), after its code (190).
_PRIORITY = 185
_DISPLAY = r"\$\$(.+?)\$\$"
_INLINE = r"(?<!\\)\$(?=\S)([^$]+?)(?<=\S)\$"
# Large delimiters that the converter does not know: a norm's, and braces
_LARGE_NORM = re.compile(r"(\\[bB]igg?[lr]?)\\\|")
_LARGE_BRACE = re.compile(r"\\[bB]igg?[lr]?(\\[{}])")


class _Equation(InlineProcessor):
    """What one pattern matches, kept as it is in the finished page."""

    def __init__(self, pattern: str, markdown: Markdown, display: str):
        super().__init__(pattern, markdown)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> Any:  # type: ignore[override]
        del data
        return self.md.htmlStash.store(mathml(m[1], self.display)), m.start(0), m.end(0)


class Equations(Extension):
    """`$...$` in the line, `$$...$$` on lines of their own."""

    def extendMarkdown(self, md: Markdown) -> None:
        for name, pattern, display in (
            ("display-equation", _DISPLAY, "block"),
            ("inline-equation", _INLINE, "inline"),
        ):
            processor = _Equation(pattern, md, display)
            md.inlinePatterns.register(processor, name, _PRIORITY + (display == "block"))


def mathml(latex: str, display: str) -> str:
    """The MathML of an equation.

    Raises:
        ValueError: if the converter leaves a command as it is.
    """
    latex = _LARGE_BRACE.sub(r"\1", _LARGE_NORM.sub(r"\1‖", " ".join(latex.split())))
    html = convert(latex, display=display)
    if left := re.findall(r">(\\[^<]+)<", html):
        raise ValueError(f"{left[0]!r} has no MathML, in the equation {latex!r}.")
    return html
