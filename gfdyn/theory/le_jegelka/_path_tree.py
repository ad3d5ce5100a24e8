"""The tree of all paths of a graph, and what pulling its weights to the leaves makes of it.

Exact, on the host in NumPy: paths are many, and each is an entry.
"""

import itertools

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Float, Int

from ...nets import Dag
from ._graph import Rows, checked_inputs, count_paths, edge_weights, edges_into


class PathTree(eqx.Module):
    r"""A tree network: nodes are paths of a graph to one vertex, the root; leaves begin at
    its inputs.

    $$z_q = \sum_{\text{children } r} w_r\,\sigma_r(z_r), \qquad z_p = \text{input } p
    \text{ at leaves.}$$

    A child prolongs its parent by one edge at the far end and has the activation of its
    first vertex (Le & Jegelka, Lemma 6). Nodes of one length are adjacent, the root first.

    Attributes:
        weights: from each node to its parent; 1 at the root.
        slopes: of the activations; 1 at root and leaves.
        parents: the parent of each node; −1 at the root.
        edges: the edge by which each node prolongs its parent; −1 if there is none.
        vertices: the first vertex of each.
        bounds: where each length begins and ends.
    """

    weights: Float[np.ndarray, " nodes"]
    slopes: Float[np.ndarray, " nodes"]
    parents: Int[np.ndarray, " nodes"]
    edges: Int[np.ndarray, " nodes"]
    vertices: Int[np.ndarray, " nodes"]
    bounds: tuple[int, ...] = eqx.field(static=True)

    @property
    def leaves(self) -> Int[np.ndarray, " paths"]:
        """The nodes that are nobody's parent."""
        return np.setdiff1d(np.arange(len(self.parents)), self.parents)

    def __call__(self, inputs: Rows) -> Float[np.ndarray, " samples"]:
        """The value at the root, for each row of values at the leaves."""
        return self._values(inputs)[0]

    def gradient(self, inputs: Rows) -> Rows:
        """The derivative of the value at the root in each leaf; σ'(0) is the slope."""
        z = self._values(inputs)
        gates = np.where(z > 0, 1.0, self.slopes[:, None])
        return self.along((self.weights[:, None] * gates).T)[:, self.leaves]

    def along(self, factors: Rows) -> Rows:
        """The product of the factors of all nodes from the root to each."""
        product = np.array(factors)
        for chunk in self._below_root:
            product[:, chunk] *= product[:, self.parents[chunk]]
        return product

    def pulled_back(self) -> tuple["PathTree", Float[np.ndarray, " paths"]]:
        """Weights ±1 instead, and the factors ≥ 0 by which the inputs at the leaves make up
        for it: a σ(z) = sgn(a) σ(|a| z), from the root outwards (Lemmas 5 and 7)."""
        moduli = self.along(np.abs(self.weights)[None])[0, self.leaves]
        return eqx.tree_at(lambda t: t.weights, self, sign(self.weights)), moduli

    def signed(self) -> tuple["PathTree", Float[np.ndarray, " paths"]]:
        """A linear node more on each leaf, weighted by the sign of its path, and these
        signs: now the weights on each path from a leaf to the root multiply to 1."""
        leaves = self.leaves
        signs = self.along(sign(self.weights)[None])[0, leaves]
        grown = PathTree(
            weights=np.concatenate([self.weights, signs]),
            slopes=np.concatenate([self.slopes, np.ones_like(signs)]),
            parents=np.concatenate([self.parents, leaves]),
            edges=np.concatenate([self.edges, np.full_like(leaves, -1)]),
            vertices=np.concatenate([self.vertices, self.vertices[leaves]]),
            bounds=(*self.bounds, self.bounds[-1] + len(leaves)),
        )
        return grown, signs

    @property
    def _below_root(self) -> tuple[slice, ...]:
        pairs = itertools.pairwise(self.bounds[1:])
        return tuple(slice(start, stop) for start, stop in pairs)

    def _values(self, inputs: Rows) -> Float[np.ndarray, "nodes samples"]:
        """z of every node, from the leaves to the root."""
        leaves = self.leaves
        if inputs.shape[1] != len(leaves):
            raise ValueError(
                f"inputs has {inputs.shape[1]} columns, but the tree {len(leaves)} leaves; "
                "give one value for each path."
            )
        z = np.zeros((len(self.parents), len(inputs)), inputs.dtype)
        z[leaves] = inputs.T
        for chunk in reversed(self._below_root):
            here, parents = z[chunk], self.parents[chunk]
            a = np.where(here > 0, here, self.slopes[chunk, None] * here)
            # Siblings are adjacent.
            first = np.flatnonzero(np.diff(parents, prepend=-1))
            z[parents[first]] = np.add.reduceat(self.weights[chunk, None] * a, first)
        return z


def sign(weights: np.ndarray) -> np.ndarray:
    """−1 below 0, otherwise +1: at 0 too, as μ needs some sign there."""
    return np.where(weights < 0, -1, 1).astype(weights.dtype)


def unroll(dag: Dag, root: int, limit: int) -> PathTree:
    """All paths that end at this vertex, as a tree (Le & Jegelka, Lemma 6).

    Raises:
        ValueError: if more than `limit` of them begin at inputs.
    """
    if (count := count_paths(dag, root)) > limit:
        raise ValueError(
            f"the graph has {count} paths to vertex {root}, above limit={limit}; take a "
            "smaller or shallower network, or raise the limit: each path is stored."
        )
    into = {v: np.asarray(edges) for v, edges in edges_into(dag).items()}
    sources = np.asarray([u for u, _ in dag.edges])
    parents, edges, vertices = ([np.asarray([first])] for first in (-1, -1, root))
    bounds = [0, 1]
    while inner := [
        (bounds[-2] + i, into[v]) for i, v in enumerate(vertices[-1].tolist()) if v in into
    ]:
        edges.append(np.concatenate([entering for _, entering in inner]))
        parents.append(np.repeat([q for q, _ in inner], [len(e) for _, e in inner]))
        vertices.append(sources[edges[-1]])
        bounds.append(bounds[-1] + len(edges[-1]))
    w = edge_weights(dag)
    slope_of = {v: sigma.slope for v, sigma in dag.vertex_activations}
    slope_of[root] = 1.0
    number, vertex = np.concatenate(edges), np.concatenate(vertices)
    return PathTree(
        weights=np.where(number < 0, np.ones((), w.dtype), w[number]),
        slopes=np.asarray([slope_of.get(v, 1.0) for v in vertex.tolist()], w.dtype),
        parents=np.concatenate(parents),
        edges=number,
        vertices=vertex,
        bounds=tuple(bounds),
    )


def starts(dag: Dag, tree: PathTree, x: ArrayLike) -> Rows:
    """The inputs at which the leaves of a tree start, (N, leaves); 1 at the constant.

    Raises:
        ValueError: unless x is (N, d).
    """
    inputs = checked_inputs(dag, x)
    first = tree.vertices[tree.leaves]
    constant = first >= dag.inputs
    return np.where(constant[None, :], 1, inputs[:, np.where(constant, 0, first)])
