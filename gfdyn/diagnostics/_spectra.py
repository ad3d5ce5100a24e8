"""Singular values of the weight matrices, and measures of rank."""

from collections.abc import Callable
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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


def singular_values(
    problem: Problem, net: AbstractNet, k: int = 10
) -> Float[Array, "layers k"]:
    """The k largest singular values of each W_l, falling; 0 beyond its smaller side."""
    del problem
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
    """The number of singular values of W_l above `threshold`, after division by nothing,
    by the spectral norm, or by the Frobenius norm (as in Galanti & Poggio's code).

    Raises:
        ValueError: on an unknown normalisation.
    """
    del problem
    check_normalisation(normalisation)
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
