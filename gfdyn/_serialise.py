"""Modules as JSON trees with named arrays.

No pickle: a tree names classes out of a fixed list, and arrays hold numbers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import data, flows, losses, nets
from ._begin import SolveState
from ._certificate import Certificate, Ledger
from ._kinks import Kinks
from ._lanes import lane
from ._problem import Problem
from ._results import RESULTS, name_of, result_named
from ._sgd import DescentState


def _known_classes() -> dict[str, type]:
    modules = (
        data.Dataset,
        flows.EscapeFlow,
        flows.GradientFlow,
        flows.MomentumFlow,
        flows.Moving,
        flows.Polar,
        flows.SignFlow,
        flows.State,
        nets.AveragePool,
        nets.BatchNorm,
        nets.ChannelsLast,
        nets.Composed,
        nets.Conv,
        nets.Dag,
        nets.Dense,
        nets.Diagonal,
        nets.Identity,
        nets.Layer,
        nets.LayeredNet,
        nets.MLP,
        nets.PiecewiseLinear,
        nets.Rescaled,
        nets.WeightNormalised,
        losses.CrossEntropy,
        losses.Exponential,
        losses.Linear,
        losses.Logistic,
        losses.Squared,
        losses.Weighted,
        Certificate,
        DescentState,
        Kinks,
        Ledger,
        Problem,
        SolveState,
    )
    return {cls.__name__: cls for cls in modules}


def encode(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """A JSON tree for a pytree of gfdyn's classes; its arrays go to `arrays` by name.

    Raises:
        TypeError: on a class that is not gfdyn's own.
    """
    if isinstance(value, jax.Array | np.ndarray):
        arrays[name] = np.asarray(value)
        return {"array": name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {"dict": {k: encode(v, f"{name}.{k}", arrays) for k, v in value.items()}}
    if isinstance(value, tuple | list):
        items = [encode(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]
        return {"tuple": items}
    if isinstance(value, RESULTS):  # pyright: ignore[reportArgumentType]
        return {"result": _names(value)}
    if _known_classes().get(type(value).__name__) is type(value):
        fields = {
            field.name: encode(getattr(value, field.name), f"{name}.{field.name}", arrays)
            for field in dataclasses.fields(value)
        }
        return {"class": type(value).__name__, "fields": fields}
    raise TypeError(
        f"{name} is a {type(value).__name__}, which gfdyn cannot write to a file; "
        "only its own nets, losses and flows can be saved."
    )


def decode(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `encode` was given."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content), *rest) = tree.items()
    if kind == "array":
        return _as_jax(arrays[content])
    if kind == "dict":
        return {k: decode(v, arrays) for k, v in content.items()}
    if kind == "tuple":
        return tuple(decode(v, arrays) for v in content)
    if kind == "result":
        return _results(content)
    ((_, fields),) = rest
    cls = _known_classes()[content]
    module = object.__new__(cls)
    for field in dataclasses.fields(cls):
        # A field that a file of an older version lacks has its default.
        if field.name in fields:
            object.__setattr__(module, field.name, decode(fields[field.name], arrays))
    return module


def _names(result: Any) -> Any:
    """The name of a result, or a list of those of a batch."""
    if result._value.ndim == 0:
        return name_of(result)
    return [_names(lane(result, i)) for i in range(len(result._value))]


def _results(names: Any) -> Any:
    """What `_names` was given."""
    if isinstance(names, str):
        return result_named(names)
    return jax.tree.map(lambda *lanes: jnp.stack(lanes), *map(_results, names))


def _as_jax(array: np.ndarray) -> jax.Array:
    """The same numbers; without x64 jax would silently round them."""
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise ValueError(
            f"it holds {array.dtype}, which jax would round; first call "
            'jax.config.update("jax_enable_x64", True)'
        )
    return jnp.asarray(array)
