"""Least squares in a box."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from .._numerics import nonzero
from .._types import Scalar, Sites, Vector


# In units of the precision, relative to what gradients are sums of.
_RESIDUAL = 20.0
_INNER_RESIDUAL = 2.0
_LINEARISATIONS = 30
_STEPS = 1000


def least_gradient(
    gradient_at: Callable[[Sites], tuple[Any, Sites]], start: Sites, unit: Scalar
) -> tuple[Sites, Bool[Array, ""]]:
    """The gates' openings in [0, 1] of least gradient, to the rounding of a sum of parts of
    the size `unit`, and whether they were found.

    Gauss–Newton: exact at once where the gradient is affine in them, as with one hidden
    layer, and quadratic where it is not: the gates that stay open or closed do not matter,
    and what the others add to second order is orthogonal to the least gradient.
    """
    o, unravel = ravel_pytree(start)
    eps = jnp.finfo(o.dtype).eps

    def value(o: Vector) -> tuple[Vector, Vector]:
        gradient, jumps = gradient_at(unravel(o))
        return ravel_pytree(gradient)[0], ravel_pytree(jumps)[0]

    unit = nonzero(unit)

    def improve(carry: tuple[Vector, Scalar, Array]) -> tuple[Vector, Scalar, Array]:
        o, _, i = carry
        y, linear, jumps = jax.linearize(value, o, has_aux=True)
        transpose = jax.linear_transpose(linear, o)
        # Each gate in units of what it does; those that do nothing stay.
        size = jumps / unit
        size = jnp.where(size > 100 * eps, size, 0.0)
        inverse = jnp.where(size > 0, 1 / nonzero(size), 0.0)
        y = y / unit
        best, residual = _box_least_squares(
            lambda v: linear(inverse * v) / unit,
            lambda w: inverse * transpose(w / unit)[0],
            y,
            size * o,
            size,
            _INNER_RESIDUAL * eps,
        )
        change = jnp.where(size > 0, inverse * best - o, 0.0)
        slope = y @ linear(change) / unit
        square = y @ y
        rounding = (_RESIDUAL * eps) ** 2 + _RESIDUAL * eps * jnp.sqrt(square)

        def too_far(t: Scalar) -> Array:
            moved = value(o + t * change)[0] / unit
            return (moved @ moved > square + 1e-4 * t * slope + rounding) & (t > eps)

        t = jax.lax.while_loop(too_far, lambda t: t / 2, jnp.ones((), o.dtype))
        return jnp.clip(o + t * change, 0, 1), residual, i + 1

    def going(carry: tuple[Vector, Scalar, Array]) -> Array:
        _, residual, i = carry
        return (residual > _RESIDUAL * eps) & (i < _LINEARISATIONS)

    begin = o, jnp.full_like(unit, jnp.inf), jnp.asarray(0, jnp.int32)
    o, residual, _ = jax.lax.while_loop(going, improve, begin)
    return unravel(o), residual <= _RESIDUAL * eps


def _box_least_squares(
    matvec: Callable[[Vector], Vector],
    adjoint: Callable[[Vector], Vector],
    y0: Vector,
    x0: Vector,
    upper: Vector,
    tolerance: Any,
) -> tuple[Vector, Scalar]:
    """argmin ½‖y0 + A (x − x0)‖² over 0 ≤ x ≤ upper, and how far x0 was from being it.

    Conjugate gradients on the coordinates inside the box; a step that would leave it ends
    at the wall and is followed by a projected gradient step, which gathers those that stay
    there; they are let go once that promises more (Dostál's MPRGP).
    """

    def gradient(x: Vector) -> Vector:
        return adjoint(y0 + matvec(x - x0))

    def distance(x: Vector, r: Vector) -> Scalar:
        return jnp.max(jnp.abs(x - jnp.clip(x - r, 0, upper)))

    def inside(x: Vector, r: Vector) -> Vector:
        return jnp.where((x > 0) & (x < upper), r, 0.0)

    def going(carry: tuple[Vector, Vector, Vector, Scalar, Array]) -> Array:
        x, r, _, _, i = carry
        return (distance(x, r) > tolerance) & (i < _STEPS)

    def step(
        carry: tuple[Vector, Vector, Vector, Scalar, Array],
    ) -> tuple[Vector, Vector, Vector, Scalar, Array]:
        x, r, p, largest, i = carry
        free = inside(x, r)
        inwards = jnp.where(x <= 0, jnp.minimum(r, 0), 0)
        inwards += jnp.where(x >= upper, jnp.maximum(r, 0), 0)
        reduced = jnp.clip(free, (x - upper) * largest, x * largest)
        staying = inwards @ inwards <= reduced @ free
        d = jnp.where(staying, p, inwards)
        image = matvec(d)
        curvature = image @ image
        # The largest eigenvalue of AᵀA as far as it was met
        largest = jnp.maximum(largest, curvature / nonzero(d @ d))
        length = jnp.where(curvature > 0, r @ d / nonzero(curvature), 0.0)
        wall = jnp.where(d > 0, x, x - upper) / nonzero(d)
        room = jnp.min(jnp.where(d != 0, wall, jnp.inf))
        fits = length <= room
        length = jnp.minimum(length, room)
        back = adjoint(image)
        x = jnp.clip(x - length * d, 0, upper)
        projected = jnp.clip(x - inside(x, r - length * back) / largest, 0, upper)
        x = jnp.where(staying & ~fits, projected, x)
        r = gradient(x)
        free = inside(x, r)
        conjugate = free - (free @ back) / nonzero(curvature) * d
        p = jnp.where(staying & fits, conjugate, free)
        return x, r, p, largest, i + 1

    r = adjoint(y0)
    one = jnp.ones((), x0.dtype)
    begin = x0, r, inside(x0, r), one, jnp.asarray(0, jnp.int32)
    x, *_ = jax.lax.while_loop(going, step, begin)
    return x, distance(x0, r)
