"""Gradients of single samples, spectra, distances: from which the statements are made."""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._types import Matrix, Scalar
from ...nets import AbstractNet, Dag, LayeredNet, weight_mask
from ...problem import Problem, check_fit


Norm = Literal["frobenius", "spectral", "nuclear"]

# Ratios of singular values below this are 0 but for rounding, in units of the precision.
ROUNDING = 1e4


def check_mean(problem: Problem, net: AbstractNet) -> None:
    """Raise unless the net fits, and the risk is the mean over samples of the paper."""
    check_fit(problem, net)
    if problem.reduction != "mean":
        raise ValueError(
            f"reduction={problem.reduction!r}, but the penalty λ‖W‖² is beside a mean "
            "over samples here; use Problem(data, loss)."
        )


def check_matrices(net: AbstractNet) -> None:
    """Raise unless the weights are matrices between layers, or kernels.

    Raises:
        TypeError: on a graph of single neurons.
        ValueError: on a trained diagonal, whose gradients have any rank.
    """
    if isinstance(net, Dag):
        raise TypeError(
            "net is a Dag, whose edges join single neurons, not layers; give a "
            "gf.nets.LayeredNet, as gf.nets.sequential builds them."
        )
    layers = net.layers if isinstance(net, LayeredNet) else ()
    for i, layer in enumerate(layers, start=1):
        if any(c.trained and not c.mixes for c in layer.connections):
            raise ValueError(
                f"layer {i} has a trained diagonal, whose gradients have any rank; the "
                "statement is of dense connections and convolutions."
            )


def normalised_receivers(net: AbstractNet) -> tuple[bool, ...]:
    """Of each weight matrix, whether what it leads to has batch normalisation."""
    if not isinstance(net, LayeredNet):
        return (False,) * len(net.weights)
    return tuple(layer.norm is not None for layer in net.layers if layer.is_trained)


def sample_loss(problem: Problem, net: AbstractNet, x: Array, y: Array) -> Scalar:
    """ℓ(f(x), y) of a single sample."""
    return problem.loss.values(net(x[None]), y[None])[0]


def sample_gradient(problem: Problem, net: AbstractNet, x: Array, y: Array) -> AbstractNet:
    """g_i = ∇ℓ(f(x_i), y_i), without decay."""
    return jax.grad(lambda net: sample_loss(problem, net, x, y))(net)


def decayed(net: AbstractNet, weight_decay: Scalar) -> AbstractNet:
    """2λW, the gradient of the penalty λ Σ ‖W_l‖²; 0 for what is no weight."""
    return jax.tree.map(
        lambda is_weight, w: 2 * weight_decay * w if is_weight else jnp.zeros_like(w),
        weight_mask(net),
        net,
    )


def square(net: Any) -> Scalar:
    """‖·‖² over all arrays."""
    return jnp.sum(jnp.stack([jnp.sum(w**2) for w in jax.tree.leaves(net)]))


def difference(a: AbstractNet, b: AbstractNet) -> AbstractNet:
    """a − b."""
    return jax.tree.map(jnp.subtract, a, b)


def singular_values(matrix: Matrix) -> Float[Array, " _"]:
    """Those of the matrix, falling."""
    return jnp.linalg.svd(matrix, compute_uv=False)


def excess(matrix: Matrix, rank: int) -> Scalar:
    """σ_{rank+1}/σ_1: 0 exactly at this rank or a lower one; 0 for a matrix of zeros."""
    s = singular_values(matrix)
    if rank >= s.shape[0]:
        return jnp.zeros((), s.dtype)
    return s[rank] / jnp.where(s[0] > 0, s[0], 1)


def distance_to_rank(matrix: Matrix, rank: int, norm: Norm = "frobenius") -> Scalar:
    r"""$\min_{\operatorname{rank} V \le r} \|W - V\|$: the norm of the singular values
    after the r-th, by Eckart, Young & Mirsky.

    Args:
        matrix: W.
        rank: r ≥ 0.
        norm: of the difference.

    Raises:
        ValueError: on a rank below 0 or another norm.
    """
    if rank < 0:
        raise ValueError(f"rank={rank} must be 0 or more.")
    return _of_values(singular_values(matrix)[rank:], norm)


def matrix_norm(matrix: Matrix, norm: Norm) -> Scalar:
    """The norm by name."""
    return distance_to_rank(matrix, 0, norm)


def _of_values(s: Array, norm: str) -> Scalar:
    if norm not in get_args(Norm):
        raise ValueError(f"norm={norm!r}; use 'frobenius', 'spectral' or 'nuclear'.")
    if norm == "frobenius":
        return jnp.sqrt(jnp.sum(s**2))
    return jnp.sum(s) if norm == "nuclear" else jnp.max(s, initial=0.0)
