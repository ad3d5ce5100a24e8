"""Risk and norm along a solve, at its steps and not at its saves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Count, Scalar
from ._rows import first_rows


# Points that are kept; even, as every second one is dropped when there are more
_CAPACITY = 512


class Course(eqx.Module):
    """Risk and norm at the accepted steps of a solve, start and end among them; thinned
    evenly to at most 513.

    Attributes:
        ts: when, in the flow's clock, (C,).
        log_time: log of the physical time since the start, (C,).
        risk: the risk, with its penalty (L₀(ρ) for a localized flow), (C,).
        log_norm: log ‖θ‖, (C,).
    """

    ts: Float[Array, "*batch points"]
    log_time: Float[Array, "*batch points"]
    risk: Float[Array, "*batch points"]
    log_norm: Float[Array, "*batch points"]


class CourseSoFar(eqx.Module):
    """The points that were kept: row i is that of accepted step i · `stride`."""

    rows: Float[Array, "capacity 4"]
    stride: Count

    def after(self, step: Count, point: Float[Array, " 4"]) -> "CourseSoFar":
        """With the point after this accepted step, if its number is a multiple of the
        stride, which doubles where there are too many."""
        capacity = len(self.rows)
        full = step // self.stride >= capacity
        stride = jnp.where(full, 2 * self.stride, self.stride)
        half = self.rows[::2]
        rows = jnp.where(full, jnp.concatenate([half, half]), self.rows)
        place = jnp.where(step % stride == 0, step // stride, capacity)
        return CourseSoFar(rows.at[place].set(point, mode="drop"), stride)

    def length(self, step: Count) -> Count:
        """How many points the course up to this step has."""
        return 1 - (-step // self.stride)

    def until(self, step: Count, point: Float[Array, " 4"]) -> Course:
        """The course up to this step, the last one; NaN in the rows beyond."""
        end = self.length(step) - 1
        rows = jnp.concatenate([self.rows, self.rows[-1:]]).at[end].set(point)
        beyond = jnp.arange(len(rows), dtype=end.dtype) > end
        rows = jnp.where(beyond[:, None], jnp.asarray(jnp.nan, rows.dtype), rows)
        return Course(*rows.T)


def course_from(point: Float[Array, " 4"]) -> CourseSoFar:
    """A course with no point but its first."""
    rows = jnp.zeros((_CAPACITY, 4), point.dtype).at[0].set(point)
    return CourseSoFar(rows, jnp.asarray(1, jnp.int32))


def point_of(
    time: Scalar, log_time: Scalar, risk: Scalar, log_norm: Scalar
) -> Float[Array, " 4"]:
    """A point of a course, a constant to derivatives, in the dtype of the clock."""
    numbers = [x.astype(time.dtype) for x in (time, log_time, risk, log_norm)]
    return jax.lax.stop_gradient(jnp.stack(numbers))


def without_rest(course: Course) -> Course:
    """A concrete course without the rows beyond its end."""
    return first_rows(course, int(np.sum(~np.isnan(np.asarray(course.ts)))))


def joined(first: Course | None, then: Course | None) -> Course | None:
    """Two courses as one, where the one ends and the other begins; None without both."""
    if first is None or then is None:
        return None
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[1:]]), first, then)
