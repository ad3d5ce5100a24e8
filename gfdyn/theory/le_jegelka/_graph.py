"""A network read as a graph, on the host: its paths counted, its gates by vertex."""

import jax
import numpy as np
from jaxtyping import ArrayLike, Float

from ..._tracing import is_concrete
from ...nets import MLP, Dag, LayeredNet, as_dag


# Vertices, nodes or paths a column, samples a row.
Rows = Float[np.ndarray, "samples _"]


def graph_of(net: Dag | MLP | LayeredNet) -> Dag:
    """The net as a graph, its weights known.

    Raises:
        TypeError: unless the net is a graph or can be made one.
        ValueError: under jit, vmap or grad.
    """
    if not is_concrete(*jax.tree.leaves(net)):
        raise ValueError("net is traced; paths are enumerated outside jit, vmap and grad.")
    return as_dag(net)


def path_count(net: Dag | MLP | LayeredNet, output: int = 0) -> int:
    r"""ρ, the number of paths from inputs (or the constant 1) to an output: $\prod_l n_l$
    over inputs and hidden layers if it is fully connected. Counted without enumeration.

    Args:
        output: the number of the output, from 0.

    Raises:
        TypeError, ValueError: if the net has no graph, is traced, or lacks the output.
    """
    dag = graph_of(net)
    return count_paths(dag, output_vertex(dag, output))


def output_vertex(dag: Dag, output: int) -> int:
    """The vertex of an output.

    Raises:
        ValueError: if there is no such output.
    """
    if not 0 <= output < len(dag.outputs):
        raise ValueError(f"output={output} must lie in 0..{len(dag.outputs) - 1}.")
    return dag.outputs[output]


def count_paths(dag: Dag, root: int) -> int:
    """The number of paths that end at this vertex, by dynamic programming."""
    into = edges_into(dag)
    ways = {root: 1}
    for v in reversed([v for layer in dag.layers for v in layer]):
        for i in into[v]:
            u = dag.edges[i][0]
            ways[u] = ways.get(u, 0) + ways.get(v, 0)
    return sum(count for v, count in ways.items() if v not in into)


def edge_weights(dag: Dag) -> Float[np.ndarray, " edges"]:
    """`dag.edge_weights`, without a program for each graph."""
    values, numbers = np.asarray(dag.values), np.asarray(dag.parameters)
    constants = np.asarray(dag.constants, values.dtype)
    return np.where(numbers < 0, constants, values[numbers])


def vertex_preactivations(dag: Dag, x: ArrayLike) -> Rows:
    """z of each vertex by its number, (N, vertices); of inputs the input, of other vertices
    that have none 1.

    Raises:
        ValueError: unless x is (N, d).
    """
    inputs = checked_inputs(dag, x)
    into, w = edges_into(dag), edge_weights(dag)
    slope_of = {v: sigma.slope for v, sigma in dag.vertex_activations}
    z = np.ones((len(inputs), 1 + max(max(edge) for edge in dag.edges)), w.dtype)
    z[:, : dag.inputs] = inputs
    values = np.array(z)
    for v in (v for layer in dag.layers[:-1] for v in layer):
        z[:, v] = values[:, [dag.edges[i][0] for i in into[v]]] @ w[into[v]]
        values[:, v] = np.where(z[:, v] > 0, 1, slope_of[v]) * z[:, v]
    return z


def vertex_gates(dag: Dag, x: ArrayLike) -> Rows:
    """The gate of each vertex by its number, (N, vertices); 1 where it has none.

    Raises:
        ValueError: unless x is (N, d).
    """
    z = vertex_preactivations(dag, x)
    gates = np.ones_like(z)
    for v, sigma in dag.vertex_activations:
        gates[:, v] = np.where(z[:, v] > 0, 1, sigma.slope)
    return gates


def checked_inputs(dag: Dag, x: ArrayLike) -> Rows:
    """x in the precision of the net.

    Raises:
        ValueError: unless it is (N, d).
    """
    inputs = np.asarray(x, np.asarray(dag.values).dtype)
    if inputs.ndim != 2 or inputs.shape[1] != dag.inputs:
        raise ValueError(f"x has shape {inputs.shape}; it must be (N, {dag.inputs}).")
    return inputs


def edges_into(dag: Dag) -> dict[int, list[int]]:
    """The numbers of the edges that lead to each vertex."""
    into: dict[int, list[int]] = {}
    for i, (_, v) in enumerate(dag.edges):
        into.setdefault(v, []).append(i)
    return into
