"""Which version of the paper a statement is taken from."""

from typing import Any, Literal, get_args


Version = Literal["corrected", "first"]
# Of what depends on activation patterns also the correction as it is printed, in which a
# neuron on its kink counts as active.
PatternVersion = Literal["corrected", "second", "first"]


def check_version(version: str, known: Any = Version) -> None:
    """Raise unless it is one of the known ones.

    Raises:
        ValueError: on another version.
    """
    names = get_args(known)
    if version not in names:
        *others, last = map(repr, names)
        raise ValueError(f"version={version!r}; use {', '.join(others)} or {last}.")
