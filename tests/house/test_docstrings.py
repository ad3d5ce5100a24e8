"""Public functions and classes say what their arguments are."""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from package_files import ROOT


# What is the same everywhere: see the README.
UNDERSTOOD = {"self", "cls", "problem", "net"}


@pytest.fixture
def public_names(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    return import_module("names").public_names()


def arguments(function: Callable[..., Any]) -> Iterator[str]:
    """The parameters that are to be explained."""
    for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
        if parameter.name not in UNDERSTOOD and not parameter.name.startswith("_"):
            yield parameter.name


def explained(docstring: str) -> set[str]:
    """The names that stand at the heads of the entries of sections of arguments."""
    found: set[str] = set()
    inside = False
    for line in inspect.cleandoc(docstring).splitlines():
        if re.fullmatch(r"(Args|Main arguments|Other arguments):", line):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        elif inside and (entry := re.match(r"    (?! )([\w*, `]+):", line)):
            found |= set(re.findall(r"\w+", entry[1]))
    return found


def test_arguments_are_explained(public_names):
    """Of each public function, but for a problem and a net, in a section of arguments."""
    missing = {
        f"{room}.{name}": absent
        for room, names in public_names.items()
        for name in names
        if inspect.isfunction(
            inspect.unwrap(function := getattr(import_module(room), name))
        )
        and (absent := set(arguments(function)) - explained(function.__doc__ or ""))
    }
    assert not missing
