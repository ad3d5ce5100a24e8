"""Arguments of a solve, as numbers of its precision."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from .._tracing import is_concrete
from ..nets import AbstractNet
from ._saving import AcceptedSteps


# Saves by default, and the most memory that their nets may take, in bytes.
_DEFAULT_SAVES = 101
_SAVES_MEMORY = 1e9


def numbers_as_arrays(tree: Any, dtype: Any) -> Any:
    """The tree with its floats as arrays, so that other numbers do not recompile."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype) if isinstance(leaf, float) else leaf, tree
    )


def times_of(
    t0: Array, t1: ArrayLike | None, ts: Any, stops: bool, affordable: int
) -> tuple[Array, Array | AcceptedSteps]:
    """The end of the solve and its save times; by default no more than are affordable."""
    dtype = t0.dtype
    if t1 is None:
        if ts is None or isinstance(ts, AcceptedSteps):
            raise ValueError("t1 is missing; give the end of the solve, or save times ts.")
        end = _save_times(ts, dtype)[-1]
    else:
        end = as_scalar("t1", t1, dtype)
    infinite = is_concrete(end) and not math.isfinite(end)
    if is_concrete(end, t0):
        if not float(end) >= float(t0):
            raise ValueError(
                f"t1={float(end)} must be a time that does not lie before t0={float(t0)}; "
                "flows run forward."
            )
        if infinite and not stops:
            raise ValueError(
                "t1=inf never ends; give a stop condition of gf.stopping as well."
            )
    if isinstance(ts, AcceptedSteps) or (ts is None and infinite):
        if ts is not None:
            return end, ts
        default = AcceptedSteps()
        return end, AcceptedSteps(min(default.capacity, affordable // 2 * 2))
    if ts is None:
        return end, _evenly_spaced(t0, end, min(_DEFAULT_SAVES, affordable))
    saves = _save_times(ts, dtype)
    if is_concrete(saves, end, t0):
        times = np.asarray(saves)
        if times[0] < float(t0) or times[-1] > float(end):
            raise ValueError(
                f"ts runs from {times[0]:g} to {times[-1]:g}, outside the solve from "
                f"t0={float(t0):g} to t1={float(end):g}."
            )
    return end, saves


def affordable_saves(net: AbstractNet) -> int:
    """How many nets there is memory for, 4 at least."""
    arrays = filter(eqx.is_array, jax.tree.leaves(net))
    size = sum(w.size * w.dtype.itemsize for w in arrays)
    return max(4, int(_SAVES_MEMORY / size))


@functools.partial(jax.jit, static_argnums=2)
def _evenly_spaced(t0: Array, end: Array, saves: int) -> Array:
    fractions = jnp.linspace(0, 1, saves, dtype=end.dtype)
    return (t0 + (end - t0) * fractions).at[-1].set(end)


def _save_times(ts: Any, dtype: Any) -> Array:
    saves = _cast("ts", ts, dtype)
    if saves.ndim != 1 or saves.shape[0] == 0:
        raise ValueError(f"ts has shape {saves.shape}; give a 1-D array of save times.")
    if is_concrete(saves):
        steps = np.diff(np.asarray(saves))
        if not np.all(np.isfinite(np.asarray(saves))) or not np.all(steps > 0):
            i = int(np.argmax(~(steps > 0))) if len(steps) else 0
            raise ValueError(
                f"ts must be finite and strictly increasing; it is not at index {i}: "
                f"{np.asarray(saves)[i : i + 2].tolist()}. Sort it and drop duplicates."
            )
    return saves


def as_scalar(name: str, value: ArrayLike, dtype: Any) -> Array:
    """The number as an array of the dtype; ValueError where it is no single number."""
    array = _cast(name, value, dtype)
    if array.ndim:
        raise ValueError(f"{name} has shape {array.shape}; give a single number.")
    return array


def _cast(name: str, value: Any, dtype: Any) -> Array:
    """As an array of the net's dtype; arrays of another floating dtype are refused."""
    if isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a number, or an array of them.")
    given = getattr(value, "dtype", None)
    weak = getattr(value, "weak_type", False)
    if given is not None and jnp.issubdtype(given, jnp.floating) and not weak:
        # NumPy scalars are Python floats in all but name.
        if jnp.dtype(given) != dtype and getattr(value, "ndim", 0) > 0:
            raise ValueError(
                f"{name} is {given} but the net is {dtype}; pass {name}.astype({dtype}) "
                f"or a net with dtype={given}."
            )
    return jnp.asarray(value, dtype)
