"""Docstrings as mkdocstrings reads them: titles of sections, one entry a name."""

import re
from typing import Any

from griffe import Extension, Module
from names import public_names


_TITLED = re.compile(r"^(Main|Other) arguments:$", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_NAMES = re.compile(r"^    (\w+(?:, \w+)+): (.*(?:\n     +.*)*)", re.MULTILINE)


class Sections(Extension):
    """Every docstring is rewritten before it is parsed; every public name must have one."""

    def on_instance(self, *, obj: Any, **unused: Any) -> None:
        del unused
        if obj.docstring:
            obj.docstring.value = rewritten(obj.docstring.value)

    def on_package(self, *, pkg: Module, **unused: Any) -> None:
        """Raise if a public name has no docstring.

        Raises:
            ValueError: with all of them.
        """
        del unused
        if pkg.path != "gfdyn":
            return
        paths = [
            f"{room}.{name}" for room, names in public_names().items() for name in names
        ]
        within = [path.removeprefix("gfdyn.") for path in paths]
        if bare := [path for path in within if not pkg[path].has_docstring]:
            raise ValueError(f"Public names without a docstring: {', '.join(bare)}.")


def rewritten(docstring: str) -> str:
    """With sections that the parser knows.

    "Main arguments:" becomes the arguments under this title, "Example:" the examples, and
    `lhs, rhs: the sides` an entry for each of the two.
    """
    docstring = _TITLED.sub(r"Args: \1 arguments", docstring)
    docstring = _EXAMPLE.sub("Examples:", docstring)
    return _NAMES.sub(_one_by_one, docstring)


def _one_by_one(match: re.Match[str]) -> str:
    names, text = match[1].split(", "), match[2]
    first = f"    {names[0]}: {text}"
    return "\n".join([first, *(f"    {name}: see `{names[0]}`." for name in names[1:])])
