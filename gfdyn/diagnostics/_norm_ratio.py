"""How near each weight matrix is to rank one, by the ratio of two norms."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nets import AbstractNet, norm
from ..problem import Problem


def norm_ratio(problem: Problem, net: AbstractNet) -> Float[Array, " layers"]:
    r"""$\rho_l = \|W_l\|_2 / \|W_l\|_F \le 1$, l = 1, …, L; 0 for a zero matrix.

    1 exactly at rank one, and $\text{stable rank}^{-1/2}$ in general.
    """
    del problem
    return jnp.stack([_of(w) for w in net.weights])


def mean_norm_ratio(problem: Problem, net: AbstractNet) -> Float[Array, ""]:
    r"""$\frac1L \sum_l \|W_l\|_2 / \|W_l\|_F$ (Timor et al., eqs. 3 and 7).

    One over it is the harmonic mean of $\|W_l\|_F / \|W_l\|_2$, of eqs. 4 and 8.
    """
    return jnp.mean(norm_ratio(problem, net))


def _of(w: Array) -> Array:
    """Computed in range, whatever the scale."""
    size = norm(w)
    return jnp.linalg.norm(w / jnp.where(size > 0, size, 1), ord=2)
