"""Keyword arguments that a function does not have: which was meant, or what to do."""

import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar


P = ParamSpec("P")
R = TypeVar("R")


def suggest_keywords(**remedies: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: what is said of an unknown keyword names the one that was meant.

    Args:
        remedies: by keyword, what to do of those that other libraries have.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")
        parameters = inspect.signature(function).parameters
        known = [each for each in parameters if each != "self"]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for keyword, value in kwargs.items():
                if keyword not in known:
                    meant = difflib.get_close_matches(keyword, known, 1)
                    remedy = f"did you mean {meant[0]}=?" if meant else _listed(known)
                    raise TypeError(
                        f"{keyword}={' '.join(reprlib.repr(value).split())} is no argument "
                        f"of {name}; {remedies.get(keyword, remedy)}"
                    )
            return function(*args, **kwargs)

        return checked

    return decorate


def _listed(known: list[str]) -> str:
    return f"it takes {', '.join(known)}."
