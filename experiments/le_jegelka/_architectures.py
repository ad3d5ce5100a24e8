"""The architectures whose invariances `invariances.py` measures, and what moves
on them: what no version should call conserved, or only the first one does.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

import gfdyn as gf
from gfdyn.nets import (
    AbstractNet,
    LayeredNet,
    conv,
    dense,
    densely_connected,
    resnet_diagonal,
    resnet_free,
    resnet_identity,
    sequential,
)


Controls = dict[str, Array]
OUTPUT = dense(1, "identity")

# Input shape, and the blocks with an activation. Between them they have each row of the
# table of Theorem 1.
LAYERED: dict[str, tuple[tuple[int, ...], Callable[[str], list]]] = {
    "FC": ((3,), lambda s: [dense(4, s), dense(3, s), OUTPUT]),
    "FC, biases": (
        (3,),
        lambda s: [dense(4, s, True), dense(3, s, True), dense(1, "identity", True)],
    ),
    "conv": ((4, 2), lambda s: [conv(3, 3, 1, 1, s), conv(3, 2, 1, 0, s), OUTPUT]),
    "strided conv": (
        (6, 2),
        lambda s: [conv(3, 3, 2, [(2, 1)], s, True), conv(2, 2, 1, 0, s), OUTPUT],
    ),
    "conv, 2-D": ((3, 4, 1), lambda s: [conv(3, (2, 3), (1, 2), "SAME", s), OUTPUT]),
    "conv–Free": ((4, 2), lambda s: [conv(3, 2, 1, 0, s), resnet_free(3, 3, s), OUTPUT]),
    "ResNetFree": (
        (3,),
        lambda s: [dense(3, s), resnet_free(4, 3, s), resnet_free(2, 3, s), OUTPUT],
    ),
    "ResNetDiagonal": (
        (3,),
        lambda s: [dense(3, s), resnet_diagonal(4, s), resnet_diagonal(2, s), OUTPUT],
    ),
    "ResNetIdentity": ((3,), lambda s: [dense(3, s), resnet_identity(4, s), OUTPUT]),
    "DenseNet": ((3,), lambda s: [dense(3, s), densely_connected([3, 2], s), OUTPUT]),
}
GRAPH = "graph"
NAMES = (*LAYERED, GRAPH)


def build(name: str, activation: str, seed: int) -> AbstractNet:
    """The net with normal weights and biases; the graph has twins, skips, a constant edge
    and a weight that two edges share."""
    rng = np.random.default_rng(seed)
    if name == GRAPH:
        edges = [(0, 2), (1, 2), (0, 3), (1, 3), (2, 4), (3, 4), (0, 5), (2, 5), (3, 5)]
        edges += [(4, 7), (5, 7), (5, 6), (6, 7)]
        parameters = [*range(11), 11, 11]
        return gf.nets.Dag(
            edges,
            0.7 * rng.normal(size=12),
            2,
            activation=activation,
            constants={(4, 6): 0.5},
            parameters=parameters,
        )
    shape, blocks = LAYERED[name]
    net = sequential(shape, blocks(activation), key=jr.key(seed), scale=0.7)
    # Biases would start from 0.
    return jax.tree.map(
        lambda w: w if w.any() else jnp.asarray(rng.normal(size=w.shape)), net
    )


def controls(name: str, net: AbstractNet) -> Controls:
    """Matrices that are not conserved: M off its diagonal, unless the units are linear;
    what is wrong for the architecture, by name."""
    found: Controls = {}
    for m in net.conserved():
        if m.form in ("blocks", "diagonal"):
            off = 1 - jnp.eye(len(m.incoming))
            found[f"{m.name}, off the diagonal"] = off * m.matrix
    if isinstance(net, LayeredNet) and name in WRONG:
        found |= WRONG[name](net)
    return found


def _gram(w: Array) -> Array:
    return w.T @ w


def _biases_left_out(net: LayeredNet) -> Controls:
    first, second, last = net.layers
    norms = [jnp.sum(layer.incoming**2) for layer in (first, last)]
    return {
        "biases left out": _gram(second.weight) - _gram(first.weight.T),
        "cuts without the biases above": (norms[0] - norms[1])[None, None],
    }


def _conv_flattenings(net: LayeredNet) -> Controls:
    first, second, last = net.layers
    (kernel,) = jax.tree.leaves(second.connections)
    positions, channels = second.shape
    window, entering, _ = kernel.shape
    mixed = kernel.reshape(window * channels, entering)
    printed = jnp.moveaxis(kernel, 1, 2).reshape(-1, entering)
    swapped = _swapped(last.weight, positions, channels)
    return {
        "conv–conv, channels not kept": _gram(mixed) - _gram(first.weight.T),
        "conv as a × bc": _gram(last.weight.reshape(-1, channels)) - _gram(printed),
        "conv–FC, positions and channels swapped": _gram(swapped) - _gram(second.weight.T),
    }


def _conv_free_flattenings(net: LayeredNet) -> Controls:
    first, inner, block, _ = net.layers
    (u, z), (y,) = (jax.tree.leaves(layer.connections) for layer in (block, inner))
    positions, channels = first.shape
    into = jnp.concatenate([u, z], axis=1).reshape(-1, channels)
    swapped = _swapped(jnp.concatenate([y, z]), positions, channels)
    before = _gram(first.weight.T)
    return {
        "conv–Free, [U Z] for [Y; Z]": _gram(into) - before,
        "conv–Free, positions and channels swapped": _gram(swapped) - before,
    }


def _swapped(w: Array, positions: int, channels: int) -> Array:
    """A matrix (d, l c) as (d l, c), its columns read as if channels came first."""
    return jnp.swapaxes(w.reshape(-1, channels, positions), 1, 2).reshape(-1, channels)


def _around_identities(net: LayeredNet) -> Controls:
    first, inner, block, last = net.layers
    before = _gram(inner.weight) - _gram(first.weight.T)
    behind = _gram(last.weight) - _gram(block.weight.T)
    return {"before the skip": before, "behind the skip": behind}


WRONG: dict[str, Callable[[LayeredNet], Controls]] = {
    "FC, biases": _biases_left_out,
    "conv": _conv_flattenings,
    "conv–Free": _conv_free_flattenings,
    "ResNetIdentity": _around_identities,
}
