r"""The training invariances where the flow stands: both Gram matrices move alike.

`gates=` are values of the gates, (N, n_l) for each hidden layer, such as those of
`traj.kinks.gates` at a save, where neurons slide; by default the activations' own. The
velocity is that of gradient flow under them. Sides are equal up to rounding of the largest
velocity in the matrix.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..._numerics import VELOCITY_ROUNDING
from ..._types import Gates
from ...diagnostics import GramVelocity, gram_velocities
from ...nets import AbstractNet
from ...problem import Problem, check_fit
from .._check import Check, equal
from ._patterns import same_patterns
from ._version import PatternVersion


def vertex_wise(problem: Problem, net: AbstractNet, gates: Gates | None = None) -> Check:
    r"""$\frac{d}{dt} \sum_b w_{vb}^2 = \frac{d}{dt} \sum_u w_{uv}^2$ of each hidden neuron
    (channel), for every activation, loss and graph.

    Le & Jegelka, Lemma 2, eq. 4 (Lemma 3 of the first version). They ask for a stable sign
    regime, which it does not need. Entries (neurons,) of `gf.diagnostics.invariants(net)`
    but norms, one after the other.

    Args:
        gates: values of the gates, (N, n_l) for each hidden layer, such as those of
            `traj.kinks.gates` at a save; if None, the activations' own.

    Raises:
        TypeError, ValueError: if the net does not fit the problem; if nothing of this kind
            is conserved on it.
    """
    names = [m.name for m in net.conserved() if m.form != "norms"]
    return _compare(problem, net, gates, {name: None for name in names}, jnp.diagonal)


def pairwise(
    problem: Problem,
    net: AbstractNet,
    gates: Gates | None = None,
    version: PatternVersion = "corrected",
) -> Check:
    r"""$\frac{d}{dt} \sum_b w_{ub} w_{vb} = \frac{d}{dt} \sum_a w_{au} w_{av}$ of neurons
    u < v with the same neighbours and the same activation pattern.

    Le & Jegelka, eq. 5. Entries (pairs,), invariant after invariant;
    `gf.diagnostics.gram_drift` is the difference. Other patterns fail the assumption
    `same patterns`.

    Args:
        gates: see `vertex_wise`; in `"corrected"`, the same gates make the same pattern.
        version: `"first"` makes the claim for all u and v; `"second"`, the correction as
            printed, counts z = 0 as active, and fails while one of the neurons slides.

    Raises:
        TypeError, ValueError: as `vertex_wise`; on another version.
    """
    alike = same_patterns(problem, net, gates, version)
    return _compare(problem, net, gates, alike, _above_diagonal)


def matrix_wise(
    problem: Problem,
    net: AbstractNet,
    gates: Gates | None = None,
    version: PatternVersion = "corrected",
) -> Check:
    r"""$\frac{d}{dt} [W_2^\top W_2]_A = \frac{d}{dt} [W_1 W_1^\top]_A$ for neurons A of one
    activation pattern; in full where they are linear.

    Le & Jegelka, Theorem 1, eq. 6, for adjacent fully connected and convolutional layers
    and residual blocks, in the flattenings of `gf.diagnostics.invariants`. The first
    version claims it in full of ReLU layers. Entries (u, v) row by row, invariant after
    invariant.

    Args:
        gates, version: see `pairwise`.

    Raises:
        TypeError, ValueError: as `pairwise`.
    """
    alike = same_patterns(problem, net, gates, version)
    return _compare(problem, net, gates, alike, jnp.ravel)


def _compare(
    problem: Problem,
    net: AbstractNet,
    gates: Gates | None,
    alike: dict[str, Bool[Array, "units units"]] | dict[str, None],
    entries: Callable[[Array], Array],
) -> Check:
    """These entries of the velocities of both Gram matrices of each invariant named."""
    check_fit(problem, net)
    if not alike:
        raise ValueError("net has no hidden neurons of which this is conserved.")
    velocities = gram_velocities(problem, net, gates)

    def slack(v: GramVelocity) -> Array:
        largest = jnp.max(jnp.stack([jnp.abs(v.outgoing), jnp.abs(v.incoming)]))
        eps = float(jnp.finfo(largest.dtype).eps)
        return jnp.full_like(v.outgoing, VELOCITY_ROUNDING * eps) * largest

    def gathered(matrix: Callable[[GramVelocity], Array]) -> Array:
        return jnp.concatenate([entries(matrix(velocities[name])) for name in alike])

    masks = [entries(mask) for mask in alike.values() if mask is not None]
    return equal(
        gathered(lambda v: v.outgoing),
        gathered(lambda v: v.incoming),
        assumptions={"same patterns": jnp.concatenate(masks)} if masks else {},
        slack=gathered(slack),
    )


def _above_diagonal(matrix: Array) -> Array:
    return matrix[jnp.triu_indices(len(matrix), 1)]
