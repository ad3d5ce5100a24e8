"""When the neurons of a trajectory pass from cone to cone."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ..._numbers import check_count
from ...flows import GradientFlow
from ...nets import MLP
from ...problem import Problem
from ...run import Kinks, solve
from ...solvers import AbstractSolver
from ._cones import CONES
from ._setting import two_neurons


class ConeLog(eqx.Module):
    """The mask flips of a trajectory of two neurons.

    Attributes:
        time: of each event, (E,).
        neuron, point: whose mask, 0 or 1, (E,).
        kind: an index into `gf.Kinks.kinds`: the mask flipped, began to slide on the kink
            w·x = 0, was released from it, (E,).
        on: whether each neuron sees each point before the first event, between one and
            the next, and after the last, (E+1, neuron, point).
        sliding: whether it slides on that kink, in the same shape.
    """

    time: Float[Array, " events"]
    neuron: Int[Array, " events"]
    point: Int[Array, " events"]
    kind: Int[Array, " events"]
    on: Bool[Array, "spans neurons points"]
    sliding: Bool[Array, "spans neurons points"]

    @property
    def cones(self) -> list[tuple[str, ...]]:
        """The cone of each neuron in each span, E+1 of them, by its name in `CONES`.

        A neuron that slides is on the border of two: "1|B" slides on the kink of x_2.
        """
        return [
            tuple(_name(*neuron) for neuron in zip(on, sliding, strict=True))
            for on, sliding in zip(
                np.asarray(self.on), np.asarray(self.sliding), strict=True
            )
        ]

    def __repr__(self) -> str:
        """A line an event: when, which neuron and point, what, and the cones after it."""
        spans = [" ".join(cones) for cones in self.cones]
        lines = [f"start: {spans[0]}"]
        for i, time in enumerate(np.asarray(self.time)):
            what = Kinks.kinds[int(self.kind[i])]
            who = f"neuron {int(self.neuron[i]) + 1}, point {int(self.point[i]) + 1}"
            lines.append(f"t = {time:.6g}: {who}, {what}: {spans[i + 1]}")
        return "\n".join(lines)


def cone_log(
    problem: Problem,
    net: MLP,
    t1: ArrayLike,
    *,
    solver: AbstractSolver | None = None,
    capacity: int = 64,
) -> ConeLog:
    """The mask flips of the flow from a net up to t1.

    Solved twice, the second time with a save between any two events, where the masks are
    read off. Events at one time have the same cones after them.

    Args:
        t1: the end, in physical time.
        solver: as in `gf.solve`.
        capacity: how many events there is room for, 1 or more.

    Raises:
        TypeError, ValueError: see `two_neurons`; unless `capacity` is an integer of at
            least 1, and there are no more events.
        SolveError: if the solve fails.
    """
    two_neurons(problem, net)
    check_count("capacity", capacity, 1, "must be 1 or more events to have room for.")
    flow = GradientFlow(problem)
    end = float(np.asarray(t1))

    def events_of(ts: Any) -> tuple[Kinks, Any]:
        traj = solve(
            flow,
            net,
            t1=end,
            ts=ts,
            kinks=capacity,
            solver=solver,
            derivatives="forward",
        )
        assert traj.kinks is not None
        return traj.kinks, traj.net

    # Of one shape whatever happens, so that both solves are one compiled program.
    kinks, _ = events_of(np.linspace(0, end, capacity + 3)[1:-1])
    if int(kinks.num_lost):
        raise ValueError(
            f"capacity={capacity} leaves out {int(kinks.num_lost)} events; raise it."
        )
    times = np.asarray(kinks.time)
    edges = np.unique(np.concatenate([[0.0], times, [end]]))
    middles = (edges[1:] + edges[:-1]) / 2
    spare = np.linspace(middles[-1], end, capacity + 2 - len(middles))[1:]
    again, nets = events_of(np.concatenate([middles, spare]))
    sliding = np.asarray(again.sliding[0]).swapaxes(1, 2)
    on = np.einsum("tnd,pd->tnp", nets.weights[0], problem.data.x) > 0
    # The spans that begin at the start and at each event.
    spans = np.searchsorted(edges[:-1], np.concatenate([[0.0], times]), side="left")
    return ConeLog(
        time=kinks.time,
        neuron=kinks.unit,
        point=kinks.sample,
        kind=kinks.kind,
        on=jnp.asarray((on & ~sliding)[spans]),
        sliding=jnp.asarray(sliding[spans]),
    )


def _name(on: Any, sliding: Any) -> str:
    """The cone, or the two on whose border a sliding neuron is."""
    codes = np.array([1, 2])
    below, above = np.sum(codes * on), np.sum(codes * (on | sliding))
    return CONES[below] if below == above else f"{CONES[below]}|{CONES[above]}"
