"""Of all multipliers that hold a regime, those nearest to being in range."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import nonzero
from .._types import Scalar
from ._letting_go import LettingGo
from ._normals import Held, Row, Square, holding
from ._slots import BLOCK
from ._tangent import TangentNetwork


# Changes of multipliers that move nothing
Free = Float[Array, "sites free"]

# How many times multipliers are brought nearer to their range.
_ROUNDS = 4
# Multipliers are looked for again, at most so often, while some are more than twice as
# large as it was taken that they would be.
_LOOKS = 12
# So many times weak (G + weak)⁻¹ is brought nearer to a projection: its eigenvalues below
# ½ to 0, those above to 1.
_PURIFIED = 8
# Steps by Levenberg and Marquardt for a piecewise quadratic function, and how much each is
# damped: Newton's is exact where the signs of all Ψ stay as they are.
_STEPS = 40
_DAMPED = (1e-8, 1e-4, 1e-2, 0.1, 1.0, 10.0, 1e2, 1e4)


class InRange(eqx.Module):
    """Multipliers that hold a regime, with the signals and Ψ under them."""

    nu: Row
    signal: Row
    psi: Float[Array, " directions"]


class _Ranging(eqx.Module):
    """The same on their way, those that come next, and what may be added to them."""

    next: Row
    now: InRange
    free: Free
    rounds: Int[Array, ""]


def in_range(
    letting_go: LettingGo,
    held: Held,
    given: Row,
    nu: Row,
    weight: Float[Array, " directions"],
    rounding: Row,
) -> InRange:
    """The multipliers, of all that hold a regime as some do that hold rates given, under
    which least of the Ψ by which sites may be let go is negative, where that has a weight.
    """
    counts = (weight > 0).reshape(4, -1)

    def closer(carry: _Ranging) -> _Ranging:
        nu, free = carry.next, carry.free
        signal, which, psi = letting_go.under(nu)
        out = jnp.any(counts & (psi.reshape(4, -1) < -rounding[None, :]))
        # Those that were brought nearer once are brought as near as they come.
        far = (carry.rounds < _ROUNDS) & ((carry.rounds > 0) | out)
        free = jax.lax.cond(
            far & (carry.rounds == 0),
            lambda: free_multipliers(letting_go, held, given),
            lambda: free,
        )
        after = jax.lax.cond(
            far & jnp.any(free != 0),
            lambda: nu + into_range(free, psi, letting_go.change_of_psi(which), weight),
            lambda: nu,
        )
        return _Ranging(after, InRange(nu, signal, psi), free, carry.rounds + 1)

    def going(carry: _Ranging) -> Array:
        moved = jnp.any(carry.next != carry.now.nu) & (carry.rounds <= _ROUNDS)
        return (carry.rounds == 0) | moved

    unknown = InRange(nu, nu, jnp.zeros_like(weight))
    start = _Ranging(nu, unknown, jnp.zeros_like(held.gram), jnp.asarray(0))
    return jax.lax.while_loop(going, closer, start).now


def needed_size(
    t: TangentNetwork, gram: Square, held: Bool[Array, " sites"], given: Row
) -> Row:
    """How large multipliers ν must be to hold some sites up to rounding, |given - G ν| ≲
    rounding.

    Where normals are almost parallel, rates that differ by less than their rounding would
    take multipliers of any size to be held to the last digit.
    """

    def going(carry: tuple[Row, Row, Array]) -> Array:
        needed, size, looks = carry
        larger = jnp.any(needed > 2 * size)
        return (looks == 0) | (larger & (looks < _LOOKS))

    def look(carry: tuple[Row, Row, Array]) -> tuple[Row, Row, Array]:
        needed, _, looks = carry
        size = jnp.maximum(t.largest_signal, needed)
        found = holding(gram, held, t.weak(gram, size)).damped(given)
        return jnp.abs(found), size, looks + 1

    nothing = jnp.zeros_like(given)
    return jax.lax.while_loop(going, look, (nothing, nothing, jnp.asarray(0)))[0]


def free_multipliers(letting_go: LettingGo, held: Held, given: Row) -> Free:
    """A basis of the changes δ of the multipliers of all that slides that move nothing,
    |G δ| ≤ weak |δ|, as large as they must be to hold rates given; columns of 0 complete
    it.

    There are such where normals depend on each other. Then multipliers are not unique.
    The columns are those of the Cholesky factor, by pivots, of the projection on these
    changes; orthonormal in units of weak^-½, as that is one. It is √weak (G + weak)⁻¹ √weak
    with each eigenvalue taken to 0 or to 1 (McWeeny).
    """
    t, gram, slides = letting_go.t, held.gram, letting_go.together
    weak = t.weak(gram, needed_size(t, gram, held.held, given))
    root = jnp.sqrt(nonzero(jnp.where(slides, weak, 0.0)))
    scaled = jnp.diag(jnp.where(slides, root, 0.0))
    onto = root[:, None] * holding(gram, slides, weak).damped(scaled)
    largest = jnp.max(jnp.where(slides, root, 0.0))
    for _ in range(_PURIFIED):
        square = onto @ onto
        onto = 3 * square - 2 * square @ onto

    def pivots(carry: tuple[Square, Square, Array]) -> Array:
        rest, _, found = carry
        # A projection other than 0 has a diagonal element of at least 1/n.
        return (jnp.max(jnp.diagonal(rest)) > 0.5 / len(root)) & (found < len(root))

    def pivot(carry: tuple[Square, Square, Array]) -> tuple[Square, Square, Array]:
        rest, columns, found = carry
        at = jnp.argmax(jnp.diagonal(rest))
        column = rest[:, at] / jnp.sqrt(rest[at, at])
        rest = rest - column[:, None] * column[None, :]
        return rest, columns.at[:, found].set(column), found + 1

    nothing = jnp.zeros_like(onto)
    columns = jax.lax.while_loop(pivots, pivot, (onto, nothing, jnp.asarray(0)))[1]
    return columns * (largest / root)[:, None]


def into_range(
    free: Free,
    psi: Float[Array, " directions"],
    change: Float[Array, "directions sites"],
    weight: Float[Array, " directions"],
) -> Row:
    """The change of multipliers that moves nothing and makes negative Ψ least, by weighted
    least squares; `change` is how the Ψ of each direction changes with them."""
    few = free[:, :BLOCK]
    return jax.lax.cond(
        jnp.any(free[:, BLOCK:] != 0),
        lambda: _into_range(free, psi, change, weight),
        lambda: _into_range(few, psi, change, weight),
    )


def _into_range(
    free: Free,
    psi: Float[Array, " directions"],
    change: Float[Array, "directions sites"],
    weight: Float[Array, " directions"],
) -> Row:
    """The same with all columns."""
    along = weight[:, None] * (change @ free)
    weighted = jnp.where(weight > 0, weight * psi, jnp.inf)
    damping = jnp.asarray(_DAMPED, psi.dtype) * jnp.max(weight) ** 2
    unit = jnp.eye(free.shape[1], dtype=psi.dtype)

    def solve(factor: Array, right: Array) -> Array:
        return jax.scipy.linalg.cho_solve((factor, True), right)

    def missing(delta: Array) -> Float[Array, " directions"]:
        return jnp.minimum(weighted + along @ delta, 0.0)

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
