"""Trajectories compared where they have the same risk, whatever their clocks say."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ...flows import AbstractFlow
from ...nets import AbstractNet
from ...run import Trajectory


# Halvings of a step: past the last bit of float64.
_HALVINGS = 60


def aligned(trajectory: Trajectory, risks: ArrayLike | Sequence[float]) -> AbstractNet:
    """The nets θ at which the risk first falls to given values, leading axis M.

    Between saves positions follow the cubic with the velocities of the flow at either
    end, to fourth order in the distance of the saves (second across a kink).
    Initialisations that tend to one escape direction at ever smaller scale leave
    along it at ever later times, but pass ever closer to the same nets (Bantzis et al.,
    section 2).

    Args:
        trajectory: of one run, best saved at its accepted steps.
        risks: the values, (M,), each below the risk at the first save and no less than the
            smallest at a save.

    Raises:
        ValueError: on a batch of trajectories, or if a risk is not passed.
    """
    if trajectory.ts.ndim != 1:
        raise ValueError(
            f"trajectory is a batch of shape {trajectory.ts.shape[:-1]}; take one of them, "
            "trajectory.lane(0)."
        )
    levels = jnp.asarray(risks, trajectory.ts.dtype)
    if levels.ndim != 1:
        raise ValueError(f"risks has shape {levels.shape}; give a vector, (M,).")
    passed = np.asarray(jax.lax.map(trajectory.flow.risk, trajectory.positions))
    reached = passed[None, :] <= np.asarray(levels)[:, None]
    never = ~reached.any(axis=1) | reached[:, 0]
    if never.any():
        raise ValueError(
            f"risks holds {float(levels[int(np.argmax(never))]):.6g}, which the trajectory "
            f"does not fall to: its risk goes from {passed[0]:.6g} to {passed.min():.6g}."
        )
    after = np.argmax(reached, axis=1)
    starts = jax.tree.map(lambda leaf: leaf[after - 1], trajectory.positions)
    ends = jax.tree.map(lambda leaf: leaf[after], trajectory.positions)
    sizes = trajectory.ts[after] - trajectory.ts[after - 1]
    return _nets(trajectory.flow, starts, ends, sizes, levels)


@eqx.filter_jit
def _nets(
    flow: AbstractFlow, starts: Any, ends: Any, sizes: Array, levels: Array
) -> AbstractNet:
    """The nets of each risk on the steps from `starts` to `ends`."""

    def of(start: Any, end: Any, size: Array, level: Array) -> AbstractNet:
        before, behind = flow.velocity(start).position, flow.velocity(end).position

        def position(part: Array) -> Any:
            return jax.tree.map(
                lambda p, q, v, w: _cubic(part, p, q, size * v, size * w),
                *(start, end, before, behind),
            )

        def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = 0.5 * (low + high)
            above = flow.risk(position(middle)) > level
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        whole = (jnp.zeros_like(size), jnp.ones_like(size))
        return flow.net(position(jax.lax.fori_loop(0, _HALVINGS, halve, whole)[1]))

    with jax.default_matmul_precision("highest"):
        return jax.vmap(of)(starts, ends, sizes, levels)


def _cubic(
    part: Float[Array, ""], p: Array, q: Array, v: Array, w: Array
) -> Float[Array, "*shape"]:
    """Hermite's cubic on [0, 1] from p with slope v to q with slope w."""
    rest = 1 - part
    ends = p + part**2 * (3 - 2 * part) * (q - p)
    return ends + part * rest * (rest * v - part * w)
