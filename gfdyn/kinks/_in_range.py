"""Of all multipliers that hold a regime, those that come nearest to being in range."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._numerics import nonzero
from .._types import Scalar
from ._tangent import Row, Square, holding


# Changes of multipliers that move nothing
Free = Float[Array, "sites free"]

# So many such directions are kept.
_MOST_FREE = 32
# So many times weak (G + weak)⁻¹ is brought nearer to a projection: its eigenvalues below
# ½ to 0, those above to 1.
_PURIFIED = 8
# Steps by Levenberg and Marquardt for a piecewise quadratic function, and how much each is
# damped: Newton's is exact where the signs of all Ψ stay as they are.
_STEPS = 40
_DAMPED = (1e-8, 1e-4, 1e-2, 0.1, 1.0, 10.0, 1e2, 1e4)


def free_multipliers(gram: Square, held: Bool[Array, " sites"], weak: Row) -> Free:
    """A basis of the changes δ of the multipliers of the sites held that move nothing,
    |G δ| ≤ weak |δ|; columns of 0 complete it.

    There are such where normals depend on each other. Then multipliers are not unique.
    The columns are those of the Cholesky factor, by pivots, of the projection on these
    changes; orthonormal in units of weak^-½, as that is one. It is √weak (G + weak)⁻¹ √weak
    with each eigenvalue taken to 0 or to 1 (McWeeny).
    """
    root = jnp.sqrt(nonzero(jnp.where(held, weak, 0.0)))
    scaled = jnp.diag(jnp.where(held, root, 0.0))
    onto = root[:, None] * holding(gram, held, weak).damped(scaled)
    largest = jnp.max(jnp.where(held, root, 0.0))
    for _ in range(_PURIFIED):
        square = onto @ onto
        onto = 3 * square - 2 * square @ onto

    def column(rest: Square, _: None) -> tuple[Square, Array]:
        pivot = jnp.argmax(jnp.diagonal(rest))
        size = rest[pivot, pivot]
        # A projection other than 0 has a diagonal element of at least 1/n.
        free = size > 0.5 / len(held)
        found = jnp.where(free, rest[:, pivot] / jnp.sqrt(jnp.where(free, size, 1.0)), 0.0)
        return rest - found[:, None] * found[None, :], found

    columns = jax.lax.scan(column, onto, None, length=most_free(len(held)))[1]
    return columns.T * (largest / root)[:, None]


def most_free(sites: int) -> int:
    """How many such changes are kept."""
    return min(_MOST_FREE, sites)


def into_range(
    free: Free,
    psi: Float[Array, " directions"],
    change: Float[Array, "directions sites"],
    weight: Float[Array, " directions"],
) -> Row:
    """The change of multipliers that moves nothing and makes negative Ψ least, by weighted
    least squares; `change` is how the Ψ of each direction changes with them."""
    along = weight[:, None] * (change @ free)
    damping = jnp.asarray(_DAMPED, psi.dtype) * jnp.max(weight) ** 2
    unit = jnp.eye(free.shape[1], dtype=psi.dtype)

    def solve(factor: Array, right: Array) -> Array:
        return jax.scipy.linalg.cho_solve((factor, True), right)

    def missing(delta: Array) -> Float[Array, " directions"]:
        return jnp.minimum(weight * psi + along @ delta, 0.0)

    def size(delta: Array) -> Scalar:
        return jnp.sum(missing(delta) ** 2)

    def going(carry: tuple[Array, Scalar, Scalar, Array]) -> Array:
        _, now, before, steps = carry
        return (now < before) & (steps < _STEPS)

    def step(
        carry: tuple[Array, Scalar, Scalar, Array],
    ) -> tuple[Array, Scalar, Scalar, Array]:
        delta, before, _, steps = carry
        short = missing(delta)
        counted = jnp.where((short < 0)[:, None], along, 0.0)
        square = (counted.T @ counted)[None] + damping[:, None, None] * unit[None]
        towards = jnp.broadcast_to(counted.T @ short, (len(damping), len(delta)))
        factor = jnp.linalg.cholesky(square)
        tried = delta[None, :] - jax.vmap(solve)(factor, towards)
        sizes = jax.vmap(size)(tried)
        best = jnp.nanargmin(sizes)
        better = sizes[best] < before
        after = jnp.where(better, tried[best], delta)
        return after, jnp.where(better, sizes[best], before), before, steps + 1

    start = jnp.zeros(free.shape[1], psi.dtype)
    now = size(start)
    carry = (start, now, jnp.full_like(now, jnp.inf), jnp.asarray(0))
    return free @ jax.lax.while_loop(going, step, carry)[0]
