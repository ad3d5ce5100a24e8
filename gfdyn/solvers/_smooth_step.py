"""A step under fixed gates, by Tsit5 or, where stability limits its steps, by Chebyshev.

Methods other than Tsit5 are left to themselves: of them there is no `Stiffness`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._by_layer import per_layer
from .._types import Count, Scalar
from ..flows import State
from ..kinks import FieldEvaluation
from ._adaptive import Adaptive
from ._chebyshev import ERROR_ORDER, chebyshev_step, error_of
from ._dense_output import of_ends, of_tsit5
from ._runge_kutta import FixedGates, SmoothStep, explicit_step
from ._stiffness import Stiffness, radius_seen


# How much longer a Chebyshev step may be than the last one went
_MOST_GROWTH = 4.0


def before_step(
    stiffness: Stiffness | None,
    velocity: Callable[[Any], State],
    position: Any,
    size: Scalar,
) -> tuple[Stiffness | None, Scalar, Count]:
    """What is known of stiffness, the size of which a step may be, and in how many field
    evaluations that was found."""
    if stiffness is None:
        return None, size, jnp.asarray(0, jnp.int32)
    stiffness, cost = stiffness.up_to_date(velocity, position)
    return stiffness, stiffness.within_stability(size), cost


def smooth_step(
    steps: Adaptive,
    field: FixedGates,
    start: State,
    first: FieldEvaluation,
    size: Scalar,
    stiffness: Stiffness | None,
    loop_kind: str,
) -> tuple[SmoothStep, float | Scalar, Scalar]:
    """The step, the order of its error estimate, and the spectral radius that stages of
    Tsit5 have seen, 0 without them."""
    method: Any = steps.method
    unseen = jnp.zeros_like(size)
    if stiffness is None:
        smooth = explicit_step(method, field, start, first, size)
        return smooth, steps.error_order, unseen

    def by_tsit5() -> tuple[SmoothStep, Scalar, Scalar]:
        smooth = explicit_step(method, field, start, first, size)
        stages = smooth.interpolation.k
        output = of_tsit5(stages, start, size)
        smooth = eqx.tree_at(lambda s: s.interpolation, smooth, output)
        order = jnp.full_like(size, steps.error_order)
        return smooth, order, radius_seen(stages.position, size)

    def by_chebyshev() -> tuple[SmoothStep, Scalar, Scalar]:
        smooth = _stabilised(field, start, first, size, stiffness.stages(size), loop_kind)
        return smooth, jnp.full_like(size, ERROR_ORDER), unseen

    return jax.lax.cond(stiffness.stiff, by_chebyshev, by_tsit5)


def after_step(
    stiffness: Stiffness | None,
    seen: Scalar,
    accepted: Bool[Array, ""],
    went: Scalar,
    next_size: Scalar,
) -> tuple[Stiffness | None, Scalar]:
    """Which method takes the next step, and the size of that, after a step of which it went
    so far, and saw this spectral radius.

    A Chebyshev step grows in cost with its length, of which an event may leave a part: it
    is at most four times as long as the last one went.
    """
    if stiffness is None:
        return None, next_size
    went = jnp.where(accepted, went, 0.0)
    farthest = jnp.maximum(_MOST_GROWTH * went, stiffness.shortest)
    limited = stiffness.stiff & accepted
    next_size = jnp.where(limited, jnp.minimum(next_size, farthest), next_size)
    after = jax.lax.cond(
        stiffness.stiff,
        lambda: stiffness.after_chebyshev(accepted, next_size),
        lambda: stiffness.after_tsit5(seen, accepted, went),
    )
    return after, next_size


def _stabilised(
    field: FixedGates,
    start: State,
    first: FieldEvaluation,
    size: Scalar,
    stages: Count,
    kind: str,
) -> SmoothStep:
    """A Chebyshev step of so many stages from a state where the field is known."""

    def field_at(position: Any, elapsed: Scalar) -> tuple[State, FieldEvaluation]:
        guess = per_layer(lambda n, rate: n + elapsed * rate, first.nu, field.nu_rate)
        found = field.evaluate(position, guess)
        return found.velocity, found

    beginning = first.velocity, first
    end, (velocity, last) = chebyshev_step(field_at, start, beginning, size, stages, kind)
    velocities = (first.velocity, velocity)
    return SmoothStep(
        end,
        error_of(start, end, *velocities, size),
        of_ends(start, end, *velocities, size),
        last,
        stages.astype(size.dtype),
    )
