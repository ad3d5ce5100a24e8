"""Extremal eigenvalues of a symmetric operator that is known by its products."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
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
        # The space is exhausted where only rounding is left: the chain ends there, in 0.
        length, whole = jnp.linalg.norm(w), jnp.linalg.norm(image)
        alive = length > _EXHAUSTED * jnp.finfo(dtype).eps * whole
        return (basis, jnp.where(alive, w / jnp.where(alive, length, 1.0), 0.0)), image

    first = jnp.zeros((iterations, size), dtype), start
    (basis, _), images = jax.lax.scan(step, first, jnp.arange(iterations))
    ritz = basis @ images.T
    # Rows after the end of the chain get a value from inside the spectrum.
    inside = jnp.sum(basis**2, axis=1)
    values = jnp.linalg.eigvalsh(ritz + jnp.diag((1 - inside) * ritz[0, 0]))
    return values[0], values[-1]
