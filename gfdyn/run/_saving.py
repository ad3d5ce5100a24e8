"""What is kept of a trajectory while it is integrated."""

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._numbers import check_count
from .._types import Count, Scalar
from ..flows import AbstractFlow
from ..kinks import GateState
from ..solvers import Step
from ._time import TimeRate


class AcceptedSteps(eqx.Module):
    """Save accepted steps, thinned to at most `capacity` of them.

    For runs whose end is not known: whenever the store is full, every second save is
    dropped and the stride doubled. Start and end are always kept.

    Raises:
        ValueError: unless `capacity` is an even number of at least 4.
    """

    capacity: int = eqx.field(static=True, default=256)

    def __check_init__(self):
        remedy = "must be an even number of at least 4."
        check_count("capacity", self.capacity, 4, remedy)
        if self.capacity % 2:
            raise ValueError(f"capacity={self.capacity} {remedy}")


class SaveTimes(eqx.Module):
    """Save at the first `number` of these times; there is room for more, at ∞."""

    times: Float[Array, " rows"]
    number: Count

    def with_room(self, rows: int) -> "SaveTimes":
        """The same concrete ones, with room for so many."""
        times = np.full(rows, np.inf, self.times.dtype)
        times[: len(self.times)] = self.times
        return SaveTimes(jax.device_put(times), self.number)

    def are_within(self, t0: Scalar, t1: Scalar) -> Bool[Array, ""]:
        """Whether they increase, from t0 to t1."""
        times = self.times
        # Grids made under jit may end a rounding error beyond t1.
        slack = 8 * jnp.finfo(times.dtype).eps * jnp.maximum(jnp.abs(t0), jnp.abs(t1))
        within = (times[0] >= t0 - slack) & (times[self.number - 1] <= t1 + slack)
        # One save has no differences; all of none are positive. Over no time all are one.
        is_room = jnp.arange(1, len(times), dtype=self.number.dtype) >= self.number
        return within & (jnp.all((jnp.diff(times) > 0) | is_room) | (t1 == t0))


class Saves(eqx.Module):
    """Rows written so far; row i is written once, at index i < count."""

    # Leading axis: rows. Arrays outside the loop, in-place buffers inside it.
    time: Any
    position: Any
    # None unless they are asked for
    gates: Any
    log_time: Any
    log_interval: Any
    count: Int[Array, ""]
    stride: Int[Array, ""]
    # log of the physical time since the last row.
    log_since: Scalar


def open_saves(position: Any, gates: GateState | None, num_rows: int, dtype: Any) -> Saves:
    """An empty store of `num_rows` rows, NaN where nothing is written."""
    column = jnp.full((num_rows,), jnp.nan, dtype)
    rows = jax.tree.map(
        lambda leaf: jnp.full((num_rows, *leaf.shape), jnp.nan, leaf.dtype), position
    )
    sides = jax.tree.map(lambda g: jnp.zeros((num_rows, *g.shape), g.dtype), gates)
    zero, one = jnp.asarray(0, jnp.int32), jnp.asarray(1, jnp.int32)
    since = jnp.asarray(-jnp.inf, dtype)
    return Saves(column, rows, sides, column, column, zero, one, since)


def write(
    saves: Saves,
    time: Scalar,
    position: Any,
    gates: GateState | None,
    log_time: Scalar,
    log_interval: Scalar,
) -> Saves:
    """The store with one more row."""
    i = saves.count

    def put(row: Array, rows: Any) -> Any:
        return rows.at[i].set(row)

    return Saves(
        put(time, saves.time),
        # The row comes first: inside the loop the rows are buffers, no plain arrays.
        jax.tree.map(put, position, saves.position),
        jax.tree.map(put, gates, saves.gates),
        put(log_time, saves.log_time),
        put(log_interval, saves.log_interval),
        i + 1,
        saves.stride,
        jnp.full_like(saves.log_since, -jnp.inf),
    )


def buffers(saves: Saves) -> Any:
    """The rows, which the loop may update in place."""
    return saves.time, saves.position, saves.gates, saves.log_time, saves.log_interval


def save_between(
    saves: Saves,
    ts: SaveTimes,
    flow: AbstractFlow,
    step: Step,
    start: Scalar,
    end: Scalar,
    rate: TimeRate,
    log_time: Scalar,
    loop_kind: str,
) -> Saves:
    """Write the rows of all save times in (start, end], by dense output."""
    size = rate.size

    def due(carry: tuple[Saves, Scalar]) -> Array:
        i = carry[0].count
        return (i < ts.number) & (ts.times[jnp.minimum(i, ts.number - 1)] <= end)

    def body(carry: tuple[Saves, Scalar]) -> tuple[Saves, Scalar]:
        saves, done = carry
        time = ts.times[saves.count]
        fraction = jnp.where(time == end, 1.0, (time - start) / size).astype(size.dtype)
        position = flow.retract(step.at(fraction * size).position)
        gates = None
        if saves.gates is not None:
            gates = step.gates_at(size - fraction * size)
        elapsed = rate.log_integral(fraction)
        since = _log_add(saves.log_since, _log_subtract(elapsed, done))
        total = _log_add(log_time, elapsed)
        return write(saves, time, position, gates, total, since), elapsed

    nothing = jnp.full_like(log_time, -jnp.inf)
    saves, done = eqxi.while_loop(
        due,
        body,
        (saves, nothing),
        max_steps=len(ts.times),
        buffers=lambda carry: buffers(carry[0]),
        kind=loop_kind,  # pyright: ignore[reportArgumentType]
    )
    remaining = _log_subtract(rate.log_integral(jnp.ones_like(size)), done)
    return eqx.tree_at(lambda s: s.log_since, saves, _log_add(saves.log_since, remaining))


def save_step(
    saves: Saves,
    num_accepted: Int[Array, ""],
    time: Scalar,
    position: Any,
    gates: GateState | None,
    log_time: Scalar,
    elapsed: Scalar,
) -> Saves:
    """Write the end of this step if the stride says so, making room where needed."""
    since = _log_add(saves.log_since, elapsed)
    saves = eqx.tree_at(lambda s: s.log_since, saves, since)
    saves = jax.lax.cond(
        saves.count == saves.time.shape[0], _drop_every_second, lambda s: s, saves
    )
    return jax.lax.cond(
        num_accepted % saves.stride == 0,
        lambda s: write(s, time, position, gates, log_time, s.log_since),
        lambda s: s,
        saves,
    )


def blank_unwritten(saves: Saves) -> Saves:
    """The store with NaN in the rows that are not written: thinning leaves old ones."""
    written = jnp.arange(saves.time.shape[0], dtype=saves.count.dtype) < saves.count

    def blank(rows: Array) -> Array:
        keep = written.reshape(-1, *[1] * (rows.ndim - 1))
        return jnp.where(keep, rows, jnp.asarray(jnp.nan, rows.dtype))

    where = lambda s: (s.time, s.position, s.log_time, s.log_interval)  # noqa: E731
    return eqx.tree_at(where, saves, jax.tree.map(blank, where(saves)))


def _drop_every_second(saves: Saves) -> Saves:
    half = saves.time.shape[0] // 2

    def thin(rows: Array) -> Array:
        return rows.at[:half].set(rows[::2])

    # A kept row's interval now reaches back over the dropped row before it.
    dropped = jnp.roll(saves.log_interval, 1)
    merged = _log_add(saves.log_interval, dropped)
    last = saves.log_interval[-1]
    return Saves(
        thin(saves.time),
        jax.tree.map(thin, saves.position),
        jax.tree.map(thin, saves.gates),
        thin(saves.log_time),
        thin(merged.at[0].set(saves.log_interval[0])),
        jnp.asarray(half, saves.count.dtype),
        2 * saves.stride,
        _log_add(saves.log_since, last),
    )


def _log_add(a: Array, b: Array) -> Array:
    return jnp.logaddexp(a, b)


def _log_subtract(a: Scalar, b: Scalar) -> Scalar:
    """log(eᵃ − eᵇ) for b ≤ a, −∞ where they are equal."""
    difference = jnp.minimum(b - a, 0.0)
    empty = difference == 0
    safe = jnp.where(empty | jnp.isnan(difference), -1.0, difference)
    log_rest = a + jnp.log(-jnp.expm1(safe))
    return jnp.where(empty, -jnp.inf, log_rest)
