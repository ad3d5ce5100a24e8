r"""A network as a fixed tree of its paths: $\nu = \mu \circ h$ (Le & Jegelka, Lemma 1)."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, Int

from ...nets import MLP, Dag, LayeredNet
from ...problem import Problem, check_fit
from .._check import Check, equal
from ._graph import Rows, edge_weights, graph_of, output_vertex, vertex_gates
from ._path_tree import PathTree, starts, unroll


LIMIT = 100_000


class Decomposition(eqx.Module):
    r"""One output of a network as $\nu(x) = \mu(h(x))$, with $h_p = x_p \prod_{e \in p}
    w_e$ for each path p from an input, and μ a tree network with weights ±1.

    μ depends on the signs of the weights alone. Arrays are NumPy's.

    Attributes:
        dag: the network as a graph.
        unrolled: the tree of its paths, with its weights; its inputs are the x_p.
        absolute: μ′, that tree pulled back: $\nu = \mu'(h')$, $h'_p = x_p \prod |w_e|$.
        signed: μ, with a linear node more on each leaf, so that its input is h_p.
        moduli, signs: $\prod_{e \in p} |w_e|$ and the sign of $\prod_{e \in p} w_e$.
    """

    dag: Dag
    unrolled: PathTree
    absolute: PathTree
    signed: PathTree
    moduli: Float[np.ndarray, " paths"]
    signs: Float[np.ndarray, " paths"]

    @property
    def paths(self) -> Int[np.ndarray, "paths length"]:
        """The edges of each path from its input on, filled up with −1."""
        tree, nodes, columns = self.unrolled, self.unrolled.leaves, []
        while np.any(nodes):
            columns.append(tree.edges[nodes])
            # The root is node 0, and has no edge.
            nodes = np.maximum(tree.parents[nodes], 0)
        return np.stack(columns, axis=1)

    def starts(self, x: ArrayLike) -> Rows:
        """x_p, where each path starts, (N, ρ); 1 at the constant."""
        return starts(self.dag, self.unrolled, x)

    def absolute_values(self, x: ArrayLike) -> Rows:
        """h′(x), (N, ρ)."""
        return self.starts(x) * self.moduli[None, :]

    def values(self, x: ArrayLike) -> Rows:
        """h(x), (N, ρ)."""
        return self.absolute_values(x) * self.signs[None, :]

    def gates(self, x: ArrayLike) -> Rows:
        r"""$Z_p = \prod_{v \in p} \sigma_v'$ at the network's own pre-activations, (N, ρ):
        then $\nu(x) = \sum_p Z_p h_p$ (eq. 1, which lacks x_p in its first expression)."""
        tree = self.unrolled
        return tree.along(vertex_gates(self.dag, x)[:, tree.vertices])[:, tree.leaves]

    def edge_gradients(self, x: ArrayLike) -> Float[np.ndarray, "samples edges"]:
        r"""$\partial\nu/\partial w_e = \sum_{p \ni e} [\nabla\mu(h)]_p\, x_p
        \prod_{f \in p, f \ne e} w_f$ for each edge, (N, edges).

        Eq. 2, where the paper writes ∇_w μ. Behind a weight of 0, where the tree has its
        kinks, μ has no derivative, and this need not be one.
        """
        paths, weights = self.paths, edge_weights(self.dag)
        w = np.where(paths < 0, np.ones((), weights.dtype), weights[paths])
        ones = np.ones_like(w[:, :1])
        before = np.cumprod(np.hstack([ones, w[:, :-1]]), axis=1)
        behind = np.cumprod(np.hstack([ones, w[:, :0:-1]]), axis=1)[:, ::-1]
        others = before * behind
        slopes = self.signed.gradient(self.values(x)) * self.starts(x)
        found = np.zeros((len(weights), len(slopes)), weights.dtype)
        for edge, other in zip(paths.T, others.T, strict=True):
            here = edge >= 0
            np.add.at(found, edge[here], (slopes * other[None, :]).T[here])
        return found.T


def decompose(
    net: Dag | MLP | LayeredNet, output: int = 0, limit: int = LIMIT
) -> Decomposition:
    """The decomposition of one output, exactly as constructed: unrolled, pulled back, with
    signs (Le & Jegelka, Lemmas 5 to 7); for any net that is a graph or can be made one.

    Biases are paths from the constant 1. Not under jit.

    Args:
        output: the number of the output, from 0.
        limit: the greatest number of paths to enumerate.

    Raises:
        TypeError: if the net has no graph.
        ValueError: if there are more than `limit` paths; they are counted beforehand.
    """
    dag = graph_of(net)
    tree = unroll(dag, output_vertex(dag, output), limit)
    absolute, moduli = tree.pulled_back()
    signed, signs = absolute.signed()
    return Decomposition(dag, tree, absolute, signed, moduli, signs)


def path_decomposition(
    problem: Problem, net: Dag | MLP | LayeredNet, output: int = 0, limit: int = LIMIT
) -> Check:
    r"""$\nu = \mu\circ h = \mu'\circ h' = \langle Z, h\rangle$ on the data.

    Le & Jegelka, Lemma 1 (Lemma 2 of the first version). Entries (3, N): left μ(h), μ′(h′)
    and ⟨Z, h⟩, right the output. Equal up to rounding of the sum of all |h_p|.

    Args:
        output, limit: see `decompose`.

    Raises:
        TypeError, ValueError: see `decompose`; if net and problem do not fit.
    """
    check_fit(problem, net)
    x = problem.data.x
    found = decompose(net, output, limit)
    h = found.values(x)
    lhs = np.stack(
        [
            found.signed(h),
            found.absolute(found.absolute_values(x)),
            np.sum(found.gates(x) * h, axis=1),
        ]
    )
    size = np.sum(np.abs(h), axis=1)
    return equal(
        jnp.asarray(lhs),
        net(x)[None, :, output],
        assumptions={},
        slack=jnp.asarray(10 * np.finfo(h.dtype).eps * size)[None, :],
    )
