"""Fields of settings: the types they have, and errors that say what would do."""

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal


def conform(settings: Any, section: str, names: Iterable[str] | None = None) -> None:
    """Bring the fields (these, if names are given) of a frozen dataclass to the types that
    they declare: whole numbers become floats and lists tuples where that is meant.

    Raises:
        ValueError: naming `section.field`, its value and what it must be.
    """
    hints = type_hints(type(settings))
    for field in dataclasses.fields(settings):
        name, kind = field.name, hints[field.name]
        if names is None or name in names:
            value = as_kind(kind, getattr(settings, name), dotted(section, name))
            object.__setattr__(settings, name, value)


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """The types that its fields declare."""
    return typing.get_type_hints(cls)


def as_kind(kind: Any, value: Any, name: str) -> Any:
    """The value as one of this type.

    Raises:
        ValueError: if it is none, naming it.
    """
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value not in options:
            raise ValueError(f"{name}={value!r}{suggestion(value, options)}")
        return value
    if origin in (types.UnionType, typing.Union):
        return None if value is None else as_kind(options[0], value, name)
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise ValueError(f"{name}={value!r} must be a list.")
        return tuple(
            as_kind(options[0], entry, f"{name}[{i}]") for i, entry in enumerate(value)
        )
    return _as_plain(kind, value, name)


def _as_plain(kind: type, value: Any, name: str) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        # JSON has no infinity; it is written by name.
        if value == "inf":
            return math.inf
        if not (whole or isinstance(value, float)) or math.isnan(value):
            raise ValueError(f"{name}={value!r} must be a number, such as 0.5 or 1e-6.")
        return float(value)
    if kind is int and not whole:
        raise ValueError(f"{name}={value!r} must be a whole number, such as 2.")
    if not isinstance(value, kind):
        meant = {bool: "true or false", str: "a text", int: "a whole number"}
        raise ValueError(f"{name}={value!r} must be {meant.get(kind, kind.__name__)}.")
    return value


def require(condition: bool, name: str, value: Any, remedy: str) -> None:
    """Raise unless the condition holds.

    Raises:
        ValueError: naming the field, its value and the remedy.
    """
    if not condition:
        raise ValueError(f"{name}={value!r} {remedy}")


def check_names(given: Iterable[str], known: Iterable[str], section: str) -> None:
    """Raise on a name that is not known.

    Raises:
        ValueError: naming it and the nearest name that is.
    """
    known = list(known)
    for name in given:
        if name not in known:
            unknown = f"{dotted(section, name)} is unknown"
            raise ValueError(unknown + suggestion(name, known))


def suggestion(name: Any, known: Iterable[Any]) -> str:
    """The end of an error: the nearest of the known names, and all of them."""
    known = [str(each) for each in known]
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    meant = f"; did you mean {nearest[0]!r}?" if nearest else ";"
    return f"{meant} Known: {', '.join(known)}."


def dotted(section: str, name: str) -> str:
    """`section.name`, or the name alone at the top."""
    return f"{section}.{name}" if section else name


def plain(settings: Any) -> dict[str, Any]:
    """The fields as TOML and JSON hold them: without those that are None, tuples as
    lists."""
    entries = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return {name: _plain(value) for name, value in entries.items() if value is not None}


def _plain(value: Any) -> Any:
    # First, as almost all values are such: plans of many points spend their time here.
    if isinstance(value, str | int | float):
        return value
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return value
