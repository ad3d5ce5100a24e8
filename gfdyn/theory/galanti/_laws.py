r"""What decay makes of the quantities that it alone moves, step by step and in the flow.

Their `survival` is $q_T = \prod_t (1 - 2\eta_t\lambda)$ for SGD without momentum, and
$e^{-2\lambda t}$ for the flow; the balance of neurons has its square in the flow. Not in
the paper.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._tracing import is_concrete
from ..._types import Scalar
from ...nets import MLP, AbstractNet, check_mlp, norm
from ...problem import Problem, check_fit
from .._check import Check, equal
from ._quantities import ROUNDING


def survival(rates: Float[ArrayLike, " steps"], weight_decay: ArrayLike) -> Scalar:
    r"""$\prod_t (1 - 2\eta_t\lambda)$ over the steps of SGD; near $e^{-\Lambda}$.

    Args:
        rates: η_t of each step.
        weight_decay: λ of the penalty λ‖W‖².
    """
    eta = jnp.asarray(rates, float)
    return jnp.prod(1 - 2 * eta * jnp.asarray(weight_decay, float))


def null_space_law(
    problem: Problem,
    before: AbstractNet,
    after: AbstractNet,
    survival: ArrayLike,
    tolerance: float = 0.0,
) -> Check:
    r"""What W_1 has off the span of the inputs only decays: $W_1(t) P_\perp =
    \text{survival} \cdot W_1(0) P_\perp$.

    Sides: ‖left − right‖_F over ‖W_1(0)‖_F, and 0. Whatever the net does with W_1 x, for
    SGD and flow, so that the rank of W_1 becomes that of X.

    Args:
        before, after: the nets at the start and at the time t.
        survival: the factor at t: `survival` for SGD, $e^{-2\lambda t}$ for the flow.
        tolerance: that of the solve, for the flow.

    Raises:
        TypeError, ValueError: if the net does not fit the problem.
    """
    check_fit(problem, before)
    x = problem.data.x
    _, s, rows = jnp.linalg.svd(x, full_matrices=False)
    cutoff = max(x.shape) * float(jnp.finfo(x.dtype).eps) * s[0]
    span = jnp.where((s > cutoff)[:, None], rows, 0)

    def off(w: Array) -> Array:
        return w - (w @ span.T) @ span

    first = before.weights[0]
    gap = off(after.weights[0]) - jnp.asarray(survival, x.dtype) * off(first)
    return _vanishes(jnp.linalg.norm(gap), jnp.linalg.norm(first), tolerance)


def column_sum_law(
    before: AbstractNet,
    after: AbstractNet,
    survival: ArrayLike,
    tolerance: float = 0.0,
) -> Check:
    r"""Under the cross-entropy the column sums of the last matrix only decay: $1^\top
    W_L(t) = \text{survival} \cdot 1^\top W_L(0)$.

    As the gradient in the outputs sums to 0 over classes. So a head of k classes becomes
    one of rank k − 1. Sides: ‖left − right‖ over ‖W_L(0)‖_F, and 0.

    Args:
        before, after, survival: see `null_space_law`.
        tolerance: that of the solve, for the flow.
    """
    old, new = before.weights[-1], after.weights[-1]
    factor = jnp.asarray(survival, old.dtype)
    gap = jnp.sum(new, axis=0) - factor * jnp.sum(old, axis=0)
    return _vanishes(jnp.linalg.norm(gap), jnp.linalg.norm(old), tolerance)


def balance_step(
    problem: Problem,
    before: MLP,
    after: AbstractNet,
    rate: ArrayLike,
    weight_decay: ArrayLike,
) -> Check:
    r"""One step of gradient descent moves the balance of layers $D_l = \|W_{l+1}\|_F^2 -
    \|W_l\|_F^2$, on the problem of its batch:

    $$D_l' = (1-2\eta\lambda)^2 D_l + \eta^2\,(\|G_{l+1}\|_F^2 - \|G_l\|_F^2).$$

    Entries (L−1,).

    Args:
        before, after: the nets before the step and after it.
        rate: η.
        weight_decay: λ of the penalty λ‖W‖².

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem.
    """
    check_mlp(before)
    check_fit(problem, before)
    eta, decay = (jnp.asarray(a, problem.data.x.dtype) for a in (rate, weight_decay))
    gradient = jax.grad(problem.risk)(before)
    faded = (1 - 2 * eta * decay) ** 2 * _layer_balance(before)
    return equal(
        _layer_balance(after),
        faded + eta**2 * _layer_balance(gradient),
        assumptions={},
        slack=100 * float(jnp.finfo(faded.dtype).eps) * norm(before) ** 2,
    )


def balance_decay(
    before: AbstractNet, after: AbstractNet, survival: ArrayLike, tolerance: float
) -> Check:
    r"""What the flow conserves decays as $e^{-4\lambda t}$, the square of `survival`.

    $\|W_{l+1,\cdot i}\|^2 - \|W_{l,i\cdot}\|^2$ of each neuron; all of
    $W_{l+1}^\top W_{l+1} - W_l W_l^\top$ between linear layers. Sides: the largest gap over
    ‖θ(0)‖², and 0.

    Args:
        before, after: the nets at the start and at the time t.
        survival: $e^{-2\lambda t}$, of which the square is taken here.
        tolerance: that of the solve.
    """
    factor = jnp.asarray(survival, before.weights[0].dtype) ** 2
    pairs = zip(
        jax.tree.leaves(before.invariants()),
        jax.tree.leaves(after.invariants()),
        strict=True,
    )
    gaps = [jnp.max(jnp.abs(new - factor * old), initial=0.0) for old, new in pairs]
    lhs = jnp.max(jnp.stack(gaps)) / norm(before) ** 2
    return equal(lhs, jnp.zeros_like(lhs), assumptions={}, slack=tolerance)


def collapse_threshold(optimal_speed: ArrayLike) -> Scalar:
    r"""$\lambda_c = s^*/2$: with more decay, two-layer nets near the origin collapse.

    There $d\log\|\theta\|/dt = s(\rho) - 2\lambda$, s the `escape_speed` at L = 2: the
    origin loses its stability iff λ < λ_c, and the largest speed s*(2) is

    $$s^* = \max_{\|w\|=1} \Big\|\frac1m\sum_i \ell'_i(0)\,\sigma(w\cdot x_i)\Big\|,$$

    known in closed form (`gf.escape.planar_optimum` for two inputs, `orthogonal_speed`,
    `rank_one_speed`, `linear_speed`) or found by `gf.escape.search`. With L ≥ 3 matrices
    the origin attracts for every λ > 0, at the rate 2λ.

    Args:
        optimal_speed: s* ≥ 0.

    Raises:
        ValueError: if the speed is negative.
    """
    if is_concrete(optimal_speed) and not np.all(np.asarray(optimal_speed) >= 0):
        raise ValueError(f"optimal_speed={optimal_speed} must be 0 or more.")
    return jnp.asarray(optimal_speed, float) / 2


def _layer_balance(net: AbstractNet) -> Float[Array, " gaps"]:
    return jnp.diff(jnp.stack([jnp.sum(w**2) for w in net.weights]))


def _vanishes(gap: Scalar, size: Scalar, tolerance: float) -> Check:
    lhs = gap / jnp.where(size > 0, size, 1)
    slack = max(tolerance, ROUNDING * float(jnp.finfo(lhs.dtype).eps))
    return equal(lhs, jnp.zeros_like(lhs), assumptions={}, slack=slack)
