r"""The training invariances along a trajectory: what each claims to be constant is.

`nets` are `traj.net`, with a leading axis T, the start first. The solve's error is below
`tolerance` times the largest ‖θ‖².
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._types import Gates
from ...nets import AbstractNet, norm
from ...problem import Problem
from .._check import Check, equal
from ._patterns import same_patterns
from ._version import PatternVersion


Values = Float[Array, " values"]


def vertex_wise_drift(nets: AbstractNet, tolerance: float = 1e-6) -> Check:
    r"""$\sum_b w_{vb}^2 - \sum_u w_{uv}^2$ of each hidden neuron is what it was at the
    start, through changes of sign, crossings and slides; on both sides of skips, the
    difference of the norms of two cuts.

    Le & Jegelka, Lemma 2 (Lemma 3 of the first version). Entries (T, values), right the
    start's.

    Args:
        nets: `traj.net`, leading axis T, the start first.
        tolerance: of the solve; what a value may err relative to the largest ‖θ‖².

    Raises:
        ValueError: if nothing is conserved on this net.
    """

    def diagonals(net: AbstractNet) -> Values:
        found = [m.diagonal for m in net.conserved()]
        return jnp.concatenate(found) if found else jnp.zeros((0,))

    return _constant(nets, jax.vmap(diagonals)(nets), {}, tolerance)


def matrix_wise_drift(
    problem: Problem,
    nets: AbstractNet,
    gates: tuple[Float[Array, "times samples _"], ...] | None = None,
    version: PatternVersion = "corrected",
    tolerance: float = 1e-6,
) -> Check:
    r"""$[W_2^\top W_2 - W_1 W_1^\top]_{uv}$ is what it was at the start for as long as u
    and v have had the same activation pattern.

    Le & Jegelka, Theorem 1; the first version claims it of all ReLU neurons. Patterns are
    compared at the saves alone: give close ones. Entries (T, values), (u, v) row by row,
    invariant after invariant.

    Args:
        nets, tolerance: see `vertex_wise_drift`.
        gates: values of the gates, (T, N, n_l) for each hidden layer: `traj.kinks.gates`
            where neurons slide. If None, patterns are those of the signs of z.
        version: as in `pairwise`.

    Raises:
        ValueError: if the net has no such neurons; on another version.
    """

    def matrices(net: AbstractNet) -> Values:
        forms = ("full", "blocks")
        found = [jnp.ravel(m.matrix) for m in net.conserved() if m.form in forms]
        return jnp.concatenate(found) if found else jnp.zeros((0,))

    def apart(net: AbstractNet, gates: Gates | None) -> Bool[Array, " values"]:
        masks = same_patterns(problem, net, gates, version).values()
        return jnp.concatenate([jnp.zeros(0, bool), *(~jnp.ravel(m) for m in masks)])

    times_apart = jnp.cumsum(jax.vmap(apart)(nets, gates), axis=0, dtype=jnp.int32)
    assumptions = {"same patterns": times_apart == 0}
    return _constant(nets, jax.vmap(matrices)(nets), assumptions, tolerance)


def _constant(
    nets: AbstractNet,
    values: Float[Array, "times values"],
    assumptions: Mapping[str, Array],
    tolerance: float,
) -> Check:
    """The claim that each row is the first, which it says nothing of."""
    if not values.shape[1]:
        raise ValueError("net has no hidden neurons of which this is conserved.")
    return equal(
        values,
        values[:1],
        assumptions=assumptions,
        vacuous=jnp.arange(len(values))[:, None] == 0,
        slack=tolerance * jnp.max(jax.vmap(norm)(nets)) ** 2,
    )
