"""Edge-wise: between two layers, sets of edges that every path meets exactly once."""

from collections.abc import Collection
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._numerics import VELOCITY_ROUNDING
from ..._trained_edges import trained_numbers
from ...diagnostics import is_layer
from ...nets import Dag, norm
from ...problem import Problem, check_fit
from .._check import Check, equal


Edges = Collection[tuple[int, int]]
Definition = Literal["exactly once", "printed"]


def is_printed_layer(net: Dag, edges: Edges) -> bool:
    """Whether these edges are a layer as both versions print it: no path contains two of
    them, and without them the graph falls apart.

    Le & Jegelka, Definition 7 (6 of the first version). Too weak: the edges out of one of
    several inputs pass, for which the invariance fails; `gf.diagnostics.is_layer` is meant.

    Args:
        edges: pairs of vertices, as in `net.edges`.

    Raises:
        ValueError: on an edge that the graph does not have.
    """
    # Slow to import, and few come here.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if net.path_counts(edges)[1] > 1:
        return False
    removed = set(edges)
    left = np.asarray([edge for edge in net.edges if edge not in removed], int)
    vertices, joined = np.unique(np.asarray(net.edges)), left.reshape(-1, 2)
    ends = np.searchsorted(vertices, joined).T
    graph = coo_array((np.ones(len(joined)), tuple(ends)), shape=(len(vertices),) * 2)
    return connected_components(graph, directed=False)[0] > 1


def edge_wise(
    problem: Problem,
    net: Dag,
    first: Edges,
    second: Edges,
    definition: Definition = "exactly once",
) -> Check:
    r"""$\frac{d}{dt} \sum_{e \in F} w_e^2 = \frac{d}{dt} \sum_{e \in F'} w_e^2$ for layers
    F, F′ of trained edges along gradient flow; weights that edges share count once.

    Le & Jegelka, Lemma 3 (Lemma 4 of the first version). One entry.

    Args:
        first, second: F and F′, pairs of vertices as in `net.edges`.
        definition: of a layer: `"exactly once"` is that of `gf.diagnostics.is_layer`,
            `"printed"` that of `is_printed_layer`, for which the claim is false.

    Raises:
        TypeError, ValueError: if the net does not fit the problem; on edges that it does
            not have, constants, or some only of those that share a weight.
    """
    check_fit(problem, net)
    velocity = jax.tree.map(jnp.negative, jax.grad(problem.risk)(net))
    pair = (trained_numbers(net, first, "first"), trained_numbers(net, second, "second"))

    def squares(net: Dag) -> tuple[Array, ...]:
        return tuple(jnp.sum(net.values[numbers] ** 2) for numbers in pair)

    lhs, rhs = jax.jvp(squares, (net,), (velocity,))[1]
    eps = float(jnp.finfo(lhs.dtype).eps)
    return equal(
        lhs,
        rhs,
        assumptions=_layers(net, first, second, definition),
        slack=VELOCITY_ROUNDING * eps * norm(net) * norm(velocity),
    )


def edge_wise_drift(
    nets: Dag,
    first: Edges,
    second: Edges,
    definition: Definition = "exactly once",
    tolerance: float = 1e-6,
) -> Check:
    r"""$\sum_{e \in F} w_e^2 - \sum_{e \in F'} w_e^2$ is what it was at the start, along
    `traj.net`. Entries (T,); statement, definitions and errors as in `edge_wise`.

    Args:
        nets: `traj.net`, leading axis T, the start first.
        first, second, definition: see `edge_wise`.
        tolerance: of the solve; what a value may err relative to the largest ‖θ‖².
    """
    pair = (trained_numbers(nets, first, "first"), trained_numbers(nets, second, "second"))
    one, other = (jnp.sum(nets.values[:, numbers] ** 2, axis=1) for numbers in pair)
    return equal(
        one - other,
        (one - other)[:1],
        assumptions=_layers(nets, first, second, definition),
        vacuous=jnp.arange(len(one)) == 0,
        slack=tolerance * jnp.max(jax.vmap(norm)(nets)) ** 2,
    )


def _layers(
    net: Dag, first: Edges, second: Edges, definition: Definition
) -> dict[str, Array]:
    if definition not in get_args(Definition):
        raise ValueError(
            f"definition={definition!r}; use 'exactly once', or 'printed' for the paper's."
        )
    test = is_printed_layer if definition == "printed" else is_layer
    return {"layers": jnp.asarray(test(net, first) and test(net, second))}
