"""Thousands of small nets at once: where the exact flow, and descent, take each of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from ..._keys import random_keys
from ..._numbers import check_counts
from ...descent import descend
from ...flows import GradientFlow
from ...nets import MLP
from ...problem import Problem
from ...run import RESULTS, solve
from ...solvers import AbstractSolver, ExactKinks
from ...stopping import AbstractStop, GradientBelow


class Ends(eqx.Module):
    """Where runs ended, with a leading axis R of all arrays.

    Attributes:
        net: the nets.
        risk: their risks, (R,).
        time: when they ended, (R,).
        ok: whether they got to the end or were stopped, rather than fail, (R,).
        stats: the counts of a `Trajectory`, (R,).
    """

    net: MLP
    risk: Float[Array, "*runs"]
    time: Float[Array, "*runs"]
    ok: Bool[Array, "*runs"]
    stats: dict[str, Int[Array, "*runs"]]


def random_pairs(
    key: PRNGKeyArray,
    runs: int,
    *,
    w_radius: ArrayLike,
    v_radius: ArrayLike,
    in_disc: bool = False,
) -> MLP:
    """Nets of two neurons with w_i and v_i uniform on circles of these radii, all
    independent. Leading axis R.

    Drawn in float32, so that one seed gives the same nets in every precision.

    Args:
        key: seeds the draws.
        runs: R, how many nets, 1 or more.
        w_radius, v_radius: |w_i| and |v_i|, or with `in_disc` their upper bounds.
        in_disc: uniform in the discs of these radii, rather than on the circles.

    Raises:
        TypeError: if `key` is no random key.
        ValueError: unless `runs` is an integer of at least 1.
    """
    check_counts(runs=runs)
    turn_key, size_key = random_keys(key, 2)
    dtype = jnp.zeros(()).dtype
    turns = 2 * np.pi * jr.uniform(turn_key, (runs, 4), jnp.float32).astype(dtype)
    vectors = jnp.stack([jnp.cos(turns), jnp.sin(turns)], axis=2)
    if in_disc:
        sizes = jr.uniform(size_key, (runs, 4, 1), jnp.float32).astype(dtype)
        vectors = jnp.sqrt(sizes) * vectors
    w = jnp.asarray(w_radius, dtype) * vectors[:, :2]
    v = jnp.asarray(v_radius, dtype) * vectors[:, 2:].swapaxes(1, 2)
    return jax.vmap(lambda w, v: MLP.from_weights([w, v]))(w, v)


def flow_ends(
    problem: Problem,
    nets: MLP,
    t1: ArrayLike,
    *,
    solver: AbstractSolver | None = None,
    stop: AbstractStop | None = None,
    chunk: int = 1000,
) -> Ends:
    """Where the flow takes each of the nets by t1, or until a run stops.

    Chunks of runs advance in lock-step, in one compiled program for all; a run that has
    ended waits for the others of its chunk. Derivatives are forward only.

    Args:
        nets: leading axis R.
        t1: the end, in physical time.
        solver: as in `gf.solve`; `ExactKinks(rtol=1e-8, atol=1e-12)` if None.
        stop: when a run has arrived; `GradientBelow(1e-6)` if None.
        chunk: how many runs at once.

    Raises:
        ValueError: unless the chunk has a run at least.
    """
    if chunk < 1:
        raise ValueError(f"chunk={chunk} must be 1 or more runs at once.")
    chosen = (
        ExactKinks(rtol=1e-8, atol=1e-12) if solver is None else solver,
        GradientBelow(1e-6) if stop is None else stop,
    )
    runs, dtype = nets.weights[0].shape[0], nets.weights[0].dtype
    # Tolerances and thresholds are arguments of the compiled chunk, not part of it.
    chosen = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype) if isinstance(leaf, float) else leaf, chosen
    )
    t1 = jnp.asarray(t1, dtype)
    chunk = min(chunk, runs)
    parts = []
    for first in range(0, runs, chunk):
        # The last chunk begins early, to be as long as the others.
        start = min(first, runs - chunk)
        part = jax.tree.map(lambda leaf, at=start: leaf[at : at + chunk], nets)
        ends = _flow_chunk(problem, part, chosen[0], chosen[1], t1)
        parts.append(jax.tree.map(lambda leaf, at=first - start: leaf[at:], ends))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def descent_ends(problem: Problem, nets: MLP, learning_rate: ArrayLike, steps: int) -> MLP:
    """Where gradient descent takes each of the nets, leading axis R.

    All steps are one compiled loop.

    Args:
        nets: leading axis R.
        learning_rate: η, one for all nets.
        steps: how many, 1 or more; the program is compiled for this number.

    Raises:
        TypeError, ValueError: if the nets do not fit the problem; unless `steps` is an
            integer of at least 1.
    """
    return _descend_all(problem, nets, jnp.asarray(learning_rate), steps)


@eqx.filter_jit
def _flow_chunk(
    problem: Problem, nets: MLP, solver: AbstractSolver, stop: AbstractStop, t1: Array
) -> Ends:
    def run(net: MLP) -> Ends:
        traj = solve(
            GradientFlow(problem),
            net,
            ts=t1[None],
            solver=solver,
            stop=stop,
            throw=False,
            derivatives="forward",
        )
        return Ends(
            net=traj.final,  # pyright: ignore[reportArgumentType]
            risk=traj.final_risk,
            time=traj.final_time,
            ok=(traj.result == RESULTS.successful) | (traj.result == RESULTS.stopped),
            stats=traj.stats,
        )

    return jax.vmap(run)(nets)


@eqx.filter_jit
def _descend_all(problem: Problem, nets: MLP, rate: Array, steps: int) -> MLP:
    def run(net: MLP) -> MLP:
        traj = descend(problem, net, rate, steps, save_every=steps, throw=False)
        return traj.final  # pyright: ignore[reportReturnType]

    return jax.vmap(run)(nets)
