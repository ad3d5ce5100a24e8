"""Values of all hidden layers: an array of each, or one row of all."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
from jaxtyping import Array


_T = TypeVar("_T")


def in_one_row(layers: Sequence[Array]) -> Array:
    """The values at the sites of each layer, one after the other.

    Args:
        layers: an array for each hidden layer, (N, n_l).
    """
    return jnp.concatenate([values.ravel() for values in layers])


def in_layers(row: Array, like: Sequence[Array]) -> tuple[Array, ...]:
    """The values of one row as arrays with the shapes of others.

    Args:
        row: as of `in_one_row`, (Σ_l N n_l,).
        like: an array for each hidden layer, (N, n_l), of which only the shape matters.
    """
    layers, start = [], 0
    for values in like:
        layers.append(row[start : start + values.size].reshape(values.shape))
        start += values.size
    return tuple(layers)


def per_layer(function: Callable[..., _T], *sites: Any) -> tuple[_T, ...]:
    """The function applied to the arrays of each layer."""
    return tuple(function(*arrays) for arrays in zip(*sites, strict=True))
