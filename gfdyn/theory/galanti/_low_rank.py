"""How near to low rank every matrix is, by its decay and a batch's gradient: Theorem 1."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from ...descent import on_batch
from ...nets import AbstractNet
from ...problem import Problem
from .._check import Check, at_most
from ._quantities import (
    ROUNDING,
    Norm,
    check_matrices,
    check_mean,
    decayed,
    distance_to_rank,
    matrix_norm,
)


# Batches at a time, whose gradients are held.
_CHUNK = 64


def low_rank_distance(
    problem: Problem,
    net: AbstractNet,
    weight_decay: ArrayLike,
    batches: Int[Array, "batches size"],
    norm: Norm = "frobenius",
    uses: int = 1,
) -> Check:
    r"""Every weight matrix is near rank B, if some batch of B samples has a small gradient:

    $$\min_{\operatorname{rank} V \le B} \|W_l - V\| \le \frac{1}{2\lambda}
    \min_{|\tilde S| = B} \big\|\nabla_{W_l} R_{\tilde S} + 2\lambda W_l\big\|.$$

    Galanti & Poggio, Thm 1 (eq. 10), with the minimum over the `batches` that are given:
    every single one gives a bound, the true minimum needs all of them (`all_batches`). It
    holds for any W and λ > 0, for any number of outputs, and for B = m; with batch
    normalisation, detached or not, by the statistics of the same batch. Entries (L,).

    Vacuous where the bound is ‖W_l‖ or more, which V = 0 achieves. On trained nets it
    almost always is.

    Args:
        weight_decay: λ of the penalty λ‖W‖².
        batches: samples, one batch a row.
        norm: of the difference.
        uses: how often a matrix acts on one sample (patches of a convolution): B times
            that is then the rank.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, the risk is no mean, or
            on another norm.
    """
    gradients = batch_gradient_norms(problem, net, weight_decay, batches, norm)
    rank = uses * batches.shape[1]
    decay = jnp.asarray(weight_decay, gradients.dtype)
    rhs = jnp.min(gradients, axis=0) / (2 * decay)
    sizes = jnp.stack([matrix_norm(w, norm) for w in net.weights])
    return at_most(
        jnp.stack([distance_to_rank(w, rank, norm) for w in net.weights]),
        rhs,
        assumptions={"decayed": decay > 0},
        vacuous=rhs >= sizes,
        slack=ROUNDING * float(jnp.finfo(rhs.dtype).eps) * sizes,
    )


def batch_gradient_norms(
    problem: Problem,
    net: AbstractNet,
    weight_decay: ArrayLike,
    batches: Int[Array, "batches size"],
    norm: Norm = "frobenius",
) -> Float[Array, "batches layers"]:
    r"""$\|\nabla_{W_l} R_{\tilde S} + 2\lambda W_l\|$ of each batch and layer, of which
    Theorem 1 takes the minimum. The mean over batches is what its heuristics speak of.

    Args:
        weight_decay, batches: see `low_rank_distance`.
        norm: of the gradient in each weight matrix.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, the risk is no mean, or
            on another norm.
    """
    check_mean(problem, net)
    check_matrices(net)
    decay = decayed(net, jnp.asarray(weight_decay, problem.data.x.dtype))

    def of(rows: Array) -> Array:
        gradient = jax.grad(on_batch(problem, rows).risk)(net)
        full = jax.tree.map(jnp.add, gradient, decay)
        return jnp.stack([matrix_norm(w, norm) for w in full.weights])

    return jax.lax.map(of, batches, batch_size=_CHUNK)
