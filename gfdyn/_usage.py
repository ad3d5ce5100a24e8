"""What is wrong with the arguments of a command, in one line."""

import itertools
import re
from collections.abc import Iterable


def in_one_line(box: str) -> str:
    """What an error of tyro says in a box: its first paragraph, the options that may have
    been meant, and where there is help."""
    lines = [line.strip(" │") for line in box.splitlines()]
    grouped = itertools.groupby(lines, key=lambda line: bool(re.search("^[╭╰─-]{3}", line)))
    sections = [list(group) for is_rule, group in grouped if not is_rule]
    # A title stands in the rule, or above it.
    bodies = sections if "╭" in box else sections[1:]
    if not bodies:
        return _spaced(lines)
    said = _spaced(itertools.takewhile(bool, bodies[0]))
    near = [_spaced(body[1:2]) for body in bodies[1:] if body and "meant" in body[0]]
    help = re.findall(r"gfdyn[ a-z]* --help", box)
    meant = f"; did you mean {near[0]}?" if near else "."
    return " ".join([said.rstrip(".") + meant, *(f"See {each}." for each in help[-1:])])


def _spaced(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())
