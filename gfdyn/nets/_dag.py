"""Any feed-forward graph, given by its edges."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ._activation import PiecewiseLinear, activation as activation_of
from ._base import AbstractNet, Gate
from ._invariant import Invariant


Edge = tuple[int, int]
Spec = str | PiecewiseLinear


class Dag(AbstractNet):
    r"""A feed-forward graph of single neurons, $z_v = \sum_{u \to v} w_{uv} a_u$.

    Vertices are numbers; 0, …, d−1 are the inputs. Biases are edges from a vertex that is
    constantly 1. Several edges may have one weight (convolutions), others a constant one
    (skips). A hidden layer here is all vertices that the same number of edges, at most,
    leads to from the inputs, and that have one activation.

    For what is stated of single neurons, edges and paths, and to check other networks by;
    slow on large graphs.

    Attributes:
        values: the trained weights, each once.
        edges: (u, v) of each edge.
        parameters: which of `values` is its weight; −1 for a constant.
        constants: its weight if that is a constant.
        outputs: the vertices whose pre-activations are the outputs.
        inputs: d.
        constant: the vertex that is constantly 1, or None.
        vertex_activations: (vertex, activation) of each hidden vertex.
    """

    values: Float[Array, " weights"]
    edges: tuple[Edge, ...] = eqx.field(static=True)
    parameters: tuple[int, ...] = eqx.field(static=True)
    constants: tuple[float, ...] = eqx.field(static=True)
    outputs: tuple[int, ...] = eqx.field(static=True)
    inputs: int = eqx.field(static=True)
    constant: int | None = eqx.field(static=True)
    vertex_activations: tuple[tuple[int, PiecewiseLinear], ...] = eqx.field(static=True)

    def __init__(
        self,
        edges: Sequence[Edge],
        values: ArrayLike | Sequence[float],
        inputs: int,
        *,
        activation: Spec | Mapping[int, Spec] = "relu",
        parameters: Sequence[int] | None = None,
        constants: Mapping[Edge, float] | None = None,
        constant: int | None = None,
    ):
        """Join the vertices; those that nothing leaves are the outputs, by their number.

        Args:
            edges: (u, v) of each edge that has a trained weight.
            values: the trained weights; of each edge, or as `parameters` says.
            inputs: d, the number of input vertices 0, …, d−1.
            activation: of all hidden vertices, or of each.
            parameters: for each of `edges` which of `values` is its weight, where several
                share one.
            constants: further edges, whose weights are constants.
            constant: the vertex that is constantly 1.

        Raises:
            ValueError: on an edge twice, into an input, or around a circle; on a number of
                weights that does not fit; on a vertex that no edge leads to.
        """
        constants = dict(constants or {})
        shared = range(len(edges)) if parameters is None else parameters
        self.values = jnp.asarray(values)
        self.edges = (*((int(u), int(v)) for u, v in edges), *constants)
        self.parameters = (*(int(p) for p in shared), *(-1 for _ in constants))
        self.constants = (*(0.0 for _ in edges), *(float(w) for w in constants.values()))
        self.inputs = int(inputs)
        self.constant = constant
        sources, targets = {u for u, _ in self.edges}, {v for _, v in self.edges}
        self.outputs = tuple(sorted(targets - sources))
        hidden = sorted(targets & sources)
        if not isinstance(activation, Mapping):
            activation = dict.fromkeys(hidden, activation)
        _check(self, len(edges), tuple(shared), set(hidden) - set(activation))
        self.vertex_activations = tuple((v, activation_of(activation[v])) for v in hidden)

    @property
    def layers(self) -> tuple[tuple[int, ...], ...]:
        """The vertices of each hidden layer, and the outputs."""
        into = self._into
        level: dict[int, int] = {}
        for v in TopologicalSorter(into).static_order():
            level[v] = 1 + max((level[u] for u in into.get(v, {})), default=-1)
        groups: dict[tuple[int, float], list[int]] = {}
        for v, sigma in self.vertex_activations:
            groups.setdefault((level[v], sigma.slope), []).append(v)
        return (*(tuple(groups[key]) for key in sorted(groups)), self.outputs)

    def path_counts(self, edges: Collection[Edge]) -> tuple[int, int]:
        """The least and the greatest number of these edges on a path from an input (or the
        constant 1) to an output.

        Raises:
            ValueError: on an edge that the graph does not have.
        """
        chosen = set(edges)
        if foreign := chosen - set(self.edges):
            raise ValueError(f"edges has {min(foreign)}, which is no edge of the graph.")
        counts: dict[int, tuple[int, int]] = {v: (0, 0) for v in self._first_vertices}
        for v in (v for layer in self.layers for v in layer):
            met = [(counts[u], (u, v) in chosen) for u in self._into[v]]
            least = min(low + here for (low, _), here in met)
            counts[v] = least, max(high + here for (_, high), here in met)
        ends = [counts[v] for v in self.outputs]
        return min(low for low, _ in ends), max(high for _, high in ends)

    @property
    def edge_weights(self) -> Float[Array, " edges"]:
        """The weight of each edge."""
        constants = jnp.asarray(self.constants, self.values.dtype)
        trained = np.asarray(self.parameters) >= 0
        return jnp.where(trained, self.values[np.asarray(self.parameters)], constants)

    @property
    def activations(self) -> tuple[PiecewiseLinear, ...]:
        """The activation of each hidden layer."""
        each = dict(self.vertex_activations)
        return tuple(each[layer[0]] for layer in self.layers[:-1])

    @property
    def weights(self) -> tuple[Float[Array, "_ _"], ...]:
        """The weights of all edges into each layer, a column for each vertex before it."""
        return self._matrices(self.edge_weights)

    @property
    def knows_kinks(self) -> bool:
        """Yes."""
        return True

    @property
    def degree(self) -> int | None:
        """The number of trained weights on every path, None if it is not the same."""
        trained = {
            edge for edge, p in zip(self.edges, self.parameters, strict=True) if p >= 0
        }
        low, high = self.path_counts(trained)
        return low if low == high else None

    @property
    def in_size(self) -> int:
        """The number of input features."""
        return self.inputs

    @property
    def out_size(self) -> int:
        """The number of outputs."""
        return len(self.outputs)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """All of them in one array, w."""
        return ("w",)

    def forward(
        self, x: Float[Array, "samples in"], gates: Sequence[Gate]
    ) -> tuple[Float[Array, "samples out"], tuple[Float[Array, "samples _"], ...]]:
        """Outputs and pre-activations, layer by layer."""
        a, preactivations = self._start(x), []
        *hidden, last = self.weights
        for w, gate in zip(hidden, gates, strict=True):
            preactivations.append(a @ w.T)
            a = jnp.concatenate([a, gate(preactivations[-1])], axis=1)
        return a @ last.T, tuple(preactivations)

    def gradient_norms(
        self,
        x: Float[Array, "samples in"],
        values: tuple[Float[Array, "samples _"], ...],
    ) -> tuple[Float[Array, "samples _"], ...]:
        """About ‖∂z/∂θ‖ of each pre-activation, as if the gradients of different vertices
        were orthogonal, as in `MLP.gradient_norms`."""
        a, norms = self._start(x), []
        squares = jnp.zeros_like(a)
        trained = jnp.asarray(np.asarray(self.parameters) >= 0, a.dtype)
        parts = zip(self.weights[:-1], self._matrices(trained)[:-1], values, strict=True)
        for w, counts, value in parts:
            q = a**2 @ counts.T + squares @ (w**2).T
            norms.append(jnp.sqrt(q))
            a = jnp.concatenate([a, value * (a @ w.T)], axis=1)
            squares = jnp.concatenate([squares, value**2 * q], axis=1)
        return tuple(norms)

    def conserved(self) -> tuple[Invariant, ...]:
        """What gradient flow conserves: of each hidden vertex the balance of its weights,
        if all are trained and it shares none (Le & Jegelka, eq. 4); of those with the same
        neighbours the matrix, in full if they are linear, or in blocks (eq. 5)."""
        uses = Counter(self.parameters)
        free = {
            edge
            for edge, p in zip(self.edges, self.parameters, strict=True)
            if p >= 0 and uses[p] == 1
        }
        alike: dict[Any, list[int]] = {}
        for v, sigma in self.vertex_activations:
            into, out = tuple(self._into[v]), tuple(t for u, t in self.edges if u == v)
            if free.issuperset([*((u, v) for u in into), *((v, t) for t in out)]):
                alike.setdefault((sigma, frozenset(into), frozenset(out)), []).append(v)
        number = {edge: i for i, edge in enumerate(self.edges)}
        layers, w = self.layers, self.edge_weights
        found = []
        for (sigma, into, out), group in alike.items():
            rows = np.asarray([[number[u, v] for u in sorted(into)] for v in group])
            columns = np.asarray([[number[v, t] for v in group] for t in sorted(out)])
            name = "vertices " + ", ".join(str(v) for v in group)
            form = "full" if sigma.is_linear else "blocks"
            layer = next(i for i, layer in enumerate(layers) if group[0] in layer)
            units = tuple(layers[layer].index(v) for v in group)
            found.append(Invariant(name, form, w[rows], w[columns], layer + 1, units))
        return tuple(found)

    @property
    def _into(self) -> dict[int, dict[int, int]]:
        """For each vertex that edges lead to, the number of the edge from each source."""
        into: dict[int, dict[int, int]] = {}
        for i, (u, v) in enumerate(self.edges):
            into.setdefault(v, {})[u] = i
        return into

    @property
    def _first_vertices(self) -> tuple[int, ...]:
        extra = () if self.constant is None else (self.constant,)
        return (*range(self.inputs), *extra)

    def _start(self, x: Array) -> Array:
        if self.constant is None:
            return x
        return jnp.concatenate([x, jnp.ones_like(x[:, :1])], axis=1)

    def _matrices(self, weights: Array) -> tuple[Array, ...]:
        """Numbers on edges as a matrix for each layer, (its vertices, those before it)."""
        place = {v: i for i, v in enumerate(self._first_vertices)}
        matrices = []
        for layer in self.layers:
            entering = [
                (row, place[u], edge)
                for row, v in enumerate(layer)
                for u, edge in self._into[v].items()
            ]
            rows, columns, numbers = np.asarray(entering).T
            zeros = jnp.zeros((len(layer), len(place)), weights.dtype)
            matrices.append(zeros.at[rows, columns].set(weights[numbers]))
            place |= {v: len(place) + i for i, v in enumerate(layer)}
        return tuple(matrices)


def _check(
    dag: Dag, trained: int, parameters: tuple[int, ...], without_activation: set[int]
) -> None:
    if len(set(dag.edges)) != len(dag.edges):
        twice = next(edge for edge in dag.edges if dag.edges.count(edge) > 1)
        raise ValueError(f"edges has {twice} twice; give one edge with their sum.")
    if len(parameters) != trained or dag.values.ndim != 1:
        raise ValueError(
            f"parameters has {len(parameters)} entries for {trained} edges, and values the "
            f"shape {dag.values.shape}; give one entry for each edge, and values as a "
            "vector."
        )
    if set(parameters) != set(range(len(dag.values))):
        raise ValueError(
            f"values has {len(dag.values)} weights, but the edges have the weights "
            f"{sorted(set(parameters))}; each must be used, from 0."
        )
    first = set(dag._first_vertices)
    if wrong := [edge for edge in dag.edges if edge[1] in first]:
        raise ValueError(f"edges has {wrong[0]}, which leads into an input.")
    if orphans := {u for u, _ in dag.edges} - {v for _, v in dag.edges} - first:
        raise ValueError(
            f"no edge leads to vertex {min(orphans)}, which is none of the "
            f"{dag.inputs} inputs 0, …; is it the constant 1?"
        )
    if not dag.outputs:
        raise ValueError("edges is empty, or goes round in circles: nothing is an output.")
    try:
        TopologicalSorter(dag._into).prepare()
    except CycleError as error:
        raise ValueError(f"edges go around a circle: {error.args[1]}.") from None
    if without_activation:
        raise ValueError(f"activation has no entry for vertex {min(without_activation)}.")
