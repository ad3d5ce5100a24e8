r"""Linear nets: every escape direction, its speed and its stability, in closed form.

With identity activations $\mathcal L_0 = \langle A, W_L \cdots W_1\rangle$ with $A = G^\top
X = U \,\mathrm{diag}(\sigma_k)\, V^\top$, (k, d). With samples as columns, as in Bantzis et
al., A is GXᵀ. Singular directions are counted from 0, the largest first.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._numbers import check_counts
from ..._tracing import is_concrete
from ...nets import MLP
from ...problem import Problem
from ._direction import EscapeDirection, check_depth, check_width


# How nearly singular values of a two-layer net must agree, relative to the largest.
_EQUAL = 1e-5


def linear_optimum(problem: Problem, depth: int, width: int = 1) -> EscapeDirection:
    r"""The fastest escape direction of linear nets: $s^* = \sigma_1(A)$ for L ≥ 2:

    $$W_1 = e_1 v_1^\top, \quad W_l = e_1 e_1^\top, \quad W_L = -u_1 e_1^\top.$$

    For L = 1 it is the only one, W = −A/‖A‖, with s* = ‖A‖_F.

    Args:
        depth: L ≥ 1, the number of weight matrices.
        width: of every hidden layer, 1 or more; its further neurons are zero. For L = 1
            there is none.

    Raises:
        ValueError: if `depth` or `width` is not a positive integer, or A = 0.
    """
    check_depth(depth, least=1)
    check_width(width)
    if depth > 1:
        return linear_critical_point(problem, depth, [0], width)
    a = linear_map(problem)
    speed = jnp.linalg.norm(a)
    _check_seen(problem, speed[None], [0], "all its directions")
    return EscapeDirection(MLP.from_weights([-a / speed], "identity"), speed)


def linear_critical_point(
    problem: Problem, depth: int, subset: Sequence[int], width: int | None = None
) -> EscapeDirection:
    r"""The escape direction of linear nets along a subset K of singular directions:

    $$W_1 = \mathrm{diag}(a) V_K^\top, \quad W_l = \mathrm{diag}(a), \quad
    W_L = -U_K\,\mathrm{diag}(a), \quad a_k = (s_K/\sigma_k)^{1/(L-2)},$$

    with s_K the `linear_speed`. Up to rotations of hidden layers and of equal singular
    directions there are no others; only the first direction alone is stable. For L = 2 the
    singular values in K must be equal, and $a_k = |K|^{-1/2}$.

    Args:
        depth: L ≥ 2, the number of weight matrices.
        subset: K, numbers below min(d, k).
        width: of every hidden layer, at least |K|; None for |K|.

    Raises:
        ValueError: unless `depth` is at least 2, if `subset` is no subset, its singular
            values vanish or, for L = 2, differ, or `width` is too small.
    """
    check_depth(depth)
    a = linear_map(problem)
    index = _check_subset(subset, min(a.shape))
    check_width(len(index) if width is None else width, least=len(index))
    u, sigma, vt = jnp.linalg.svd(a, full_matrices=False)
    _check_seen(problem, sigma, index, f"subset={index.tolist()}")
    used, u, vt = sigma[index], u[:, index], vt[index]
    speed = linear_speed(used, depth)
    if depth == 2:
        gains = jnp.full_like(used, len(index) ** -0.5)
    else:
        gains = (speed / used) ** (1 / (depth - 2))
    padding = 0 if width is None else width - len(index)
    first = jnp.pad(gains[:, None] * vt, [(0, padding), (0, 0)])
    middle = jnp.diag(jnp.pad(gains, (0, padding)))
    last = jnp.pad(-u * gains[None, :], [(0, 0), (0, padding)])
    weights = [first, *[middle] * (depth - 2), last]
    return EscapeDirection(MLP.from_weights(weights, "identity"), speed)


def linear_speed(singular_values: Float[Array, " subset"], depth: int) -> Float[Array, ""]:
    r"""The speed along a subset K of singular directions of a linear net:

    $$s_K = \Big( \sum_{k \in K} \sigma_k^{-2/(L-2)} \Big)^{-(L-2)/2}.$$

    One direction has $s = \sigma_k$ at every depth; $|K|$ equal ones $\sigma
    |K|^{-(L-2)/2}$; for L = 2, s = σ; for L = 1, $s = \|\sigma\|$.

    Args:
        singular_values: σ_k of A for k in K, in any order; positive, and equal for L = 2.
        depth: L ≥ 1, the number of weight matrices.

    Raises:
        ValueError: if `depth` is not a positive integer, there is no singular value, one is
            not positive, or they differ for L = 2.
    """
    check_depth(depth, least=1)
    if is_concrete(singular_values):
        values = np.asarray(singular_values)
        if not values.size or not (values > 0).all():
            raise ValueError(
                f"singular_values={values} must all be positive, at least one: along the "
                "others a linear net does not move."
            )
        if depth == 2 and np.ptp(values) > _EQUAL * values.max():
            raise ValueError(
                f"singular_values={values} differ: escape directions of a linear net of "
                "depth=2 join only equal ones, choose one or depth=3."
            )
    largest = jnp.max(singular_values)
    if depth == 2:
        return largest
    powers = (singular_values / largest) ** (-2 / (depth - 2))
    return largest * jnp.sum(powers) ** (-(depth - 2) / 2)


def linear_hessian_spectrum(
    problem: Problem, depth: int, index: int = 0, width: int = 1
) -> Float[Array, " tangents"]:
    r"""The eigenvalues, rising, of `sphere_hessian` at the rank-one escape direction of a
    linear net along one singular direction k:

    | eigenvalue | multiplicity |
    |---|---|
    | 0 (rotations of hidden layers) | (L − 1)(n − 1) |
    | 2s, s = σ_k | (L − 1) n |
    | s ± σ_j, each j ≠ k | 1 for L ≥ 3, n for L = 2 |
    | s | all others |

    $\sigma_k - \sigma_1 < 0$ makes all but the first unstable; near that one the flow
    converges like $e^{-(\sigma_1 - \sigma_2)\tau}$.

    Args:
        depth: L ≥ 2, the number of weight matrices.
        index: which singular direction k is, 0 for the first; σ_k must not be 0.
        width: n, the units of each of the L − 1 hidden layers.

    Raises:
        ValueError: unless `depth` is at least 2, `width` at least 1 and `index` below
            min(d, k); if σ_k = 0, which does not show in traced data.
    """
    check_depth(depth)
    check_width(width)
    a = linear_map(problem)
    outputs, inputs = a.shape
    check_counts(0, min(a.shape) - 1, index=index)
    sigma = jnp.linalg.svd(a, compute_uv=False)
    remedy = "nothing escapes there; take an index whose singular value is not 0"
    _check_seen(problem, sigma, [index], f"index={index}", remedy)
    speed = sigma[index]
    others = jnp.repeat(jnp.delete(sigma, index), width if depth == 2 else 1)
    size = width * (inputs + outputs) + (depth - 2) * width**2
    zeros, twice = (depth - 1) * (width - 1), (depth - 1) * width
    bulk = size - 1 - zeros - twice - 2 * len(others)
    parts = [
        jnp.zeros(zeros, sigma.dtype),
        jnp.full(twice, 2 * speed),
        speed - others,
        speed + others,
        jnp.full(bulk, speed),
    ]
    return jnp.sort(jnp.concatenate(parts))


def linear_map(problem: Problem) -> Float[Array, "out in"]:
    r"""$A = G^\top X$, (k, d): minus the direction in which a linear map starts to grow."""
    return problem.cost_gradient_at_zero.T @ problem.data.x


def _check_subset(subset: Sequence[int], size: int) -> np.ndarray:
    index = np.asarray(list(subset))
    if (
        index.ndim != 1
        or not index.size
        or not np.issubdtype(index.dtype, np.integer)
        or len(set(index.tolist())) != len(index)
        or index.min() < 0
        or index.max() >= size
    ):
        raise ValueError(
            f"subset={list(subset)} must be different integers in 0..{size - 1}: which of "
            "the singular directions of G^T X, the largest first."
        )
    return index


def _check_seen(
    problem: Problem,
    sigma: Array,
    index: np.ndarray | list[int],
    given: str,
    remedy: str = "linear nets see nothing of the data there",
) -> None:
    """Raise on singular values that are 0, up to the rounding of GᵀX."""
    x, g = problem.data.x, problem.cost_gradient_at_zero
    if is_concrete(sigma, x, g):
        size = np.linalg.norm(np.asarray(x)) * np.linalg.norm(np.asarray(g))
        values = np.asarray(sigma)[index]
        if values.min() <= 10 * np.finfo(values.dtype).eps * size:
            raise ValueError(
                f"G^T X has singular values {values} along {given}, 0 up to rounding: "
                f"{remedy}."
            )
