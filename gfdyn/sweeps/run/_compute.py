"""A batch of a sweep, from its settings to its files."""

import dataclasses
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import diagnostics
from ..._program_limit import make_room
from ...run import SUCCESSES, Trajectory, name_of, reason_of
from ..results import Store
from ..spec import DescentSettings, PointBatch, Recipe
from . import _descent_runs, _flow_runs
from ._lanes import each_lane, stack, unstack


if TYPE_CHECKING:
    import xarray as xr


@dataclasses.dataclass(frozen=True)
class PointOutcome:
    """How a point ended.

    Attributes:
        digest: the point's fingerprint.
        result: a name of `gf.RESULTS`; `error` if it could not be computed.
        reason: what that means; empty for a success.
    """

    digest: str
    result: str
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the end was reached, or a stop condition met."""
        return self.result in SUCCESSES


def compute_batch(store: Store, batch: PointBatch) -> list[PointOutcome]:
    """Integrate the points of a batch and keep them; a failing one is a row of its own.

    A batch that was interrupted goes on from its last checkpoint, to the last bit as if
    it had not been.
    """
    make_room()
    built, outcomes = [], []
    runs = _descent_runs if _is_descent(batch) else _flow_runs
    for digest, point in zip(batch.digests, batch.points, strict=True):
        try:
            built.append((digest, point, *runs.build(point, batch.recipe)))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            store.write_failure(digest, reason)
            outcomes.append(PointOutcome(digest, "error", reason))
    if not built:
        return outcomes
    trajectories = _integrate(runs, store, batch, [entry[2:] for entry in built])
    for (digest, point, *_), trajectory in zip(built, trajectories, strict=False):
        dataset = _label(trajectory, batch.recipe)
        store.write_point(digest, point, dataset)
        outcomes.append(PointOutcome(digest, dataset.result, dataset.reason))
    store.drop_checkpoint(batch.digest)
    return outcomes


def _is_descent(batch: PointBatch) -> bool:
    return isinstance(batch.points[0].run, DescentSettings)


def _integrate(
    runs: Any, store: Store, batch: PointBatch, built: list[tuple[Any, Any]]
) -> list[Trajectory]:
    """The trajectories, one after the other."""
    recipe = batch.recipe
    lanes, devices = recipe.lanes, recipe.devices
    # Lanes without a point repeat the first one.
    filled = built + built[:1] * (lanes - len(built))
    task, start = (stack(parts) for parts in zip(*filled, strict=True))
    state = each_lane(runs.begin, lanes, 1, task, start)
    saved = store.read_checkpoint(batch.digest, state)
    state = state if saved is None else saved
    while not runs.is_done(task, state):
        portion = runs.until(task, state, recipe)
        state = each_lane(runs.advance, lanes, devices, task, state, shared=(portion,))
        if not runs.is_done(task, state):
            store.write_checkpoint(batch.digest, state)
    records = {name: getattr(diagnostics, name) for name in recipe.records}
    end = each_lane(runs.conclude, lanes, 1, task, state, shared=(records,))
    host = jax.tree.map(lambda a: np.asarray(a) if eqx.is_array(a) else a, end)
    return [_on_device(_written(trajectory)) for trajectory in unstack(host, lanes)]


def _written(trajectory: Trajectory) -> Trajectory:
    """Without the rows that were not reached; in NumPy, where that compiles nothing."""
    count = int(np.isfinite(trajectory.ts).sum())

    def cut(rows: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[:count], rows)

    return eqx.tree_at(
        lambda t: (t.ts, t.positions, t.log_time, t.log_interval, t.records),
        trajectory,
        (
            cut(trajectory.ts),
            cut(trajectory.positions),
            cut(trajectory.log_time),
            trajectory.log_interval[: max(count - 1, 0)],
            cut(trajectory.records),
        ),
    )


def _on_device(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, tree
    )


def _label(trajectory: Trajectory, recipe: Recipe) -> "xr.Dataset":
    """The dataset of a point: records over the saves, and how it ended."""
    dataset = trajectory.to_xarray().drop_dims("interval")
    names = trajectory.final_direction.parameter_names
    if recipe.weights != "all":
        final = dataset[list(names)].isel(save=-1, drop=True)
        dataset = dataset.drop_vars(names)
        if recipe.weights == "final":
            dataset = dataset.merge(final.reset_coords(drop=True))
    # netCDF takes dims without length for such as may grow.
    empty = [dim for dim, size in dataset.sizes.items() if size == 0]
    dataset = dataset.drop_dims(empty)
    dataset.attrs |= {
        "result": name_of(trajectory.result),
        "reason": reason_of(trajectory.result),
        "initial_risk": float(trajectory.initial_risk),
        "final_risk": float(trajectory.final_risk),
    }
    for name in ("flow", "net", "solver", "rtol"):
        del dataset.attrs[name]  # the settings of the point name it
    return dataset
