"""The gap between two trajectories."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nets import AbstractNet
from ._trajectory import Trajectory


class Distance(eqx.Module):
    """The gap between two trajectories over time.

    Attributes:
        ts: the times of the first trajectory that both cover, (T,).
        total: ‖θ_a − θ_b‖, (T,).
        layers: ‖W_l,a − W_l,b‖_F, (T, L).
    """

    ts: Float[Array, " times"]
    total: Float[Array, " times"]
    layers: Float[Array, "times layers"]


def distance(a: Trajectory, b: Trajectory) -> Distance:
    """The gap between two trajectories at the save times of the first, in its clock.

    Args:
        a: the first, whose saves are compared where b covers their times.
        b: the second, of a flow of the same kind and clock, and of such a net. Between its
            saves it is interpolated linearly; save it at the times of a (or densely) where
            that matters.

    Raises:
        ValueError: if the clocks or the nets differ, or no time is covered by both; on
            batches, whose lanes have times of their own.
    """
    for name, traj in (("a", a), ("b", b)):
        if traj.batch_shape:
            raise ValueError(
                f"{name} is a batch of shape {traj.batch_shape}; compare its lanes one by "
                f"one, {name}.lane(0)."
            )
    if (a.flow.clock_name, type(a.flow)) != (b.flow.clock_name, type(b.flow)):
        raise ValueError(
            f"a runs in the clock {a.flow.clock_name} of a {type(a.flow).__name__}, b in "
            f"{b.flow.clock_name} of a {type(b.flow).__name__}; compare two trajectories "
            "of one flow."
        )
    if jax.tree.structure(a.final) != jax.tree.structure(b.final):
        raise ValueError(f"a and b are of different nets: {a.final} and {b.final}.")
    # Sums of learning rates reach a common end only up to rounding.
    slack = 1e3 * jnp.finfo(a.ts.dtype).eps * jnp.abs(b.ts[-1])
    covered = (a.ts >= b.ts[0] - slack) & (a.ts <= b.ts[-1] + slack)
    if not covered.any():
        raise ValueError(
            f"a covers [{float(a.ts[0]):g}, {float(a.ts[-1]):g}] and b "
            f"[{float(b.ts[0]):g}, {float(b.ts[-1]):g}]: no common time."
        )
    ts = a.ts[covered]
    here = jax.tree.map(lambda rows: rows[covered], a.net)
    there = _interpolate(b, ts)
    gaps = jax.tree.map(lambda p, q: _norms(p - q), here, there)
    return Distance(
        ts=ts,
        total=jnp.linalg.norm(jnp.stack(jax.tree.leaves(gaps)), axis=0),
        layers=jax.vmap(_layer_gaps)(here, there),
    )


def _layer_gaps(here: AbstractNet, there: AbstractNet) -> Float[Array, " layers"]:
    pairs = zip(here.weights, there.weights, strict=True)
    return jnp.stack([jnp.linalg.norm(p - q) for p, q in pairs])


def _interpolate(traj: Trajectory, ts: Array):
    """The nets of a trajectory at other times, linear between its saves."""
    last = len(traj.ts) - 1
    before = jnp.clip(jnp.searchsorted(traj.ts, ts) - 1, 0, max(last - 1, 0))
    after = jnp.minimum(before + 1, last)
    # Of a single save, or of two at one time, there is nothing to interpolate.
    length = traj.ts[after] - traj.ts[before]
    weight = (ts - traj.ts[before]) / jnp.where(length > 0, length, 1.0)

    def between(rows: Array) -> Array:
        w = weight.reshape(-1, *[1] * (rows.ndim - 1))
        return (1 - w) * rows[before] + w * rows[after]

    return jax.tree.map(between, traj.net)


def _norms(rows: Array) -> Float[Array, " times"]:
    return jnp.sqrt(jnp.sum(rows**2, axis=tuple(range(1, rows.ndim))))
