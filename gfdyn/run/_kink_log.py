"""What happened at the kinks of a solve: its events, gates at the saves, time sliding."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int8

from .._by_layer import in_one_row
from .._types import Count, Scalar
from ..flows import AbstractFlow
from ..kinks import NONE, GateState, gate_values, live_gates, shared_kinks
from ..solvers import GateChanges, Step
from ._rows import first_rows


_CROSSING, _SLIDE, _RELEASE, _CHOICE = range(4)
# The fields of `Kinks` that have a row for each event
_EVENT_ROWS = ("time", "layer", "unit", "sample", "kind", "side", "other_side")
# Saves at which gates are found at a time, to bound the memory.
_BATCH = 8


class Kinks(eqx.Module):
    """The events at kinks of a solve, the gates at its saves, and the time spent sliding.

    Only gates that matter at the solve's tolerance are followed (see
    `gf.solvers.ExactKinks`); the others flip unseen. Where many kinks are crossed in one
    step, the times are second order in it.

    Under `jax.vmap` or `jax.jit` rows of events that did not happen have time NaN; a
    concrete trajectory holds only those that did, in the order of their times.

    Attributes:
        time: when, in the flow's clock, (E,).
        layer: the layer of the pre-activation, 1 … L−1, (E,).
        unit, sample: its unit and its sample, from 0, (E,).
        kind: an index into `Kinks.kinds`, (E,): the gate flipped, began to slide, was
            released; or did one of these where the flow is not unique (docs/algorithm.md).
        side: where the gate went on, an index into `Kinks.sides`, (E,).
        other_side: at a choice, where gradient descent may as well go on; -1 elsewhere,
            (E,).
        num_lost: how many further events the log had no room for.
        gates: the value of each gate at the saves, from the activation's slope to 1, a
            (T, N, n_l) array for each hidden layer.
        sliding: whether it slides there, in the same shapes.
        sliding_fraction: the part of the time during which each gate slid, a (N, n_l)
            array for each hidden layer.
    """

    kinds: ClassVar[tuple[str, ...]] = ("crossing", "slide", "release", "choice")
    sides: ClassVar[tuple[str, ...]] = ("off", "on", "sliding")

    time: Float[Array, "*batch events"]
    layer: Int[Array, "*batch events"]
    unit: Int[Array, "*batch events"]
    sample: Int[Array, "*batch events"]
    kind: Int[Array, "*batch events"]
    num_lost: Int[Array, "*batch"]
    gates: tuple[Float[Array, "*batch times samples _"], ...]
    sliding: tuple[Bool[Array, "*batch times samples _"], ...]
    sliding_fraction: tuple[Float[Array, "*batch samples _"], ...]
    # None in files of before these were kept
    side: Int8[Array, "*batch events"] | None = None
    other_side: Int8[Array, "*batch events"] | None = None


class KinkLog(eqx.Module):
    """The events so far. A site is counted through the layers, samples and units."""

    time: Float[Array, " capacity"]
    site: Int[Array, " capacity"]
    kind: Int[Array, " capacity"]
    side: Int8[Array, " capacity"]
    other_side: Int8[Array, " capacity"]
    count: Int[Array, ""]
    sliding_time: tuple[Float[Array, "samples _"], ...]


def open_log(flow: AbstractFlow, position: Any, capacity: int, dtype: Any) -> KinkLog:
    """A log without events."""
    gates = live_gates(flow, position)
    return KinkLog(
        time=jnp.full((capacity,), jnp.nan, dtype),
        site=jnp.zeros((capacity,), jnp.int32),
        kind=jnp.zeros((capacity,), jnp.int32),
        side=jnp.full((capacity,), NONE),
        other_side=jnp.full((capacity,), NONE),
        count=jnp.asarray(0, jnp.int32),
        sliding_time=tuple(jnp.zeros(on.shape, dtype) for on in gates.on),
    )


def log_step(log: KinkLog, step: Step, start: Scalar, end: Scalar) -> KinkLog:
    """The log with the events of an accepted step from `start` to `end`."""
    if step.changes is None:
        return log
    changes: GateChanges = jax.lax.stop_gradient(step.changes)
    start, end = jax.lax.stop_gradient((start, end))
    masks = (changes.crossed, changes.caught, changes.released, changes.chosen)
    happened = [in_one_row(mask) for mask in masks]
    any_kind = happened[0] | happened[1] | happened[2] | happened[3]
    since = in_one_row(changes.since)

    def write() -> KinkLog:
        kind = jnp.where(happened[1], _SLIDE, _CROSSING)
        kind = jnp.where(happened[2], _RELEASE, kind)
        kind = jnp.where(happened[3], _CHOICE, kind)
        row = log.count + jnp.cumsum(any_kind, dtype=jnp.int32) - 1
        row = jnp.where(any_kind, row, len(log.time))
        time = jnp.maximum(end - since, start)
        return KinkLog(
            log.time.at[row].set(time.astype(log.time.dtype), mode="drop"),
            log.site.at[row].set(jnp.arange(len(row), dtype=jnp.int32), mode="drop"),
            log.kind.at[row].set(kind, mode="drop"),
            log.side.at[row].set(in_one_row(changes.states), mode="drop"),
            log.other_side.at[row].set(in_one_row(changes.others), mode="drop"),
            log.count + jnp.sum(any_kind, dtype=jnp.int32),
            log.sliding_time,
        )

    def slid(during: Array, after: Array, since: Array) -> Array:
        until = (end - start) - jnp.where(after, 0.0, since)
        return jnp.where(during, until, jnp.where(after, since, 0.0))

    log = jax.lax.cond(jnp.any(any_kind), write, lambda: log)
    slid_now = jax.tree.map(
        slid, changes.during.sliding, changes.after.sliding, changes.since
    )
    total = jax.tree.map(jnp.add, log.sliding_time, slid_now)
    return eqx.tree_at(lambda k: k.sliding_time, log, total)


@eqx.filter_jit
def read_log(
    log: KinkLog,
    flow: AbstractFlow,
    final: Any,
    positions: Any,
    gates: GateState,
    duration: Scalar,
    capacity: Count,
) -> Kinks:
    """The log in terms of layers, units and samples, sorted by time, of so many events at
    most; with the value of each gate at the saves, of which there may be none."""
    lines = shared_kinks(flow.point(final), flow.problem.data.x)
    samples = len(flow.problem.data.x)

    def at(save: tuple[Any, GateState]) -> tuple[Array, ...]:
        position, held = save
        return gate_values(flow, position, held, lines)

    with jax.default_matmul_precision("highest"):
        values = jax.lax.map(at, (positions, gates), batch_size=_BATCH)
    has_room = jnp.arange(len(log.time), dtype=capacity.dtype) < capacity
    times = jnp.where(has_room, log.time, jnp.nan)
    order = jnp.argsort(times, stable=True)
    time, site, kind = times[order], log.site[order], log.kind[order]
    widths = [t.shape[1] for t in log.sliding_time]
    ends = [samples * sum(widths[: i + 1]) for i in range(len(widths))]
    layer = jnp.searchsorted(jnp.asarray(ends, jnp.int32), site, side="right")
    layer = layer.astype(jnp.int32)
    starts = jnp.asarray([0, *ends[:-1]], jnp.int32)
    sample, unit = jnp.divmod(site - starts[layer], jnp.asarray(widths, jnp.int32)[layer])
    lasted = jnp.where(duration > 0, duration, 1.0)
    return Kinks(
        time=time,
        layer=layer + 1,
        unit=unit,
        sample=sample,
        kind=kind,
        side=log.side[order],
        other_side=log.other_side[order],
        num_lost=jnp.maximum(log.count - capacity, 0),
        gates=values,
        sliding=gates.sliding,
        sliding_fraction=tuple(t / lasted for t in log.sliding_time),
    )


def written_rows(kinks: Kinks, saves: int) -> Kinks:
    """The rows of events that happened, of concrete kinks: those with a time; and the gates
    at so many saves."""
    count = int(np.sum(~np.isnan(np.asarray(kinks.time))))
    return dataclasses.replace(
        map_events(lambda rows: first_rows(rows, count), kinks),
        gates=first_rows(kinks.gates, saves),
        sliding=first_rows(kinks.sliding, saves),
    )


def map_events(function: Callable[..., Array], *kinks: Kinks) -> Kinks:
    """The last of them, its rows of events those that a function makes of the rows of all.

    What a file of an older version lacks stays away.
    """

    def rows(each: Kinks) -> dict[str, Array | None]:
        return {name: getattr(each, name) for name in _EVENT_ROWS}

    found = jax.tree.map(function, *map(rows, kinks))
    return dataclasses.replace(kinks[-1], **found)
