"""Eigenvalues of a symmetric operator that is known by its products."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float


# What is left of an image counts as rounding below this many times the precision.
_EXHAUSTED = 100


def extremal_eigenvalues(
    product: Callable[[Array], Array], like: Float[Array, " size"], iterations: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The smallest and the largest eigenvalue, by Lanczos from a fixed random vector.

    Full reorthogonalisation; exact once `iterations` reaches the size of `like`, which
    gives size and dtype. Both are approached from inside the spectrum.
    """
    basis, ritz = _projected(
        product, like, iterations, lambda i, basis: jnp.zeros_like(like)
    )
    # Rows after the end of the chain get a value from inside the spectrum.
    inside = jnp.sum(basis**2, axis=1)
    values = jnp.linalg.eigvalsh(ritz + jnp.diag((1 - inside) * ritz[0, 0]))
    return values[0], values[-1]


def largest_eigenvalues(
    product: Callable[[Array], Array],
    like: Float[Array, " size"],
    count: int,
    iterations: int,
) -> Float[Array, " count"]:
    """The largest eigenvalues from the largest on, by the same method; where the chain ends
    it goes on from another random vector, which finds further ones of equal size."""

    def fresh(i: Array, basis: Array) -> Array:
        drawn = jr.normal(jr.fold_in(jr.key(0), i), like.shape, like.dtype)
        return _apart(drawn, basis)

    _, ritz = _projected(product, like, iterations, fresh)
    return jnp.linalg.eigvalsh(ritz)[::-1][:count]


def _projected(
    product: Callable[[Array], Array],
    like: Array,
    iterations: int,
    fresh: Callable[[Array, Array], Array],
) -> tuple[Float[Array, "iterations size"], Float[Array, "iterations iterations"]]:
    """An orthonormal basis, and the operator in it; `fresh` gives the next vector where the
    chain ends, or 0."""
    size, dtype = like.size, like.dtype
    iterations = min(iterations, size)
    # A constant of the compiled program, which need not draw it.
    start = np.random.default_rng(0).normal(size=size)
    start = jnp.asarray(start / np.linalg.norm(start), dtype)

    def step(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], Array]:
        basis, q = carry
        basis = basis.at[i].set(q)
        image = product(q)
        w = image
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        # The space is exhausted where only rounding is left: the chain ends there.
        length, whole = jnp.linalg.norm(w), jnp.linalg.norm(image)
        alive = length > _EXHAUSTED * jnp.finfo(dtype).eps * whole
        after = w / jnp.where(alive, length, 1.0)
        return (basis, jnp.where(alive, after, fresh(i, basis))), image

    first = jnp.zeros((iterations, size), dtype), start
    (basis, _), images = jax.lax.scan(step, first, jnp.arange(iterations))
    return basis, basis @ images.T


def _apart(vector: Array, basis: Array) -> Array:
    """A unit vector in the direction of one, apart from a basis."""
    for _ in range(2):
        vector = vector - basis.T @ (basis @ vector)
    length = jnp.linalg.norm(vector)
    return vector / jnp.where(length > 0, length, 1.0)
