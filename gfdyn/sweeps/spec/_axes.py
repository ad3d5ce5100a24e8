"""The axes of a sweep: lists of values of one setting each, crossed or side by side."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..._numbers import check_count, check_number, is_positive
from ._fields import as_kind, check_names, require, suggestion, type_hints


Values = tuple[Any, ...]
_NO_AXES = ("path", "teacher")
_NUM = "must be 1 or more, such as 5: how many values."
# What an axis may be written as, besides a list.
_FORMS = {"log": ("log", "num"), "linear": ("linear", "num"), "seeds": ("seeds",)}


def log(first: float, last: float, num: int) -> tuple[float, ...]:
    """Values from the first to the last, in equal ratios.

    Args:
        first, last: the two ends, positive and finite.
        num: how many values, 1 or more; 1 is the first alone.

    Raises:
        TypeError, ValueError: on ends that are not, or another number of values.

    Example:
        >>> log(1e2, 1e-2, num=3)
        (100.0, 1.0, 0.01)
    """
    for name, end in (("first", first), ("last", last)):
        check_number(name, end, is_positive, "must be positive and finite, such as 1e-6.")
    check_count("num", num, 1, _NUM)
    inner = np.linspace(math.log10(first), math.log10(last), num)[1:-1]
    return _between(first, [10.0 ** float(exponent) for exponent in inner], last, num)


def linear(first: float, last: float, num: int) -> tuple[float, ...]:
    """Values from the first to the last, at equal distances.

    Args:
        first, last: the two ends, finite.
        num: how many values, 1 or more; 1 is the first alone.

    Raises:
        TypeError, ValueError: on ends that are not, or another number of values.
    """
    for name, end in (("first", first), ("last", last)):
        check_number(name, end, math.isfinite, "must be finite, such as 0.5.")
    check_count("num", num, 1, _NUM)
    inner = np.linspace(first, last, num)[1:-1]
    return _between(first, [float(value) for value in inner], last, num)


def seeds(num: int) -> tuple[int, ...]:
    """Repetitions: the seeds 0, …, num − 1.

    Args:
        num: how many, 1 or more.

    Raises:
        TypeError, ValueError: on another number.
    """
    check_count("num", num, 1, _NUM)
    return tuple(range(num))


def _between(first: float, inner: list[float], last: float, num: int) -> Values:
    return (float(first), *inner, float(last))[:num]


def expand(name: str, written: Any) -> Sequence[Any]:
    """The values of an axis as it is written: a list, or a table `{log = [first, last],
    num = 5}`, `{linear = [first, last], num = 5}` or `{seeds = 5}`.

    Raises:
        ValueError: on anything else.
    """
    if isinstance(written, list | tuple):
        return written
    axis = f"axes.{name}"
    if not isinstance(written, Mapping):
        remedy = (
            "must be a list of values, or a table such as {log = [1.0, 1e-6], num = 7}."
        )
        raise ValueError(f"{axis}={written!r} {remedy}")
    form = next((each for each in _FORMS if each in written), None)
    if form is None:
        known = [*_FORMS, "num"]
        nearest = suggestion(next(iter(written), ""), known)
        raise ValueError(f"{axis}={dict(written)!r} is no list of values{nearest}")
    check_names(written, _FORMS[form], axis)
    missing = [key for key in _FORMS[form] if key not in written]
    require(not missing, axis, dict(written), f"lacks {', '.join(missing)}.")
    count = as_kind(int, written[_FORMS[form][-1]], f"{axis}.{_FORMS[form][-1]}")
    require(count >= 1, f"{axis}.{_FORMS[form][-1]}", count, "must be 1 or more.")
    if form == "seeds":
        return seeds(count)
    ends = as_kind(tuple[float, ...], written[form], f"{axis}.{form}")
    require(len(ends) == 2, f"{axis}.{form}", list(ends), "must be [first, last].")
    finite = max(map(abs, ends)) < math.inf
    if form == "log":
        positive = min(ends) > 0 and finite
        require(positive, f"{axis}.log", list(ends), "must be positive and finite.")
    require(finite, f"{axis}.{form}", list(ends), "must be finite.")
    return {"log": log, "linear": linear}[form](ends[0], ends[1], count)


def conform_axis(name: str, values: Sequence[Any], settings: Any) -> Values:
    """The values of the axis `section.field`, each as one that the field takes.

    Raises:
        ValueError: on a field that is none, and on values out of place.
    """
    field = name.partition(".")[2]
    hints = type_hints(type(settings))
    names = [each.name for each in dataclasses.fields(settings)]
    known = [each for each in names if each not in _NO_AXES]
    check_names([field], known, f"axes.{name.partition('.')[0]}")
    require(len(values) > 0, f"axes.{name}", list(values), "is empty; give values.")
    found = []
    for i, value in enumerate(values):
        whole = hints[field] in (int, int | None)
        if whole and isinstance(value, float):
            value = round(value)
        value = as_kind(hints[field], value, f"axes.{name}[{i}]")
        require(value not in found, f"axes.{name}[{i}]", value, "is there twice.")
        found.append(value)
    return tuple(found)


def dimensions(
    axes: Mapping[str, Sequence[Any]], together: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    """The names of the axes, those that vary together in one tuple, in their order.

    Raises:
        ValueError: unless groups name axes of one length, each once.
    """
    group_of = {}
    for group in together:
        require(len(group) >= 2, "zip", list(group), "must name two axes or more.")
        check_names(group, axes, "zip")
        for name in group:
            require(name not in group_of, "zip", name, "is in two groups.")
            group_of[name] = tuple(group)
        lengths = {name: len(axes[name]) for name in group}
        same = len(set(lengths.values())) == 1
        require(same, "zip", lengths, "must have as many values each.")
    return tuple(dict.fromkeys(group_of.get(name, (name,)) for name in axes))


def grid(
    axes: Mapping[str, Sequence[Any]], dims: Sequence[Sequence[str]]
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Each place on the grid, the last dim fastest: its indices and its values."""
    for place in itertools.product(*(range(len(axes[dim[0]])) for dim in dims)):
        values = {}
        for dim, i in zip(dims, place, strict=True):
            values |= {name: axes[name][i] for name in dim}
        yield place, values


def short_names(names: Sequence[str]) -> dict[str, str]:
    """What axes are called in results: `seed` for `net.seed`, but `problem_seed` if both
    sections' seeds vary."""
    fields = [name.partition(".")[2] for name in names]
    return {
        name: field if fields.count(field) == 1 else name.replace(".", "_")
        for name, field in zip(names, fields, strict=True)
    }
