"""Initialisations by name: `init(key, widths, dtype) -> (W_1, …, W_L)`.

All draw in float32 and cast, so that one seed gives the same network in every precision
up to rounding.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, ArrayLike, DTypeLike, Float, PRNGKeyArray, PyTree

from .._numbers import check_number, is_not_negative
from ._base import AbstractNet


Net = TypeVar("Net", bound=AbstractNet)
Weights = tuple[Float[Array, "_ _"], ...]
Initialisation = Callable[[PRNGKeyArray, tuple[int, ...], DTypeLike], Weights]


def gaussian(scale: ArrayLike = 1.0) -> Initialisation:
    """Independent entries N(0, scale²).

    Args:
        scale: standard deviation of every entry of every layer.

    Raises:
        TypeError, ValueError: unless it is one finite number.
    """
    check_number("scale", scale, math.isfinite, "must be finite, such as 0.1.")

    def init(key: PRNGKeyArray, widths: tuple[int, ...], dtype: DTypeLike) -> Weights:
        keys = jr.split(key, len(widths) - 1)
        shapes = zip(widths[1:], widths[:-1], strict=True)
        return tuple(
            jnp.asarray(scale, dtype) * jr.normal(k, shape, jnp.float32).astype(dtype)
            for k, shape in zip(keys, shapes, strict=True)
        )

    return init


def fan_in_uniform(scale: ArrayLike = 1.0) -> Initialisation:
    """Independent entries U(±scale/√n_{l−1}).

    Args:
        scale: bound of the entries times √n_{l−1}; 1 is torch's of linear layers, √6 He's.

    Raises:
        TypeError, ValueError: unless it is one finite number.
    """
    check_number("scale", scale, math.isfinite, "must be finite, such as 1.0.")

    def init(key: PRNGKeyArray, widths: tuple[int, ...], dtype: DTypeLike) -> Weights:
        keys = jr.split(key, len(widths) - 1)
        shapes = zip(widths[1:], widths[:-1], strict=True)
        return tuple(
            jnp.asarray(scale, dtype)
            * jr.uniform(k, shape, jnp.float32, minval=-1.0).astype(dtype)
            / math.sqrt(shape[1])
            for k, shape in zip(keys, shapes, strict=True)
        )

    return init


def balanced(scale: ArrayLike = 1.0) -> Initialisation:
    r"""Gaussian, then every neuron balanced: $\|W_{l+1,\cdot i}\| = \|W_{l,i\cdot}\|$.

    Args:
        scale: standard deviation of the entries of W_1, whose norms set those of the rest.
    """
    return dominated(scale, ratio=1.0)


def dominated(scale: ArrayLike = 1.0, ratio: float = 2.0) -> Initialisation:
    r"""Gaussian, then outgoing weights dominate incoming ones.

    $\|W_{l+1,\cdot i}\| = \text{ratio}\,\|W_{l,i\cdot}\|$ for every hidden neuron. The
    columns of W_2, …, W_L are rescaled in this order; W_1 stays as it was drawn.

    Args:
        scale: standard deviation of the entries of W_1, whose norms set those of the rest.
        ratio: outgoing over incoming norm of each hidden neuron, 1 or more.

    Raises:
        TypeError, ValueError: unless `ratio` is a finite number of at least 1.
    """
    remedy = "must be at least 1 and finite: outgoing over incoming norm of a neuron."
    check_number("ratio", ratio, lambda ratio: 1 <= ratio < math.inf, remedy)

    def init(key: PRNGKeyArray, widths: tuple[int, ...], dtype: DTypeLike) -> Weights:
        weights = list(gaussian(scale)(key, widths, dtype))
        for i in range(1, len(weights)):
            incoming = jnp.linalg.norm(weights[i - 1], axis=1)
            outgoing = jnp.linalg.norm(weights[i], axis=0)
            weights[i] = weights[i] * (ratio * incoming / outgoing)[None, :]
        return tuple(weights)

    return init


def zero_output(scale: ArrayLike = 1.0) -> Initialisation:
    """Gaussian, symmetrised so that f = 0 (up to rounding).

    Neurons of the last hidden layer come in pairs with equal incoming and opposite outgoing
    weights.

    Args:
        scale: standard deviation of every entry.

    Raises:
        ValueError: if there is no hidden layer, or the last one has odd width.
    """

    def init(key: PRNGKeyArray, widths: tuple[int, ...], dtype: DTypeLike) -> Weights:
        if len(widths) < 3 or widths[-2] % 2:
            raise ValueError(
                f"widths={list(widths)}: zero_output pairs the neurons of the last hidden "
                "layer, whose width must be even."
            )
        *first, incoming, outgoing = gaussian(scale)(key, widths, dtype)
        half = widths[-2] // 2
        incoming, outgoing = incoming[:half], outgoing[:, :half]
        return (
            *first,
            jnp.concatenate([incoming, incoming]),
            jnp.concatenate([outgoing, -outgoing], axis=1),
        )

    return init


def norm(net: PyTree[Array]) -> Float[Array, ""]:
    """‖θ‖, the Euclidean norm of all parameters, safe against under- and overflow."""
    leaves = jax.tree.leaves(net)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(w)) for w in leaves]))
    unit = jax.lax.stop_gradient(jnp.where(largest > 0, largest, 1.0))
    return unit * jnp.sqrt(sum(jnp.sum((w / unit) ** 2) for w in leaves))


def scaled_to_norm(net: Net, value: ArrayLike) -> Net:
    """The network on the same ray, at another norm; a zero network stays zero.

    Args:
        value: ‖θ‖, 0 or more.

    Raises:
        TypeError, ValueError: unless it is one finite number of 0 or more.
    """
    check_number("value", value, is_not_negative, "must be a norm, finite and 0 or more.")
    size = norm(net)
    value = jnp.asarray(value, size.dtype)
    factor = jnp.where(size > 0, value / jnp.where(size > 0, size, 1.0), 0.0)
    return jax.tree.map(lambda w: w * factor.astype(w.dtype), net)
