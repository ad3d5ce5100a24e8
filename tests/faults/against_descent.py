"""Where the exact flow ends, and where gradient descent of ever smaller steps does."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from plain_nets import outputs
from structured import STRUCTURES, drawn
from table import Outcome

import gfdyn as gf


T1 = 10.0
RTOL = 1e-6
# The error that is promised, in units of rtol.
PROMISED = 30
# Steps of descent, and those for flows that are not where the first lead to, of which so
# many run side by side.
COARSE, FINER = 5e-4, (1e-4, 2e-5)
LANES = 4
# Descent chatters across kinks as far apart as its steps, as if they were one. It tells
# samples apart whose distance is so many steps.
APART = 10


@dataclasses.dataclass(frozen=True)
class Ends:
    """Where one flow ends, and where two descents do; the step of the finer one, and the
    distance of the two samples that are closest, but not the same."""

    flow: np.ndarray
    coarse: np.ndarray
    fine: np.ndarray
    step: float
    gap: float

    @property
    def distances(self) -> tuple[float, float, float]:
        """From the flow to the finer descent, to the limit that both lead to, and from one
        descent to the other, all of them relative."""
        limit = 2 * self.fine - self.coarse
        pairs = (self.flow, self.fine), (self.flow, limit), (self.coarse, self.fine)
        size = np.linalg.norm(self.fine)
        a, b, c = (float(np.linalg.norm(p - q) / size) for p, q in pairs)
        return a, b, c

    @property
    def in_line(self) -> bool:
        """Whether the flow ends where the descents lead to, to what it promises, or as
        near as their steps tell."""
        near, limit, _ = self.distances
        return min(near, limit) <= max(PROMISED * RTOL, 0.5 * self.step)

    @property
    def undecided(self) -> bool:
        """Whether the descents differ from each other by more than from the flow, or do
        not tell samples apart."""
        near, limit, apart = self.distances
        blind = self.gap < APART * self.step
        return not self.in_line and (blind or not min(near, limit) > 2 * apart)


@functools.cache
def outcomes(program: int, seeds: tuple[int, ...]) -> dict[tuple[str, int], Outcome]:
    """What comes of flows that one compiled program integrates: by structure and seed."""
    names = [(name, seed) for name in STRUCTURES for seed in seeds]
    flows = [drawn(program, STRUCTURES[name], seed) for name, seed in names]
    solved = [solve(problem, net) for problem, net in flows]
    found = judged(flows, solved, COARSE)
    for step in FINER:
        doubtful = [
            i
            for i, (_, said) in enumerate(solved)
            if not said and not found[i].in_line and found[i].gap >= APART * step / 2
        ]
        for k in range(0, len(doubtful), LANES):
            some = doubtful[k : k + LANES]
            # As many as ever, for one program.
            padded = (some * LANES)[:LANES]
            again = judged([flows[i] for i in padded], [solved[i] for i in padded], step)
            for i, ends in zip(some, again, strict=False):
                found[i] = ends
    return {
        name: verdict(ends, said)
        for name, ends, (_, said) in zip(names, found, solved, strict=True)
    }


def verdict(ends: Ends, said: bool) -> Outcome:
    """What came of a flow that says, or does not, that it is not to be trusted."""
    if ends.in_line:
        return Outcome.HARMLESS
    if said:
        return Outcome.NAMED
    return Outcome.UNRESOLVED if ends.undecided else Outcome.SILENT


def solve(problem: gf.Problem, net: Any) -> tuple[np.ndarray, bool]:
    """Where the flow ends, by default, and whether it says that it may end elsewhere."""
    traj = gf.solve(
        gf.GradientFlow(problem),
        net,
        t1=T1,
        ts=[T1],
        solver=gf.solvers.ExactKinks(rtol=RTOL),
        max_steps=20_000,
        throw=False,
    )
    said = (
        traj.result != gf.RESULTS.successful
        or traj.certificate.choices > 0
        or not traj.certificate.holds
    )
    return flat(traj.final), bool(said)


def flat(net: Any) -> np.ndarray:
    """θ as one vector."""
    return np.asarray(ravel_pytree(net)[0])


def judged(flows: list[Any], solved: list[Any], step: float) -> list[Ends]:
    """Each end, and those of descents of this step and of half of it."""
    problems, nets = zip(*flows, strict=True)
    risks, starts = (jax.tree.map(_stack, *group) for group in (problems, nets))
    count = round(T1 / step)
    ends = [
        np.asarray(descend(risks, starts, jnp.asarray(T1 / n), jnp.asarray(n)))
        for n in (count, 2 * count)
    ]
    return [
        Ends(end, coarse, fine, step / 2, gap(problem))
        for problem, (end, _), coarse, fine in zip(problems, solved, *ends, strict=True)
    ]


def gap(problem: gf.Problem) -> float:
    """The distance of the two samples that are closest, but not the same."""
    x = np.asarray(problem.data.x)
    between = np.linalg.norm(x[:, None] - x[None], axis=-1)
    return float(between[between > 0].min())


def _stack(*leaves: Any) -> Any:
    return jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0]


def _descend(
    problems: gf.Problem, nets: Any, step: jax.Array, count: jax.Array
) -> jax.Array:
    """θ after so many steps, of all nets side by side."""

    def run(problem: gf.Problem, net: Any) -> jax.Array:
        def risk(net: Any) -> jax.Array:
            return problem.cost(outputs(net, problem.data.x))

        def after(_: Any, net: Any) -> Any:
            gradient = jax.grad(risk)(net)
            return jax.tree.map(lambda w, g: w - step * g, net, gradient)

        return ravel_pytree(jax.lax.fori_loop(0, count, after, net))[0]

    return eqx.filter_vmap(run)(problems, nets)


# It takes the options of `jax.jit`, of which its type does not tell.
_jit: Any = eqx.filter_jit
# It runs for longer than it compiles, also where all else is compiled as fast as can be.
descend = _jit(_descend, compiler_options={"xla_backend_optimization_level": 3})
