"""The flow from one change of what rests to the next."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ..._types import Scalar
from ...flows import BranchFlow
from ...nets import AbstractNet
from ...problem import Problem
from ...run import AcceptedSteps, Trajectory, solve
from ...solvers import AbstractSolver
from ._stops import Grown, Released, Settled


# The share at which a branch is negligible, as a part of the force that releases those at
# rest: what releases them is not.
_NEGLIGIBLE = 0.1


class ChainSettings(eqx.Module):
    """How the legs of a chain are solved; see `chain`."""

    problem: Problem
    solver: AbstractSolver
    rest: Scalar
    release: Scalar
    max_steps: int
    saves: int

    @property
    def negligible(self) -> Scalar:
        """The share below which a branch is negligible."""
        return _NEGLIGIBLE * self.release


class Leg(eqx.Module):
    """The flow between two changes of what rests, and when it started.

    Attributes:
        trajectory: the flow; its times are since the start of the leg.
        log_start: log of the physical time before, −∞ at the origin.
    """

    trajectory: Trajectory
    log_start: float

    @property
    def settled(self) -> bool:
        """Whether it ended as branches came to rest, and not as some were released."""
        return self.trajectory.stopped_by == "Settled"

    @property
    def log_time(self) -> np.ndarray:
        """log of the physical time since the origin, at the saves."""
        return np.logaddexp(self.log_start, np.asarray(self.trajectory.log_time))

    @property
    def log_end(self) -> float:
        """The same at its end."""
        return float(np.logaddexp(self.log_start, self.trajectory.final_log_time))

    @property
    def log_radii(self) -> np.ndarray:
        """log r_b at the saves, (S, B)."""
        return np.asarray(self.trajectory.positions.log_radii)

    @property
    def risk(self) -> np.ndarray:
        """R at the saves."""
        flow, positions = self.trajectory.flow, self.trajectory.positions
        return np.asarray(jax.vmap(flow.risk)(positions))


def next_leg(
    settings: ChainSettings,
    net: AbstractNet,
    resting: Bool[Array, " branches"],
    start: float,
) -> Leg:
    """The flow from a net until what rests changes."""
    stops = (
        Settled(resting, settings.rest, settings.release, settings.negligible),
        Released(resting, settings.release),
        Grown(jnp.full_like(resting, jnp.inf, _dtype(net))),
    )
    return Leg(_solve(settings, net, resting, stops), start)


def log_time_grown(
    settings: ChainSettings, leg: Leg, branch: int, log_radius: float
) -> float:
    """log of the physical time since the origin at which a branch has grown to log r_b."""
    flow: Any = leg.trajectory.flow
    row = int(np.argmax(leg.log_radii[:, branch] >= log_radius)) - 1
    if row < 0:
        return float(leg.log_time[0])
    position = jax.tree.map(lambda leaf: leaf[row], leg.trajectory.positions)
    net, resting = flow.net(position), flow.resting
    targets = jnp.full_like(resting, jnp.inf, _dtype(net)).at[branch].set(log_radius)
    never = jnp.asarray(-jnp.inf, _dtype(net))
    # The conditions of a leg, so that its program serves; the first two are never met.
    stops = (
        Settled(resting, never, never, never),
        Released(resting, -never),
        Grown(targets),
    )
    rest = _solve(settings, net, resting, stops)
    return float(np.logaddexp(leg.log_time[row], rest.final_log_time))


def _solve(
    settings: ChainSettings, net: AbstractNet, resting: Bool[Array, " branches"], stops: Any
) -> Trajectory:
    return solve(
        BranchFlow(settings.problem, resting),
        net,
        jnp.inf,
        ts=AcceptedSteps(settings.saves),
        solver=settings.solver,
        stop=stops,
        max_steps=settings.max_steps,
    )


def _dtype(net: AbstractNet) -> Any:
    return jax.tree.leaves(net)[0].dtype
