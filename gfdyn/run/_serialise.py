"""Modules as JSON trees with named arrays.

No pickle: a tree names classes out of a fixed list, and arrays hold numbers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import data, flows, losses, nets
from ..problem import Problem
from ._begin import SolveState
from ._certificate import Certificate, Ledger
from ._course import Course
from ._descent_state import DescentState
from ._kink_log import Kinks
from ._lanes import lane
from ._results import NAMES, RESULTS, name_of, result_named


def _known_classes() -> dict[str, type]:
    modules = (
        data.Dataset,
        flows.Branches,
        flows.BranchFlow,
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
        Course,
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


def decode(tree: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
    """What `encode` was given under this name.

    Raises:
        ValueError: on what `encode` does not write; names the field.
    """
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if not isinstance(tree, dict):
        raise ValueError(f"{name} is {tree!r:.60}, which is of no kind that is written")
    kinds, content = set(tree), next(iter(tree.values()), None)
    if kinds == {"array"}:
        if content != name or name not in arrays:
            raise ValueError(
                f"{name} is array {content!r:.60}, missing or of another field"
            )
        return _as_jax(arrays[name])
    if kinds == {"dict"} and isinstance(content, dict):
        return {k: decode(v, arrays, f"{name}.{k}") for k, v in content.items()}
    if kinds == {"tuple"} and isinstance(content, list):
        return tuple(decode(v, arrays, f"{name}.{i}") for i, v in enumerate(content))
    if kinds == {"result"}:
        return _results(content, name)
    if kinds == {"class", "fields"} and isinstance(tree["fields"], dict):
        cls = _known_classes().get(str(tree["class"]))
        if cls is None:
            raise ValueError(f"{name} is a {tree['class']!r:.60}, which is no class known")
        return decode_fields(cls, tree["fields"], arrays, name)
    raise ValueError(f"{name} is {tree!r:.60}, which is of no kind that is written")


def decode_fields(
    cls: type, trees: Mapping[str, Any], arrays: Mapping[str, np.ndarray], name: str = ""
) -> Any:
    """An object of a class whose fields `encode` was given, each under its own name.

    Raises:
        ValueError: on a field that the class does not have, or that is missing.
    """
    module = object.__new__(cls)
    own = {field.name: field for field in dataclasses.fields(cls)}
    inside = f"{name}." if name else ""
    for field in trees.keys() - own.keys():
        raise ValueError(f"{inside}{field}: a {cls.__name__} has no such field")
    for field, described in own.items():
        if field in trees:
            value = decode(trees[field], arrays, f"{inside}{field}")
            object.__setattr__(module, field, value)
        # A field that a file of an older version lacks has its default.
        elif described.default is dataclasses.MISSING:
            raise ValueError(f"{inside}{field} is missing")
    return module


def _names(result: Any) -> Any:
    """The name of a result, or a list of those of a batch."""
    if result._value.ndim == 0:
        return name_of(result)
    return [_names(lane(result, i)) for i in range(len(result._value))]


def _results(names: Any, name: str) -> Any:
    """What `_names` was given."""
    if isinstance(names, list) and names:
        lanes = [_results(each, name) for each in names]
        return jax.tree.map(lambda *lanes: jnp.stack(lanes), *lanes)
    if names not in NAMES:
        raise ValueError(f"{name}={names!r:.60}, which is none of gf.RESULTS")
    return result_named(names)


def _as_jax(array: np.ndarray) -> jax.Array:
    """The same numbers; without x64 jax would silently round them."""
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise ValueError(
            f"it holds {array.dtype}, which jax would round; first call "
            'jax.config.update("jax_enable_x64", True)'
        )
    # Which compiles nothing, as `jnp.asarray` does for each shape
    return jax.device_put(array)
