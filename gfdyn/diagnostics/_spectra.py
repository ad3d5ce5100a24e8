"""Singular values of the weight matrices, and measures of rank."""

from collections.abc import Callable
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numbers import check_count, check_number, is_threshold
from .._numerics import nonzero
from ..nets import AbstractNet
from ..problem import Problem


Normalisation = Literal["none", "spectral", "frobenius"]


def check_normalisation(normalisation: str) -> None:
    """Raise unless it is one of those that there are."""
    if normalisation not in get_args(Normalisation):
        raise ValueError(
            f"normalisation={normalisation!r}; use 'none', 'spectral' or 'frobenius'."
        )


def check_threshold(threshold: float) -> None:
    """Raise unless it is a number of at least 0, or traced."""
    remedy = "must be 0 or more, such as 1e-3: singular values above it count."
    check_number("threshold", threshold, is_threshold, remedy)


def singular_values(
    problem: Problem, net: AbstractNet, k: int = 10
) -> Float[Array, "layers k"]:
    """The largest singular values of each W_l, falling.

    Args:
        k: how many, 0 or more; 0 stands for those beyond the smaller side of a matrix.

    Raises:
        TypeError, ValueError: unless k is an integer of at least 0.
    """
    del problem
    check_count("k", k, 0, "must be 0 or more: how many singular values of each matrix.")
    return jnp.stack([_top(_spectrum(w), k) for w in net.weights])


def stable_rank(problem: Problem, net: AbstractNet) -> Float[Array, " layers"]:
    r"""$\|W_l\|_F^2 / \|W_l\|_2^2 \ge 1$, l = 1, …, L; 0 for a zero matrix."""
    del problem
    return _each(net, lambda s: jnp.sum(_unit(s) ** 2))


def tail(problem: Problem, net: AbstractNet) -> Float[Array, " layers"]:
    r"""$1 - \sigma_1^2/\sum_i \sigma_i^2$, l = 1, …, L (Bantzis et al., Thm 3.1).

    0 exactly at rank one. Summed from the small side, so that it keeps its digits there.
    """
    del problem
    return _each(
        net, lambda s: jnp.sum(_unit(s)[1:] ** 2) / nonzero(jnp.sum(_unit(s) ** 2))
    )


def numerical_rank(
    problem: Problem,
    net: AbstractNet,
    threshold: float = 1e-3,
    normalisation: Normalisation = "spectral",
) -> Int[Array, " layers"]:
    r"""$\#\{i : \sigma_i(W_l) > \text{threshold} \cdot \|W_l\|\}$, l = 1, …, L.

    Args:
        threshold: what σ_i must exceed, relative to the norm; 0 or more.
        normalisation: the norm: "spectral", "frobenius" (as in Galanti & Poggio's code), or
            "none" for 1 in its place.

    Raises:
        TypeError, ValueError: on an unknown normalisation, or unless the threshold is a
            number of at least 0.
    """
    del problem
    check_normalisation(normalisation)
    check_threshold(threshold)
    size: dict[str, Callable[[Array], Array]] = {
        "none": lambda s: jnp.ones((), s.dtype),
        "spectral": lambda s: s[0],
        "frobenius": lambda s: s[0] * jnp.sqrt(jnp.sum(_unit(s) ** 2)),
    }
    return _each(net, lambda s: jnp.sum(s > threshold * size[normalisation](s)))


def effective_rank(problem: Problem, net: AbstractNet) -> Float[Array, " layers"]:
    r"""$\exp\big(-\sum_i p_i \log p_i\big)$, $p_i = \sigma_i / \sum_j \sigma_j$
    (Roy & Vetterli), l = 1, …, L; 1 for a zero matrix."""
    del problem

    def of(s: Array) -> Array:
        p = _unit(s) / nonzero(jnp.sum(_unit(s)))
        return jnp.exp(-jnp.sum(jnp.where(p > 0, p * jnp.log(nonzero(p)), 0.0)))

    return _each(net, of)


def _spectrum(w: Array) -> Array:
    """Singular values, of the matrix scaled to be in range."""
    largest = nonzero(jnp.max(jnp.abs(w)))
    return largest * jnp.linalg.svd(w / largest, compute_uv=False)


def _each(net: AbstractNet, of: Callable[[Array], Array]) -> Array:
    return jnp.stack([of(_spectrum(w)) for w in net.weights])


def _unit(s: Array) -> Array:
    return s / nonzero(s[0])


def _top(s: Array, k: int) -> Array:
    return jnp.pad(s[:k], (0, max(0, k - s.shape[0])))
