"""Networks that are a sum of networks of width one, their branches.

Unit b of each hidden layer feeds unit b of the next one alone: the branch b is the path
through these units, f(x) = Σ_b f_b(x). Two-layer networks are such sums, of their neurons;
deep ones are where all connections between hidden layers are `Diagonal`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Branch
from ._base import AbstractNet
from ._connections import Dense, Diagonal
from ._layered import LayeredNet
from ._mlp import MLP


def check_branches(net: AbstractNet) -> None:
    """Raise unless the network is a sum of branches.

    Raises:
        ValueError: on any other network.
    """
    if not _is_sum(net):
        raise ValueError(
            f"net is a {type(net).__name__} whose hidden units feed several of the next "
            "layer; give a two-layer MLP, or a LayeredNet whose connections between hidden "
            "layers are Diagonal, without biases, as gf.escape.spectral builds it."
        )


def branch_dot(a: AbstractNet, b: AbstractNet) -> Branch:
    """⟨a_b, b_b⟩ of each branch b.

    Args:
        a: a sum of branches.
        b: another one, of the same shape.
    """
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    *rows, columns = [p * q for p, q in pairs]
    products = [p if p.ndim == 1 else jnp.sum(p, axis=1) for p in rows]
    return jnp.sum(jnp.stack([*products, jnp.sum(columns, axis=0)]), axis=0)


def scale_branches(factors: Branch, net: AbstractNet) -> AbstractNet:
    """The parameters of each branch times its factor.

    Args:
        factors: one for each branch.
        net: a sum of branches.
    """
    *rows, columns = jax.tree.leaves(net)
    scaled = [factors * p if p.ndim == 1 else factors[:, None] * p for p in rows]
    return _like(net, [*scaled, factors[None, :] * columns])


def scale_outputs(factors: Branch, net: AbstractNet) -> AbstractNet:
    """The outputs of each branch times its factor, by its last weights.

    Args:
        factors: one for each branch.
        net: a sum of branches.
    """
    *rows, columns = jax.tree.leaves(net)
    return _like(net, [*rows, factors[None, :] * columns])


def _like(net: AbstractNet, leaves: list[Array]) -> AbstractNet:
    return jax.tree.unflatten(jax.tree.structure(net), leaves)


def _is_sum(net: AbstractNet) -> bool:
    if isinstance(net, MLP):
        return net.degree == 2
    if not isinstance(net, LayeredNet) or len(net.layers) < 2:
        return False
    kinds = [Dense, *[Diagonal] * (len(net.layers) - 2), Dense]
    return all(
        layer.is_plain
        and layer.sources == (i,)
        and layer.positions == 1
        and isinstance(layer.connections[0], kind)
        for i, (layer, kind) in enumerate(zip(net.layers, kinds, strict=True))
    )
