"""The balanced spectral initialisation of deep linear networks."""

import jax.numpy as jnp
from jaxtyping import ArrayLike

from ..._numbers import check_count, check_number, is_positive
from ...nets import Dense, Diagonal, Layer, LayeredNet, identity
from ...problem import Problem
from ..exact import linear_map


def spectral(problem: Problem, depth: int, norm: ArrayLike) -> LayeredNet:
    r"""A balanced linear network along the singular directions of the data.

    With $A = G^\top X = U\,\mathrm{diag}(\sigma)\,V^\top$, $G = \nabla C(0)$, and all gains
    equal,

    $$W_1 = a V^\top, \quad W_l = a I, \quad W_L = -a U, \quad
      \|\theta\|^2 = L\,n\,a^2,$$

    a sum of one branch for each of the $n = \min(d, k)$ directions. Where the inputs are
    white, $X^\top X/N = c I$, branches do not touch, and the product $p = a^L$ of each
    grows for itself: with the squared loss $\dot p = L\,p^{2-2/L}(\sigma - c\,p)$ (Saxe et
    al., 2014; Arora et al., 2019). Hidden layers are diagonal, which a rotation of their
    units brings any balanced network of these directions to.

    Args:
        problem: R.
        depth: L ≥ 2, the number of weight matrices.
        norm: ‖θ‖, such as `jnp.exp(-200.0)` in float64.

    Raises:
        ValueError: unless `depth` is at least 2 and `norm` positive and finite.

    Example:
        `gf.escape.spectral(problem, depth=3, norm=1e-8)` starts a chain of n saddles.
    """
    check_count("depth", depth, 2, "must be 2 or more matrices.")
    check_number("norm", norm, is_positive, "must be positive and finite, such as 1e-8.")
    u, _, vt = jnp.linalg.svd(linear_map(problem), full_matrices=False)
    branches = len(vt)
    gain = jnp.asarray(norm, vt.dtype) / (depth * branches) ** 0.5
    gains = jnp.full((branches,), gain)
    maps = [Dense(gain * vt), *[Diagonal(gains)] * (depth - 2), Dense(-gain * u)]
    sizes = [branches] * (depth - 1) + [u.shape[0]]
    layers = [
        Layer((connection,), None, (i,), identity(), (size,))
        for i, (connection, size) in enumerate(zip(maps, sizes, strict=True))
    ]
    return LayeredNet((vt.shape[1],), layers)
