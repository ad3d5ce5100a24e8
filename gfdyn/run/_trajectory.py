"""What a solve gives back."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._tracing import is_concrete
from ..flows import AbstractFlow
from ..nets import AbstractNet
from ..problem import Problem
from ._certificate import Certificate
from ._compiling import tracing
from ._course import Course, without_rest
from ._descent_state import DescentState
from ._files import write_file
from ._kink_log import Kinks, written_rows
from ._labelling import to_xarray
from ._lanes import lane
from ._results import RESULTS, is_ok, raise_if
from ._rows import first_rows
from ._summary import summary


if TYPE_CHECKING:
    import xarray as xr


Measure = Callable[[Problem, AbstractNet], PyTree[Array]]

# Saves measured at a time, to bound the memory of activations.
_BATCH = 32


class Trajectory(eqx.Module):
    """A trajectory of gradient flow, sampled at the times `ts`.

    Under `jax.vmap` or `jax.jit` rows that were not reached are NaN; a concrete
    trajectory holds only rows that were.

    Attributes:
        ts: save times in the flow's clock, (T,).
        positions: what the flow moves, leading axis T.
        log_time: log of the physical time since the start, (T,), −∞ at the start.
        log_interval: log of the physical time between neighbouring saves, (T−1,).
        records: what was asked for by `record`, leading axis T.
        initial_risk, final_risk: the risk where the solve began and ended (L₀(ρ) for a
            localized flow).
        initial_time, final_time: where the solve began and ended, in the flow's clock.
        stats: counts: `num_steps` (accepted), `num_rejected`, `num_field_evaluations`
            (passes forward and back, products with Jᵀ and J among them),
            `num_crossings`, `num_slides`, `num_releases`; and `num_compilations`, how many
            programs were compiled on the way, 0 where all were there.
        result: how it ended, one of `gf.RESULTS`.
        stop_index: which stop condition was met, −1 for none.
        certificate: three numbers that vanish for the exact flow, how often it was not
            unique, and whether what was decided at kinks was verified.
        kinks: what was asked for by `kinks`, None otherwise.
        checkpoint: where it stands, from which `gf.solve` goes on, or `gf.descend` if it is
            a descent.
        solver: the name of what integrated it; "descent" of one, "unknown" in files that
            do not say.
        rtol: the relative tolerance of the solver; 0 where there is none.
        course: risk and norm at its steps, whatever the saves; None of a descent.
    """

    flow: AbstractFlow
    ts: Float[Array, "*batch times"]
    positions: Any
    log_time: Float[Array, "*batch times"]
    log_interval: Float[Array, "*batch intervals"]
    records: dict[str, PyTree[Array]]
    initial_risk: Float[Array, "*batch"]
    final_risk: Float[Array, "*batch"]
    final_time: Float[Array, "*batch"]
    final_log_time: Float[Array, "*batch"]
    final_position: Any
    stats: dict[str, Int[Array, "*batch"]]
    result: Any
    stop_index: Int[Array, "*batch"]
    certificate: Certificate
    stop_names: tuple[str, ...] = eqx.field(static=True)
    kinks: Kinks | None = None
    checkpoint: Any = None
    initial_time: Float[Array, "*batch"] | float = 0.0
    solver: str = eqx.field(static=True, default="unknown")
    rtol: Float[Array, "*batch"] | float = 0.0
    course: Course | None = None

    @property
    def problem(self) -> Problem:
        """The problem that was solved."""
        return self.flow.problem

    @property
    def net(self) -> AbstractNet:
        """The nets θ at the save times, leading axis T."""
        return jax.vmap(self.flow.net)(self.positions)

    @property
    def direction(self) -> AbstractNet:
        """ρ at the save times, leading axis T.

        Raises:
            AttributeError: unless the flow is an EscapeFlow.
        """
        return self._polar("direction").direction

    @property
    def log_radius(self) -> Float[Array, " times"]:
        """log r at the save times, (T,), r = ‖θ‖/√L.

        Raises:
            AttributeError: unless the flow is an EscapeFlow.
        """
        return self._polar("log_radius").log_radius

    @property
    def final(self) -> AbstractNet:
        """The net θ where the solve ended."""
        return self.flow.net(self.final_position)

    @property
    def final_direction(self) -> AbstractNet:
        """A net on the ray of `final`, safe from underflow: ρ for an EscapeFlow, θ else."""
        return self.flow.direction(self.final_position)

    @property
    def stopped_by(self) -> str | None:
        """The name of the stop condition that ended the solve, if one did."""
        index = int(self.stop_index)
        return self.stop_names[index] if index >= 0 else None

    @property
    def is_descent(self) -> bool:
        """Whether it is one of `gf.descend`, and no flow."""
        return isinstance(self.checkpoint, DescentState)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of a batch that `jax.vmap` made; () of a single trajectory."""
        return self.final_time.shape

    def lane(self, *index: int) -> "Trajectory":
        """One trajectory of a batch, with the rows that were reached.

        Raises:
            IndexError: unless there is an index in range for each axis of the batch.
        """
        shape = self.batch_shape
        inside = [-n <= i < n for i, n in zip(index, shape, strict=False)]
        if len(index) != len(shape) or not all(inside):
            raise IndexError(
                f"lane{index}: this is a batch of shape {shape}; give an index for each of "
                "its axes."
            )
        return reached(lane(self, index))

    def measure(self, function: Measure) -> PyTree[Array]:
        """`function(problem, net)` at every save, stacked along a leading axis T."""
        return measure(hashable(function), self.flow, self.positions)

    def summary(self) -> str:
        """How the solve went, in a few lines of text."""
        return summary(self)

    def to_xarray(self) -> "xr.Dataset":
        """The trajectory as a labelled dataset: dims, units and settings named."""
        return to_xarray(self)

    def save(self, path: str | os.PathLike) -> None:
        """Write it to a netCDF file, from which `gf.load` restores it.

        The file holds the dataset of `to_xarray` for other tools, and beside it the
        group that `gf.load` reads. It is complete or not there at all.
        """
        fields = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        write_file(path, self.to_xarray(), fields)

    def _polar(self, name: str) -> Any:
        if not self.flow.is_polar:
            raise AttributeError(
                f"a trajectory of a {type(self.flow).__name__} has no {name}; "
                "integrate an EscapeFlow, or use net."
            )
        return self.positions


def hashable(function: Measure) -> Measure:
    """The same function, comparable by value if it is a `functools.partial`, so that a
    second solve with an equal one does not compile again."""
    keywords = getattr(function, "keywords", None)
    if keywords is None:
        return function
    return eqx.Partial(function.func, *function.args, **keywords)  # pyright: ignore


class SolveError(RuntimeError):
    """A solve that failed; what was integrated is in `trajectory`."""

    def __init__(self, trajectory: Trajectory):
        message = RESULTS[trajectory.result]
        super().__init__(
            f"{message} (at {trajectory.flow.clock_name} = "
            f"{float(trajectory.final_time):.6g} after "
            f"{int(trajectory.stats['num_steps'])} steps; throw=False keeps what was "
            "computed, and so does the `trajectory` of this exception.)"
        )
        self.trajectory = trajectory


def raise_unless_ok(trajectory: Trajectory) -> Trajectory:
    """The trajectory itself, or a SolveError (an equinox error under jit) if it failed."""
    result = trajectory.result
    if is_concrete(result._value):
        if not is_ok(result):
            raise SolveError(trajectory)
        return trajectory
    failed = (result != RESULTS.successful) & (result != RESULTS.stopped)
    advice = "throw=False keeps what was computed, and when."
    return raise_if(failed, result, trajectory, advice)


def reached(traj: Trajectory) -> Trajectory:
    """A concrete trajectory without the rows that were not reached, which are NaN."""
    saves = int(np.sum(~np.isnan(np.asarray(traj.ts))))
    intervals = max(saves - 1, 0)
    kinks = None if traj.kinks is None else written_rows(traj.kinks, saves)
    return dataclasses.replace(
        traj,
        ts=first_rows(traj.ts, saves),
        positions=first_rows(traj.positions, saves),
        log_time=first_rows(traj.log_time, saves),
        log_interval=first_rows(traj.log_interval, intervals),
        records=first_rows(traj.records, saves),
        kinks=kinks,
        course=None if traj.course is None else without_rest(traj.course),
    )


def with_compilations(trajectory: Trajectory, count: int) -> Trajectory:
    """The trajectory, with how many programs were compiled on the way."""
    stats = trajectory.stats | {"num_compilations": jnp.asarray(count, jnp.int32)}
    return eqx.tree_at(lambda t: t.stats, trajectory, stats)


def checked_record(record: Mapping[str, Measure] | None) -> Mapping[str, Measure]:
    """The records as they are, none if None.

    Raises:
        TypeError: unless they are functions by name.
    """
    if record is None:
        return {}
    named = isinstance(record, Mapping) and all(map(callable, record.values()))
    if not named:
        raise TypeError(
            f"record={record!r} must be functions by name, function(problem, net), such as "
            "{'risk': gf.diagnostics.risk}."
        )
    return record


@eqx.filter_jit
def measure(function: Measure, flow: AbstractFlow, positions: Any) -> PyTree[Array]:
    """`function(problem, net)` at each position, in batches."""

    tracing()

    def at(position: Any) -> PyTree[Array]:
        found = function(flow.problem, flow.net(position))
        for leaf in jax.tree.leaves(found):
            if not eqx.is_array_like(leaf):
                raise TypeError(
                    f"{function} returned {leaf!r}; a record is a function(problem, net) "
                    "that returns arrays, or a pytree of them."
                )
        return found

    with jax.default_matmul_precision("highest"):
        return jax.lax.map(at, positions, batch_size=_BATCH)
