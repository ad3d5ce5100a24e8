"""Extremal eigenvalues of a symmetric operator that is known by its products."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def extremal_eigenvalues(
    product: Callable[[Array], Array], like: Float[Array, " size"], iterations: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The smallest and the largest eigenvalue, by Lanczos from a fixed random vector.

    Full reorthogonalisation; exact once `iterations` reaches the size of `like`, which
    gives size and dtype. Both are approached from inside the spectrum.
    """
    size, dtype = like.size, like.dtype
    iterations = min(iterations, size)
    # A constant of the compiled program, which need not draw it.
    start = np.random.default_rng(0).normal(size=size)
    basis = np.zeros((iterations + 1, size))
    basis[0] = start / np.linalg.norm(start)
    basis = jnp.asarray(basis, dtype)

    def step(
        carry: tuple[Array, Array], i: Array
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        basis, scale = carry
        w = product(basis[i])
        scale = jnp.maximum(scale, jnp.max(jnp.abs(w)))
        diagonal = w @ basis[i]
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        length = jnp.linalg.norm(w)
        # The space is exhausted when nothing is left: the chain ends there.
        alive = length > jnp.finfo(dtype).eps * scale
        following = jnp.where(alive, w / jnp.where(alive, length, 1.0), 0.0)
        basis = basis.at[i + 1].set(following)
        return (basis, scale), (diagonal, jnp.where(alive, length, 0.0))

    first = basis, jnp.zeros((), dtype)
    _, (diagonal, off) = jax.lax.scan(step, first, jnp.arange(iterations))
    # Rows after the end of the chain get a value from inside the spectrum.
    inside = jnp.cumprod(jnp.concatenate([jnp.ones((1,), dtype), jnp.sign(off[:-1])]))
    diagonal = jnp.where(inside > 0, diagonal, diagonal[0])
    tridiagonal = jnp.diag(diagonal) + jnp.diag(off[:-1], 1) + jnp.diag(off[:-1], -1)
    values = jnp.linalg.eigvalsh(tridiagonal)
    return values[0], values[-1]
