r"""By how much an output may change with a path: Lemma 8 of the corrected version.

In $\nu = \mu \circ h$ the values $h_p$ of the paths are free of each other, so that each
node of the tree μ has a kink of its own, also where all of them are one neuron's.
"""

import itertools
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, Int

from ...nets import MLP, Dag, LayeredNet
from ...problem import Problem, check_fit
from .._check import Check, equal
from ._decomposition import LIMIT, Decomposition, decompose
from ._graph import vertex_preactivations
from ._version import PatternVersion, check_version


# |z| below this part of the largest is a kink.
_KINK = 1e-9

# The ways in which a value can move: down (−1), not at all (0), up (1).
Moves = set[int]


def path_subdifferentials(
    found: Decomposition, x: ArrayLike
) -> Float[np.ndarray, "ends samples paths"]:
    r"""$\partial_p \mu(h(x))$, the entries of Clarke's subdifferential of the signed μ:
    the two ends of an interval, which coincide unless the path meets a kink.

    They are the least and the largest product of gates along the path on the pieces of μ
    that meet at h(x): a neuron on its kink may stand on either side of it, as far as what
    leads to it can move there.

    Args:
        found: the net as `decompose` gives it.
        x: inputs, (N, d).

    Returns:
        The lower ends, then the upper ones: (2, N, paths).

    Raises:
        ValueError: unless x is (N, d).
    """
    tree = found.unrolled
    # Behind a weight of 0 all nodes of the tree are on their kinks.
    reaches = tree.along(np.abs(tree.weights)[None])[0] > 0
    sides = np.where(reaches, _sides(found, x)[:, tree.vertices], 0)
    each = [_Sample(found, side).intervals() for side in sides]
    return np.moveaxis(np.asarray(each, tree.weights.dtype), 2, 0)


def equal_path_subdifferentials(
    problem: Problem,
    net: Dag | MLP | LayeredNet,
    output: int = 0,
    limit: int = LIMIT,
    version: PatternVersion = "corrected",
) -> Check:
    r"""$\partial_p \mu = \partial_q \mu$ on each sample on which the neurons of two paths p
    and q of one length have the same activation pattern, one by one.

    Le & Jegelka, Lemma 8, which is new in the corrected version. Entries (2, N, pairs) with
    the ends of both intervals; pairs p < q of one length.

    Args:
        output, limit: see `decompose`.
        version: by default a neuron on its kink is like no other. `"second"`, as printed,
            counts such a neuron as active, and is false; `"first"` ignores the patterns.

    Raises:
        TypeError, ValueError: see `decompose`; if net and problem do not fit; on another
            version.
    """
    check_version(version, PatternVersion)
    check_fit(problem, net)
    found, x = decompose(net, output, limit), problem.data.x
    paths = found.paths
    lengths = np.sum(paths >= 0, axis=1)
    pairs = [
        (p, q)
        for p, q in itertools.combinations(range(len(paths)), 2)
        if lengths[p] == lengths[q]
    ]
    first, second = np.reshape(np.asarray(pairs, int), (-1, 2)).T
    patterns = _patterns(found, x, version)
    alike = np.all(patterns[:, first] == patterns[:, second], axis=2)
    ends = path_subdifferentials(found, x)
    return equal(
        jnp.asarray(ends[:, :, first]),
        jnp.asarray(ends[:, :, second]),
        assumptions={"same patterns": jnp.asarray(np.stack([alike, alike]))},
    )


class _Sample:
    """The tree of all paths on one sample: which of its values can move, and where to."""

    def __init__(self, found: Decomposition, sides: Int[np.ndarray, " nodes"]):
        """Look at all nodes, the leaves first."""
        self._tree = found.unrolled
        self._sides = sides
        self._children: dict[int, list[int]] = {}
        for node, parent in enumerate(self._tree.parents.tolist()):
            self._children.setdefault(parent, []).append(node)
        self._moves: dict[int, Moves] = {}
        # Children come behind their parents.
        for node in reversed(range(len(self._tree.parents))):
            entering = self._children.get(node)
            moves = {-1, 1} if entering is None else self._sums(entering)
            self._moves[node] = {self._passed(node, move)[1] for move in moves}

    def intervals(self) -> list[tuple[float, float]]:
        """The least and the largest product of gates along each path."""
        return [self._interval(leaf) for leaf in self._tree.leaves.tolist()]

    def _interval(self, node: int) -> tuple[float, float]:
        """Of a path, its products so far by where the node moves with them."""
        products = {-1: {1.0}, 1: {1.0}}
        while (parent := int(self._tree.parents[node])) >= 0:
            others = self._sums([c for c in self._children[parent] if c != node])
            risen: dict[int, set[float]] = {}
            for move, so_far in products.items():
                arriving = move * self._sign(node)
                # The others may move by as much more, or as much less.
                moves = others - {0} | {arriving} if arriving else others
                for gate, out in (self._passed(parent, m) for m in moves):
                    found = risen.setdefault(out, set()) | {gate * p for p in so_far}
                    risen[out] = {min(found), max(found)}
            products, node = risen, parent
        ends = [p for so_far in products.values() for p in so_far]
        return min(ends), max(ends)

    def _sums(self, nodes: Iterable[int]) -> Moves:
        """Where the weighted sum of these can move, each as far as one likes."""
        parts = [{self._sign(c) * move for move in self._moves[c]} for c in nodes]
        moves = {move for part in parts for move in part if move}
        return moves | {0} if all(0 in part for part in parts) else moves

    def _passed(self, node: int, move: int) -> tuple[float, int]:
        """The gate of a node where z moves like this, and where its value moves."""
        slope = float(self._tree.slopes[node])
        side = int(self._sides[node]) or move
        gate = 1.0 if side >= 0 else slope
        return gate, move if gate > 0 else 0

    def _sign(self, node: int) -> int:
        return -1 if self._tree.weights[node] < 0 else 1


def _sides(found: Decomposition, x: ArrayLike) -> Int[np.ndarray, "samples vertices"]:
    """The side of its kink on which each vertex stands, 0 on it; +1 where it has none."""
    z = vertex_preactivations(found.dag, x)
    hidden = [v for v, sigma in found.dag.vertex_activations if not sigma.is_linear]
    sides = np.ones(z.shape, int)
    kink = _KINK * np.max(np.abs(z[:, hidden]), initial=0.0)
    sides[:, hidden] = np.sign(np.where(np.abs(z[:, hidden]) > kink, z[:, hidden], 0))
    return sides


def _patterns(
    found: Decomposition, x: ArrayLike, version: PatternVersion
) -> Float[np.ndarray, "samples paths length"]:
    """What has to agree along two paths, vertex by vertex; NaN agrees with nothing."""
    sides = _sides(found, x).astype(float)
    if version == "first":
        sides = np.ones_like(sides)
    elif version == "second":
        sides = np.where(sides >= 0, 1.0, -1.0)
    else:
        sides = np.where(sides == 0, np.nan, sides)
    behind = np.asarray([v for _, v in found.dag.edges])
    paths = found.paths
    return np.where(paths < 0, 1.0, sides[:, behind[paths]])
