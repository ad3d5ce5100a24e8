"""Jagged paths: from the inputs to one neuron, and on from another.

Where the first version's proof fails: it gives both sums one coefficient.
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Float

from ...nets import MLP, Dag, LayeredNet
from ...problem import Problem, check_fit
from .._check import Check, equal
from ._decomposition import LIMIT
from ._graph import graph_of, output_vertex, vertex_gates
from ._path_tree import starts, unroll


class JaggedPaths(eqx.Module):
    r"""The pairs of a path from an input to u and a path from v to an output.

    Attributes:
        products: $x_p \prod w$ over both, (N, pairs).
        passing: the product of the gates of both but those of u and v, (N, pairs).
        first, second: the gates of u and v, (N,).
    """

    products: Float[np.ndarray, "samples pairs"]
    passing: Float[np.ndarray, "samples pairs"]
    first: Float[np.ndarray, " samples"]
    second: Float[np.ndarray, " samples"]

    @property
    def incoming(self) -> Float[np.ndarray, " samples"]:
        r"""$\sum_a w_{au}\,\partial\nu/\partial w_{av}$: paths through v, entered with the
        weights of u, with the gate of v."""
        return self.second * np.sum(self.products * self.passing, axis=1)

    @property
    def outgoing(self) -> Float[np.ndarray, " samples"]:
        r"""$\sum_b w_{vb}\,\partial\nu/\partial w_{ub}$: paths through u, left with the
        weights of v, with the gate of u."""
        return self.first * np.sum(self.products * self.passing, axis=1)

    @property
    def alike(self) -> Bool[np.ndarray, " samples"]:
        """Where u and v have the same gate."""
        return self.first == self.second


def jagged_paths(
    net: Dag | MLP | LayeredNet,
    x: ArrayLike,
    u: int,
    v: int,
    output: int = 0,
    limit: int = LIMIT,
) -> JaggedPaths:
    """The jagged paths of two hidden vertices with the same neighbours (Le & Jegelka,
    appendix C, Figure 4). None is a path of the graph.

    Args:
        x: inputs, (N, d).
        u, v: vertices of the graph: `gf.nets.as_dag` numbers inputs, the constant 1 if
            there are biases, then units.
        output: the number of the output, from 0.
        limit: the greatest number of paths to enumerate, to u and to the output each.

    Raises:
        TypeError, ValueError: see `decompose`; unless u and v are hidden and have the same
            neighbours.
    """
    dag = graph_of(net)
    _check_twins(dag, u, v)
    before = unroll(dag, u, limit)
    behind = unroll(dag, output_vertex(dag, output), limit)
    gates = vertex_gates(dag, x)
    # u's own gate, and v's, are kept apart.
    others = np.array(gates)
    others[:, [u, v]] = 1
    leaves, ends = before.leaves, np.flatnonzero(behind.vertices == v)
    entering = starts(dag, before, x) * before.along(before.weights[None])[:, leaves]
    leaving = behind.along(behind.weights[None])[:, ends]
    into = before.along(others[:, before.vertices])[:, leaves]
    out = behind.along(others[:, behind.vertices])[:, ends]

    def pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)

    return JaggedPaths(pairs(entering, leaving), pairs(into, out), gates[:, u], gates[:, v])


def jagged_path_sums(
    problem: Problem,
    net: Dag | MLP | LayeredNet,
    u: int,
    v: int,
    output: int = 0,
    limit: int = LIMIT,
    version: Literal["corrected", "first"] = "corrected",
) -> Check:
    r"""$\sum_a w_{au}\,\partial\nu/\partial w_{av} = \sum_b w_{vb}\,\partial\nu/\partial
    w_{ub}$ on each sample on which u and v have the same gate; without that in the first
    version, which is false (its eqs. 40–43; 42–50 corrected). Entries (N,).

    Args:
        u, v, output, limit: see `jagged_paths`.
        version: `"first"` does not ask for the same gate.

    Raises:
        TypeError, ValueError: see `jagged_paths`; if net and problem do not fit.
    """
    check_fit(problem, net)
    jagged = jagged_paths(net, problem.data.x, u, v, output, limit)
    alike = {"same gates": jagged.alike} if version == "corrected" else {}
    size = np.sum(np.abs(jagged.products), axis=1)
    return equal(
        jnp.asarray(jagged.incoming),
        jnp.asarray(jagged.outgoing),
        assumptions={name: jnp.asarray(met) for name, met in alike.items()},
        slack=jnp.asarray(10 * np.finfo(size.dtype).eps * size),
    )


def _check_twins(dag: Dag, u: int, v: int) -> None:
    hidden = {vertex for vertex, _ in dag.vertex_activations}
    for name, vertex in (("u", u), ("v", v)):
        if vertex not in hidden:
            raise ValueError(
                f"{name}={vertex} is no hidden vertex; those are {min(hidden, default=0)} "
                f"to {max(hidden, default=0)}."
            )
    around = [
        ({a for a, t in dag.edges if t == w}, {t for a, t in dag.edges if a == w})
        for w in (u, v)
    ]
    if around[0] != around[1]:
        raise ValueError(
            f"u={u} and v={v} have other neighbours; take two neurons of one layer."
        )
