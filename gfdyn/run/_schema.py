"""Whether the fields of a module are of the kinds that their annotations promise.

Read off the annotations, and from the checks of the classes themselves: a module that was
restored has not passed through either.
"""

import dataclasses
import functools
import inspect
import math
import types
import typing
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import AbstractArray, Array

from ._results import RESULTS


Axes = tuple[int, ...]
# Of the dimensions that annotations name, in one module
Sizes = dict[str, int]


def check_fields(module: eqx.Module, name: str = "", axes: Axes = ()) -> None:
    """Raise unless each field of a module is of its kind; the arrays of a batch, or of
    several saves, have axes before those that are annotated.

    Raises:
        ValueError: on a field of another kind, dtype or shape.
    """
    check_own_fields(module, name, {f.name: axes for f in dataclasses.fields(module)})
    _check_by_its_class(module, name, axes)


def check_own_fields(module: eqx.Module, name: str, axes: dict[str, Axes]) -> None:
    """Raise unless the fields of a module are of their kinds, each with axes of its own."""
    hints, sizes = _hints(type(module)), {}
    for field, before in axes.items():
        place = _joined(name, field)
        _check(getattr(module, field), hints[field], place, before, sizes)


def check_range(name: str, values: Any, least: int, most: int | None = None) -> None:
    """Raise unless whole numbers are in a range, its ends included."""
    numbers = np.asarray(values)
    if np.any(numbers < least) or (most is not None and np.any(numbers > most)):
        span = f"{least} or more" if most is None else f"{least} to {most}"
        refuse(name, numbers.tolist(), span)


def refuse(name: str, value: Any, expected: str) -> typing.NoReturn:
    """Say that a field does not have the value that was expected."""
    shown = eqx.tree_pformat(value, width=10**6).replace("\n", " ")
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    raise ValueError(f"{name}={shown}, where {expected} is expected")


def without_axes(tree: Any, axes: Axes) -> Any:
    """The shapes of one lane or save."""

    def one(leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape[len(axes) :], leaf.dtype)

    return jax.tree.map(one, tree)


def layout(tree: Any) -> Any:
    """The structure of a tree, and the shapes and dtypes of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _joined(name: str, field: str | int) -> str:
    return f"{name}.{field}" if name else str(field)


def _check(value: Any, kind: Any, name: str, axes: Axes, sizes: Sizes) -> None:
    """Raise unless a value is of a kind, and so is all that it holds."""
    if not _is(value, kind, axes, sizes):
        before = f" after axes {axes}" if axes and not isinstance(value, eqx.Module) else ""
        refuse(name, value, _described(kind) + before)
    if _is_union(kind):
        kind = next(each for each in typing.get_args(kind) if _is(value, each, axes, sizes))
    # Of what is inside a PyTree[...], nets among them, its leaves alone are annotated.
    if isinstance(value, RESULTS) or "PyTree" in str(kind):  # pyright: ignore
        return
    if isinstance(value, eqx.Module):
        check_fields(value, name, axes)
    elif isinstance(value, dict):
        inner = typing.get_args(kind)[1] if typing.get_origin(kind) is dict else Any
        for key, each in value.items():
            _check(each, inner, _joined(name, key), axes, sizes)
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            _check(each, _entry(kind, i), _joined(name, i), axes, sizes)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _entry(kind: Any, i: int) -> Any:
    """The kind of an entry of a tuple."""
    if typing.get_origin(kind) is not tuple:
        return Any
    entries = typing.get_args(kind)
    return entries[0] if entries[-1] is Ellipsis else entries[i]


def _is(value: Any, kind: Any, axes: Axes, sizes: Sizes) -> bool:
    """Whether a value is of a kind; what it holds is looked at by itself."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return True
    if kind is None or kind is types.NoneType:
        return value is None
    if _is_union(kind):
        return any(_is(value, each, axes, sizes) for each in typing.get_args(kind))
    if origin is Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if origin is tuple:
        entries = typing.get_args(kind)
        any_length = not entries or entries[-1] is Ellipsis
        return isinstance(value, tuple) and (any_length or len(value) == len(entries))
    if origin is dict:
        return isinstance(value, dict)
    if kind is float:
        number = isinstance(value, float | int) and not isinstance(value, bool)
        return number and not math.isnan(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if inspect.isclass(kind) and issubclass(kind, AbstractArray):
        return _is_array(value, kind, axes, sizes)
    return isinstance(value, kind)


def _is_array(value: Any, kind: Any, axes: Axes, sizes: Sizes) -> bool:
    """Whether it is an array of annotated dtype and shape, with the axes before those, of
    dimensions as long as others of their names."""
    if not isinstance(value, jax.Array) or value.shape[: len(axes)] != axes:
        return False
    named = kind.dim_str.removeprefix("*batch").split()
    if "*" not in "".join(named):
        kind = kind.dtype[Array, " ".join([*map(str, axes), *named])]
    if not isinstance(value, kind):
        return False
    # From the end, up to a "*name", which stands for any number of them.
    for dimension, size in zip(reversed(named), reversed(value.shape), strict=False):
        if dimension.startswith("*"):
            break
        if dimension.isidentifier() and dimension != "_":
            if sizes.setdefault(dimension, size) != size:
                return False
    return True


def _described(kind: Any) -> str:
    """A kind in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _is_union(kind):
        return " or ".join(map(_described, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if kind is None or kind is types.NoneType:
        return "None"
    if inspect.isclass(kind) and issubclass(kind, AbstractArray):
        return f"an array {kind.dtype.__name__}[{kind.dim_str}]"
    plain = inspect.isclass(kind) and not arguments and "PyTree" not in str(kind)
    return kind.__name__ if plain else str(kind)


def _check_by_its_class(module: eqx.Module, name: str, axes: Axes) -> None:
    """Raise where the class would not have been made with these fields."""
    cls = type(module)
    fields = {f.name: getattr(module, f.name) for f in dataclasses.fields(module)}
    try:
        if set(inspect.signature(cls).parameters) != set(fields):
            lane = without_axes(module, axes)
            for base in cls.__mro__:
                if "__check_init__" in vars(base):
                    vars(base)["__check_init__"](lane)
        elif axes:
            eqx.filter_eval_shape(cls, **without_axes(fields, axes))
        else:
            cls(**fields)
    except Exception as error:
        raise ValueError(f"{name}: {error}") from error
