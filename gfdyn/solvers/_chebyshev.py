"""One step of the Runge–Kutta–Chebyshev method, for fields that are stiff and smooth.

Its s stages buy stability along the negative real axis up to (2/3)(s² − 1), where those of
other explicit pairs buy it up to about s/2: so it is for the Jacobians of gradient flows,
which are symmetric, and on plateaus, where accuracy would allow steps far longer than
stability does. Of order 2, with an embedded error.

B. P. Sommeijer, L. F. Shampine, J. G. Verwer, "RKC: an explicit solver for parabolic PDEs",
J. Comput. Appl. Math. 88 (1998).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Count, Scalar
from ..flows import State


# The most stages of a step: one of 200 is stable up to size · radius = 26 000.
MOST_STAGES = 200
# Of the error estimate, h³y'''/15 to leading order
ERROR_ORDER = 3.0
# Damping of the stability polynomial, and the part of (s² − 1) up to which it is stable.
_DAMPING = 2 / 13
_REACH = 2 / 3 * (1 - 2 / 15 * _DAMPING)


def stages_for(size: Scalar, radius: Scalar) -> Count:
    """The fewest stages with which a step is stable, at a spectral radius; 2 at least."""
    stages = jnp.ceil(jnp.sqrt(1 + size * radius / _REACH))
    return jnp.clip(stages, 2, MOST_STAGES).astype(jnp.int32)


def longest_stable(radius: Scalar) -> Scalar:
    """The longest step that is stable at a spectral radius."""
    reach = _REACH * (MOST_STAGES**2 - 1)
    return reach / jnp.maximum(radius, reach * jnp.finfo(radius.dtype).tiny)


def error_of(start: State, end: State, first: State, last: State, size: Scalar) -> State:
    """The estimated error of a step between these velocities."""
    return jax.tree.map(
        lambda y0, y1, f0, f1: 0.8 * (y0 - y1) + 0.4 * size * (f0 + f1),
        start,
        end,
        first,
        last,
    )


def chebyshev_step(
    field: Callable[[Any, Scalar], tuple[State, Any]],
    start: State,
    first: tuple[State, Any],
    size: Scalar,
    stages: Count,
    loop_kind: str,
) -> tuple[State, tuple[State, Any]]:
    """Where a step of so many stages leads, and the field there, from a state where the
    field is known.

    `field(position, elapsed)` is the velocity at a position so far into the step, and what
    else is to be known of the field there.
    """
    # Defined from two stages on; lanes that go through none must stay finite all the same.
    shifted = _DampedPolynomial(jnp.maximum(stages, 2).astype(size.dtype))
    zero = jnp.zeros_like(size)

    def combine(weights: tuple[Scalar, ...], moves: Any, fs: Any) -> Any:
        """Y_j − Y_0 from those of stages (j − 1, j − 2) and from (F_{j−1}, F_0)."""
        mu, nu, speed, offset = weights
        return jax.tree.map(
            lambda d1, d2, f1, f0: mu * d1 + nu * d2 + size * (speed * f1 + offset * f0),
            *moves,
            *fs,
        )

    def moved(by: State) -> State:
        return jax.tree.map(jnp.add, start, by)

    def stage(carry: Any) -> Any:
        j, moves, times, recurrence, _ = carry
        recurrence = recurrence.next(shifted)
        weights = recurrence.weights(shifted)
        there = field(moved(moves[0]).position, times[0])
        move = combine(weights, moves, (there[0], first[0]))
        unit = jnp.ones_like(size)
        time = combine(weights, times, (unit, unit))
        return j + 1, (move, moves[0]), (time, times[0]), recurrence, there

    beginning = _Recurrence.first(shifted)
    elapsed = size * shifted.scale / shifted.origin
    one = jax.tree.map(lambda f0: elapsed * f0, first[0])
    none = jax.tree.map(jnp.zeros_like, start)
    carry = (jnp.asarray(2, jnp.int32), (one, none), (elapsed, zero), beginning, first)
    # One stage beyond the last looks at the field where that led.
    _, (_, move), _, _, last = eqxi.while_loop(
        lambda carry: carry[0] <= stages + 1,
        stage,
        carry,
        max_steps=MOST_STAGES,
        kind=loop_kind,  # pyright: ignore[reportArgumentType]
    )
    return moved(move), last


class _DampedPolynomial(eqx.Module):
    """T_s(w₀ + w₁ z), whose w₀ > 1 damps, and whose w₁ gives it the right slopes at 0."""

    origin: Scalar
    scale: Scalar

    def __init__(self, stages: Scalar):
        excess = _DAMPING / stages**2
        # w₀² − 1 and arccosh w₀ without cancellation
        square = excess * (2 + excess)
        root = jnp.sqrt(square)
        angle = stages * jnp.log1p(excess + root)
        sinh, cosh = jnp.sinh(angle), jnp.cosh(angle)
        self.origin = 1 + excess
        # w₁ = T_s'/T_s'' at w₀
        self.scale = sinh * square / (cosh * stages * root - self.origin * sinh)


class _Recurrence(eqx.Module):
    """T_j, T_j', T_j'' at w₀ and b_j, of stages j, j − 1 and j − 2, and a_j of j − 1."""

    values: Float[Array, " 3"]
    slopes: Float[Array, " 3"]
    bends: Float[Array, " 3"]
    b: Float[Array, " 3"]
    a_before: Scalar

    @classmethod
    def first(cls, shifted: _DampedPolynomial) -> "_Recurrence":
        """At j = 1."""
        w = shifted.origin
        one, zero = jnp.ones_like(w), jnp.zeros_like(w)
        # b_0 = b_2, whose T_2'' = 4 and T_2' = 4 w₀.
        b = jnp.stack([1 / w, 1 / (4 * w**2), zero])
        return cls(
            jnp.stack([w, one, zero]),
            jnp.stack([one, zero, zero]),
            jnp.stack([zero, zero, zero]),
            b,
            zero,
        )

    def next(self, shifted: _DampedPolynomial) -> "_Recurrence":
        """From j to j + 1."""
        w = shifted.origin
        value = 2 * w * self.values[0] - self.values[1]
        slope = 2 * (w * self.slopes[0] + self.values[0]) - self.slopes[1]
        bend = 2 * (w * self.bends[0] + 2 * self.slopes[0]) - self.bends[1]
        b = bend / slope**2
        a = 1 - self.b[0] * self.values[0]

        def onwards(new: Scalar, row: Array) -> Array:
            return jnp.concatenate([new[None], row[:-1]])

        return _Recurrence(
            onwards(value, self.values),
            onwards(slope, self.slopes),
            onwards(bend, self.bends),
            onwards(b, self.b),
            a,
        )

    def weights(self, shifted: _DampedPolynomial) -> tuple[Scalar, ...]:
        """Of Y_{j−1} − Y_0, Y_{j−2} − Y_0, h F_{j−1} and h F_0 in Y_j − Y_0.

        In Y_j itself rounding would add up to s² times the precision of Y_0, also where
        nothing moves.
        """
        b, before, two_before = self.b[0], self.b[1], self.b[2]
        mu = 2 * b * shifted.origin / before
        nu = -b / two_before
        speed = 2 * b * shifted.scale / before
        return mu, nu, speed, -self.a_before * speed
