"""The deeper networks of little norm from which Theorems 4 and 5 follow."""

import math

import jax.numpy as jnp

from ..._types import Scalar
from ...nets import MLP, check_mlp, norm


def minimum_norm_witness(net: MLP, depth: int) -> MLP:
    r"""The network N′ of a greater depth k′ with $N'(x) = \max(N(x), 0)$:

    $$W_l' = \alpha W_l\ (l \le k), \quad W_l' = \beta\ (k < l \le k'), \qquad
    \alpha = B^{-(k'-k)/k'},\ \beta = B^{k/k'},\ B = \max_l \|W_l\|_F.$$

    So $\|\theta'\|^2 \le k' B^{2k/k'}$; `equal_layers` of it has
    $\|\theta'\|^2 = k' \prod_l \|W_l\|_F^{2/k'}$. Timor et al., proof of Thm 4, eq. 18.

    Args:
        depth: k′ > k, with k that of `net`.

    Raises:
        TypeError: if `net` is no MLP, or `depth` no integer.
        ValueError: unless it has one output, ReLUs, at least two layers, and fewer than
            `depth`.
    """
    check_reference(net, depth)
    alpha, beta = _factors(net, depth, root=1.0)
    added = [beta[None, None]] * (depth - net.degree)
    return MLP.from_weights([*(alpha * w for w in net.weights), *added])


def maximum_margin_witness(net: MLP, depth: int) -> MLP:
    r"""The network N′ of a greater depth k′ with $N' = N$:

    $$W_l' = \alpha W_l\ (l < k),\quad
    W_k' = \alpha \begin{pmatrix} W_k \\ -W_k \end{pmatrix},\quad
    W_l' = \beta I_2\ (k < l < k'),\quad W_{k'}' = \beta (1, -1),$$

    $\alpha = (\sqrt2/B)^{(k'-k)/k'}$, $\beta = (\sqrt2/B)^{-k/k'}$, $B = \max_l \|W_l\|_F$;
    no identities if k′ = k + 1. So $\|\theta'\|^2 \le 2 (2/B^2)^{-k/k'} (k' + 1)$;
    `equal_layers` of it has $k'\,2^{(k'-k+1)/k'} \prod_l \|W_l\|_F^{2/k'}$, which is less.
    Timor et al., proof of Thm 5, eq. 20, who print the last layer as a column.

    Args:
        depth: k′ > k, with k that of `net`.

    Raises:
        TypeError: if `net` is no MLP, or `depth` no integer.
        ValueError: unless it has one output, ReLUs, at least two layers, and fewer than
            `depth`.
    """
    check_reference(net, depth)
    alpha, beta = _factors(net, depth, root=math.sqrt(2))
    *first, last = [alpha * w for w in net.weights]
    identities = [beta * jnp.eye(2, dtype=beta.dtype)] * (depth - net.degree - 1)
    both = jnp.concatenate([last, -last])
    final = jnp.stack([beta, -beta])[None, :]
    return MLP.from_weights([*first, both, *identities, final])


def equal_layers(net: MLP) -> MLP:
    r"""The same function with all ‖W_l‖_F equal: of least norm among those that rescale
    layers (Timor et al., Lemmas 14 and 15). With a layer of zeros, all become zero.

    Raises:
        TypeError: if `net` is no MLP.
        ValueError: on a stack of nets.
    """
    check_mlp(net)
    sizes = jnp.stack([norm(w) for w in net.weights])
    factors = jnp.exp(log_mean_size(net)) / jnp.where(sizes > 0, sizes, 1)
    weights = [w * f for w, f in zip(net.weights, factors, strict=True)]
    return MLP.from_weights(weights, net.activations)


def log_mean_size(net: MLP) -> Scalar:
    """log of the geometric mean of the ‖W_l‖_F."""
    return jnp.mean(jnp.log(jnp.stack([norm(w) for w in net.weights])))


def check_reference(net: MLP, depth: int) -> None:
    """Raise unless the theorems compare a network of this greater depth with the net.

    Raises:
        TypeError: if it is no MLP, or the depth no integer.
        ValueError: unless it has one output, ReLUs, and 2 ≤ k < depth.
    """
    check_mlp(net)
    if not isinstance(depth, int):
        raise TypeError(f"depth={depth!r} must be an integer: the number of layers k′.")
    if net.out_size != 1:
        raise ValueError(f"net has {net.out_size} outputs; the theorems are for one.")
    if net.degree < 2 or any(sigma.slope != 0 for sigma in net.activations):
        names = [sigma.name for sigma in net.activations]
        raise ValueError(
            f"net has {net.degree} layers with activations {names}; the theorems are for "
            "ReLU networks of at least two layers."
        )
    if depth <= net.degree:
        raise ValueError(
            f"depth={depth} must exceed the depth of the net, k={net.degree}: the theorems "
            "bound ranks in deeper networks, and say nothing for k′ = k."
        )


def _factors(net: MLP, depth: int, root: float) -> tuple[Scalar, Scalar]:
    """(root/B)^{(k'-k)/k'} and (root/B)^{-k/k'}: αᵏ β^{k'-k} = 1."""
    largest = jnp.max(jnp.stack([norm(w) for w in net.weights]))
    ratio = root / jnp.where(largest > 0, largest, 1)
    return ratio ** ((depth - net.degree) / depth), ratio ** (-net.degree / depth)
