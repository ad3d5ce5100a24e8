"""Descents as the sweep computes them: begun, advanced in portions, concluded."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from ...descent import (
    NormScaledRate,
    Run,
    advance as _advance,
    begin as _begin,
    make_run,
    to_trajectory,
)
from ...nets import AbstractNet
from ...run import DescentState, Measure, Trajectory
from ..spec import DescentSettings, Point, Recipe, batch_key, make_net, make_problem


Start = tuple[AbstractNet, PRNGKeyArray]


class DescentTask(eqx.Module):
    """What stays constant, and how the steps are cut: `save_every` of them a row, and so
    many rows a portion. The last row may be shorter, and the last portion be filled up
    with rows of no steps."""

    run: Run
    steps: int = eqx.field(static=True)
    save_every: int = eqx.field(static=True)
    rows_per_portion: int = eqx.field(static=True)

    @property
    def num_rows(self) -> int:
        """How many there are, but for that of the start."""
        return -(-self.steps // self.save_every)

    @property
    def num_portions(self) -> int:
        """How many portions the rows make."""
        return -(-self.num_rows // self.rows_per_portion)


class DescentProgress(eqx.Module):
    """Where a descent stands, and the rows so far."""

    state: DescentState
    rows: Any


def build(point: Point, recipe: Recipe) -> tuple[DescentTask, Start]:
    """What stays constant during the run, and where it starts."""
    settings = point.run
    assert isinstance(settings, DescentSettings)
    net = make_net(point, recipe.dtype)
    rate = jnp.asarray(settings.learning_rate, recipe.dtype)
    decay, momentum = (
        value and jnp.asarray(value, recipe.dtype)
        for value in (settings.weight_decay, settings.momentum)
    )
    run = make_run(
        problem=make_problem(point.problem, recipe.dtype),
        net=net,
        optimizer=NormScaledRate(rate) if settings.norm_scaled else rate,
        batch_size=settings.batch_size,
        sampler="epoch_shuffle",
        momentum=momentum,
        weight_decay=decay,
        decay_mask=None,
    )
    save_every = -(-settings.steps // recipe.max_saves)
    num_rows = -(-settings.steps // save_every)
    per_portion = max(1, min(num_rows, recipe.checkpoint_every // save_every))
    return DescentTask(run, settings.steps, save_every, per_portion), (
        net,
        batch_key(point),
    )


@eqx.filter_jit
def begin(task: DescentTask, start: Start) -> DescentProgress:
    """The state before the first step, with room for all rows."""
    state = _begin(task.run, *start)
    length = task.num_portions * task.rows_per_portion + 1

    def column(leaf: Array) -> Array:
        return jnp.full((length, *leaf.shape), jnp.nan, leaf.dtype).at[0].set(leaf)

    return DescentProgress(state, jax.tree.map(column, (state.time, state.net)))


def until(
    task: DescentTask, progress: DescentProgress, recipe: Recipe
) -> tuple[Int[Array, ""], Int[Array, " rows"]]:
    """How many portions are done, and the steps of each row of the next one."""
    del recipe
    step = int(np.max(np.asarray(progress.state.step)))
    per_portion = task.save_every * task.rows_per_portion
    first = task.save_every * np.arange(task.rows_per_portion) + step
    steps = np.clip(task.steps - first, 0, task.save_every)
    done = jnp.asarray(step // per_portion, jnp.int32)
    return done, jnp.asarray(steps, jnp.int32)


@eqx.filter_jit
def advance(
    task: DescentTask,
    progress: DescentProgress,
    portion: tuple[Int[Array, ""], Int[Array, " rows"]],
) -> DescentProgress:
    """The next portion."""
    done, steps = portion
    state, saved = _advance(task.run, progress.state, steps)
    first = 1 + done * task.rows_per_portion

    def put(rows: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(rows, new, first, 0)

    return DescentProgress(state, jax.tree.map(put, progress.rows, saved))


def is_done(task: DescentTask, progress: DescentProgress) -> bool:
    """Whether all steps are taken."""
    return bool(np.all(np.asarray(progress.state.step) >= task.steps))


def conclude(
    task: DescentTask, progress: DescentProgress, records: Mapping[str, Measure]
) -> Trajectory:
    """The trajectory."""
    rows = jax.tree.map(lambda leaf: leaf[: task.num_rows + 1], progress.rows)
    return to_trajectory(task.run, progress.state, rows, records, throw=False)
