"""Optimal escape directions have deep layers of rank nearly one (Thm 3.1)."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._numbers import check_number, is_threshold
from ..._tracing import is_concrete
from ..._types import Scalar
from ...diagnostics import escape_speed
from ...escape import speed_bounds
from ...nets import MLP, norm
from ...problem import Problem
from .._check import Check, at_most
from ._quantities import (
    check_optimal_speed,
    is_relu,
    operator_norm,
    singular_values,
    tails_after,
    unit_layers,
)


def speed_ratio(problem: Problem, optimal_speed: ArrayLike, sharp: bool = False) -> Scalar:
    r"""$\kappa = \|X\|_F\,\|G\|_F / s^* \ge 1$, how far s* is from its largest possible
    value.

    Args:
        optimal_speed: s* > 0, known or the best that was found.
        sharp: take ‖X‖_op for ‖X‖_F, which is no larger.

    Raises:
        ValueError: unless the speed is positive.
    """
    check_optimal_speed(optimal_speed)
    x, g = problem.data.x, problem.cost_gradient_at_zero
    largest = (operator_norm(x) if sharp else norm(x)) * norm(g)
    return largest / jnp.asarray(optimal_speed, x.dtype)


def rank_one_constant(
    problem: Problem, optimal_speed: ArrayLike, sharp: bool = False
) -> Scalar:
    r"""$c = \kappa\sqrt{2\log\kappa}$ of Thm 3.1, κ the `speed_ratio`.

    The paper's theorem calls it C; its appendix has c s*.

    Args:
        optimal_speed, sharp: see `speed_ratio`.

    Raises:
        ValueError: unless the speed is positive.
    """
    kappa = speed_ratio(problem, optimal_speed, sharp)
    # At least 1 but for rounding.
    return kappa * jnp.sqrt(2 * jnp.log(jnp.maximum(kappa, 1)))


def rank_one_bound(
    problem: Problem,
    optimal_speed: ArrayLike,
    layer: ArrayLike,
    sharp: bool = False,
) -> Float[Array, "*layers"]:
    r"""$B_l = 8\,c\,l^{-1/2} / (1 - c\,l^{-1/2})$ of Thm 3.1; ∞ where $c\,l^{-1/2} \ge 1$.

    Args:
        optimal_speed, sharp: see `speed_ratio`.
        layer: l, from 1 for W_1, in any shape; the bound is ∞ for 0.

    Raises:
        ValueError: unless the speed is positive.
    """
    constant = rank_one_constant(problem, optimal_speed, sharp)
    root = jnp.sqrt(jnp.asarray(layer, constant.dtype))
    valid = constant < root
    small = jnp.where(valid, constant / jnp.where(valid, root, 1), 0)
    return jnp.where(valid, 8 * small / (1 - small), jnp.inf)


def non_vacuous_depth(
    problem: Problem, optimal_speed: ArrayLike, sharp: bool = False
) -> Scalar:
    r"""$81\,c^2$: Thm 3.1 says something only of layers l beyond it, where $B_l < 1$.

    Args:
        optimal_speed, sharp: see `speed_ratio`.

    Raises:
        ValueError: unless the speed is positive.
    """
    return 81 * rank_one_constant(problem, optimal_speed, sharp) ** 2


def rank_one_layers(
    problem: Problem,
    net: MLP,
    optimal_speed: ArrayLike,
    sharp: bool = False,
    tolerance: float = 1e-6,
) -> Check:
    r"""At an optimal escape direction, deep layers are nearly of rank one and linear:

    $$\text{tail}(W_l),\ \text{tail}(Z_l^\sigma),\
    \frac{\|Z_l^\sigma - Z_l\|_F^2}{\|Z_l\|_F^2} \le B_l.$$

    Bantzis et al., Thm 3.1 = A.7 (who print s* without the minus, and "all layers": the
    last two are about l < L). Entries, (3L−2,): tail(W_1), …, tail(W_L), then tail(Z_l^σ),
    then the nonlinearity, l = 1, …, L−1. Z_l is (N, n_l) here, transposed. Vacuous
    where B_l ≥ 1: beyond any practical depth, see `non_vacuous_depth`.

    The proof has two gaps. The representation l₀ ≤ l that is nearly of rank one may be l
    itself, which says nothing of W_l and Z_l; and it may be X, which need not be near
    $v u^\top$ with v ≥ 0. The sharper bounds close both, by counting hidden representations
    only, with ‖X‖_op for ‖X‖_F: they have l−1 for l for W_l and for the nonlinearity (none
    for l = 1), and are sharper in all.

    Args:
        optimal_speed: s* > 0, known or the best that was found; `optimal` among the
            assumptions says whether the net's own speed agrees with it.
        sharp: take the sharper bounds.
        tolerance: what the two speeds may differ by relative to s*; 0 or more.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem; unless the
            speed is positive, and the tolerance at least 0.
    """
    check_number("tolerance", tolerance, is_threshold, "must be 0 or more, such as 1e-6.")
    units = unit_layers(problem, net)
    numbers = jnp.arange(1, net.degree + 1, dtype=problem.data.x.dtype)
    own = rank_one_bound(problem, optimal_speed, numbers, sharp)
    before = rank_one_bound(problem, optimal_speed, numbers - 1, sharp) if sharp else own
    bounds = jnp.concatenate([before, own[:-1], before[:-1]])
    speed = jnp.asarray(optimal_speed, problem.data.x.dtype)
    gap = jnp.abs(escape_speed(problem, net) / speed - 1)
    return at_most(
        jnp.concatenate(tails_after(problem, units.net)),
        bounds,
        assumptions={"optimal": gap <= tolerance, "relu": is_relu(net)},
        vacuous=bounds >= 1,
        slack=100 * float(jnp.finfo(bounds.dtype).eps),
    )


def optimal_speed_bounds(problem: Problem, optimal_speed: ArrayLike) -> Check:
    r"""$\tfrac12\,\sigma_1(G X^\top) \le s^*(L) \le \|X\|_{op}\,\|G\|_F$ for L ≥ 2.

    Two entries; see `gf.escape.speed_bounds`. Not in the paper. Violated by a speed out of
    these bounds, which is not s*.

    Args:
        optimal_speed: s*, known or the best that was found.

    Raises:
        ValueError: unless the speed is positive.
    """
    check_optimal_speed(optimal_speed)
    bounds = speed_bounds(problem)
    speed = jnp.asarray(optimal_speed, bounds.lower.dtype)
    return at_most(
        jnp.stack([bounds.lower, speed]),
        jnp.stack([speed, bounds.upper]),
        assumptions={},
        slack=1000 * float(jnp.finfo(speed.dtype).eps) * bounds.upper,
    )


def nonnegative_singular_pair(
    matrix: Float[Array, "m n"],
) -> tuple[Float[Array, " m"], Float[Array, ""], Float[Array, " n"]]:
    r"""(u, σ_1, v), the top singular triple of a matrix A ≥ 0, with u, v ≥ 0.

    |v| of any top right singular vector v is one too, as ‖A|v|‖ ≥ ‖Av‖; then u = A|v|/σ_1.
    Bantzis et al., Lemma A.6, which has σ_1 for σ_1² in AᵀA v = σ_1² v, and Av_1 for Aᵀv_1.

    Args:
        matrix: A, no entry of which is negative.

    Raises:
        ValueError: if the matrix has a negative entry.
    """
    if is_concrete(matrix) and np.any(np.asarray(matrix) < 0):
        raise ValueError(
            f"matrix has negative entries, the least {float(jnp.min(matrix))}; its top "
            "singular vectors need not be nonnegative."
        )
    size = jnp.max(matrix)
    unit = matrix / jnp.where(size > 0, size, 1)
    v = jnp.abs(jnp.linalg.svd(unit, full_matrices=False)[2][0])
    u = unit @ v
    length = jnp.linalg.norm(u)
    # A matrix of zeros has any pair of unit vectors.
    alone = jnp.full_like(u, 1 / math.sqrt(len(u)))
    return (
        jnp.where(length > 0, u / jnp.where(length > 0, length, 1), alone),
        size * length,
        v,
    )


def singular_pair_is_nonnegative(matrix: Float[Array, "m n"]) -> Check:
    r"""$A \ge 0$ has a top singular pair u, v ≥ 0: what `nonnegative_singular_pair` found.

    Bantzis et al., Lemma A.6. Four entries: −min u and −min v are at most 0; ‖Av − σ_1 u‖
    and ‖Aᵀu − σ_1 v‖ are 0, over the Frobenius norm, up to rounding. σ_1 is computed apart.

    Args:
        matrix: A, no entry of which is negative.

    Raises:
        ValueError: if the matrix has a negative entry.
    """
    u, _, v = nonnegative_singular_pair(matrix)
    size = norm(matrix)
    unit = matrix / jnp.where(size > 0, size, 1)
    largest = singular_values(unit)[0]
    forward, backward = unit @ v - largest * u, unit.T @ u - largest * v
    claims = [-jnp.min(u), -jnp.min(v), norm(forward), norm(backward)]
    return at_most(
        jnp.stack(claims),
        jnp.zeros((4,), matrix.dtype),
        assumptions={"nonnegative": jnp.all(matrix >= 0)},
        slack=jnp.asarray([0.0, 0.0, 1.0, 1.0], matrix.dtype)
        * (1000 * float(jnp.finfo(matrix.dtype).eps)),
    )
