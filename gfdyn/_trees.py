"""Sums and products of trees of arrays, of one structure."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ._types import Scalar


def dot(a: PyTree, b: PyTree) -> Scalar:
    """⟨a, b⟩ over all parameters."""
    products = jax.tree.map(lambda p, q: jnp.sum(p * q), a, b)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


def axpy(factor: Scalar, a: PyTree, b: PyTree) -> PyTree:
    """factor · a + b."""
    return jax.tree.map(lambda p, q: factor * p + q, a, b)
