"""What happened at the kinks of a solve: its events, gates at the saves, time sliding."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .flows import AbstractFlow
from .kinks import GateState, gate_values, lines_of, live_gates
from .solvers import GateChanges, Step


Scalar = Float[Array, ""]

_CROSSING, _SLIDE, _RELEASE = range(3)
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
        kind: an index into `Kinks.kinds`: the gate flipped, began to slide, was released,
            (E,).
        num_lost: how many further events the log had no room for.
        gates: the value of each gate at the saves, from the activation's slope to 1, a
            (T, N, n_l) array for each hidden layer.
        sliding: whether it slides there, in the same shapes.
        sliding_fraction: the part of the time during which each gate slid, a (N, n_l)
            array for each hidden layer.
    """

    kinds: ClassVar[tuple[str, ...]] = ("crossing", "slide", "release")

    time: Float[Array, "*batch events"]
    layer: Int[Array, "*batch events"]
    unit: Int[Array, "*batch events"]
    sample: Int[Array, "*batch events"]
    kind: Int[Array, "*batch events"]
    num_lost: Int[Array, "*batch"]
    gates: tuple[Float[Array, "*batch times samples _"], ...]
    sliding: tuple[Bool[Array, "*batch times samples _"], ...]
    sliding_fraction: tuple[Float[Array, "*batch samples _"], ...]


class KinkLog(eqx.Module):
    """The events so far. A site is counted through the layers, samples and units."""

    time: Float[Array, " capacity"]
    site: Int[Array, " capacity"]
    kind: Int[Array, " capacity"]
    count: Int[Array, ""]
    sliding_time: tuple[Float[Array, "samples _"], ...]


def open_log(flow: AbstractFlow, position: Any, capacity: int, dtype: Any) -> KinkLog:
    """A log without events."""
    gates = live_gates(flow, position)
    return KinkLog(
        time=jnp.full((capacity,), jnp.nan, dtype),
        site=jnp.zeros((capacity,), jnp.int32),
        kind=jnp.zeros((capacity,), jnp.int32),
        count=jnp.asarray(0, jnp.int32),
        sliding_time=tuple(jnp.zeros(on.shape, dtype) for on in gates.on),
    )


def log_step(log: KinkLog, step: Step, start: Scalar, end: Scalar) -> KinkLog:
    """The log with the events of an accepted step from `start` to `end`."""
    if step.changes is None:
        return log
    changes: GateChanges = jax.lax.stop_gradient(step.changes)
    start, end = jax.lax.stop_gradient((start, end))
    masks = (changes.crossed, changes.caught, changes.released)
    happened = [jnp.concatenate([jnp.ravel(m) for m in mask]) for mask in masks]
    any_kind = happened[0] | happened[1] | happened[2]
    since = jnp.concatenate([jnp.ravel(s) for s in changes.since])

    def write() -> KinkLog:
        kind = jnp.where(happened[1], _SLIDE, _CROSSING)
        kind = jnp.where(happened[2], _RELEASE, kind)
        row = log.count + jnp.cumsum(any_kind, dtype=jnp.int32) - 1
        row = jnp.where(any_kind, row, len(log.time))
        time = jnp.maximum(end - since, start)
        return KinkLog(
            log.time.at[row].set(time.astype(log.time.dtype), mode="drop"),
            log.site.at[row].set(jnp.arange(len(row), dtype=jnp.int32), mode="drop"),
            log.kind.at[row].set(kind, mode="drop"),
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
) -> Kinks:
    """The log in terms of layers, units and samples, sorted by time; with the value of
    each gate at the saves, of which there may be none."""
    lines = lines_of(flow.point(final), flow.problem.data.x)
    samples = len(flow.problem.data.x)

    def at(save: tuple[Any, GateState]) -> tuple[Array, ...]:
        position, held = save
        return gate_values(flow, position, held, lines)

    with jax.default_matmul_precision("highest"):
        values = jax.lax.map(at, (positions, gates), batch_size=_BATCH)
    order = jnp.argsort(log.time, stable=True)
    time, site, kind = log.time[order], log.site[order], log.kind[order]
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
        num_lost=jnp.maximum(log.count - len(time), 0),
        gates=values,
        sliding=gates.sliding,
        sliding_fraction=tuple(t / lasted for t in log.sliding_time),
    )


def written_events(kinks: Kinks, log: KinkLog) -> Kinks:
    """The rows of events that happened."""
    count = min(int(log.count), len(kinks.time))
    rows = ("time", "layer", "unit", "sample", "kind")
    return eqx.tree_at(
        lambda k: [getattr(k, name) for name in rows],
        kinks,
        [getattr(kinks, name)[:count] for name in rows],
    )
