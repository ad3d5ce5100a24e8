"""Ranks as they are counted during training, after Galanti & Poggio."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from .._numbers import check_number, is_threshold
from ..nets import AbstractNet
from ..problem import Problem
from ._spectra import Normalisation, check_normalisation, check_threshold


def layer_ranks(
    problem: Problem,
    net: AbstractNet,
    threshold: float = 1e-4,
    normalisation: Normalisation = "frobenius",
    zero_norm: ArrayLike = 0.0,
) -> Int[Array, " layers"]:
    r"""$\#\{i : \sigma_i(W_l) > \text{threshold} \cdot \|W_l\|\}$, l = 1, …, L.

    Galanti & Poggio, §4, who leave the norm open; it is Frobenius' in their later code,
    with 1e-3. Decay alone keeps the shape of a spectrum, so that the normalised rank of
    what has collapsed may be full (their Fig. 1 has rank 0 there): see `zero_norm`. −1
    where an entry is not finite. Beside it is `numerical_rank`, which knows neither of the
    two.

    Args:
        threshold: what σ_i must exceed, relative to the norm; 0 or more.
        normalisation: the norm: "frobenius", "spectral", or "none" for 1 in its place.
        zero_norm: a matrix with ‖W_l‖_F up to it counts as zero, of rank 0.

    Raises:
        TypeError, ValueError: on an unknown normalisation, or unless `threshold` and
            `zero_norm` are numbers of at least 0.
    """
    del problem
    check_normalisation(normalisation)
    check_threshold(threshold)
    remedy = "must be 0 or more: the norm up to which a matrix counts as zero."
    check_number("zero_norm", zero_norm, is_threshold, remedy)

    def rank(w: Array) -> Int[Array, ""]:
        # In units of the largest entry, whose powers neither under- nor overflow.
        unit = jnp.max(jnp.abs(w))
        s = jnp.linalg.svd(w / jnp.where(unit > 0, unit, 1), compute_uv=False)
        size = jnp.sqrt(jnp.sum(s**2))
        sizes = {"none": 1 / jnp.where(unit > 0, unit, 1), "spectral": s[0]}
        count = jnp.sum(s > threshold * sizes.get(normalisation, size))
        count = jnp.where(unit * size > jnp.asarray(zero_norm, w.dtype), count, 0)
        return jnp.where(jnp.isfinite(unit), count, -1)

    return jnp.stack([rank(w) for w in net.weights])


def average_rank(
    problem: Problem,
    net: AbstractNet,
    threshold: float = 1e-4,
    normalisation: Normalisation = "frobenius",
    zero_norm: ArrayLike = 0.0,
    include_head: bool = False,
) -> Float[Array, ""]:
    r"""The mean of the `layer_ranks`, of the hidden layers.

    Galanti & Poggio, §4, who average over "the trainable matrices"; their later code leaves
    out the last one. NaN where an entry is not finite.

    Args:
        threshold, normalisation, zero_norm: see `layer_ranks`.
        include_head: whether the last matrix counts as well.

    Raises:
        TypeError, ValueError: see `layer_ranks`; on a net of a single matrix without its
            head.
    """
    ranks = layer_ranks(problem, net, threshold, normalisation, zero_norm)
    ranks = ranks if include_head else ranks[:-1]
    if not ranks.size:
        raise ValueError("net has no matrix but its head; pass include_head=True.")
    mean = jnp.mean(ranks.astype(net.weights[0].dtype))
    return jnp.where(jnp.any(ranks < 0), jnp.nan, mean)
