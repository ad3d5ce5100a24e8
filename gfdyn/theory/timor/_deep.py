"""Deep networks of least norm have layers near rank one: Theorems 4 and 5, Lemmas 14, 15.

Compared with a shallower feasible network, the reference: depth k, layers W_l with
‖W_l‖_F ≤ B. That the theorems ask for a global optimum of depth k′ > k, their proofs use
once: its norm is at most that of the witness built from the reference. This is the
assumption `small`, which is tested; so every net of so small a norm has the property, of
any width, balanced or not (see `ratio_certificate`). Gradient flow need not find one.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._types import Scalar
from ...diagnostics import layer_norms, mean_norm_ratio
from ...nets import MLP, check_mlp, norm
from ...problem import Problem, check_fit
from .._check import Check, at_most, equal
from ._certificates import norm_ratio_floor
from ._programs import asks_for_margin, check_program, is_feasible
from ._witness import check_reference, log_mean_size


def minimum_norm_bound(reference: MLP, depth: int, sharp: bool = False) -> Scalar:
    r"""$b = B^{k/k'}$ of Thm 4, with $B = \max_l \|W_l\|_F$.

    At an optimum $\theta^*$ the harmonic mean of $\|W_l^*\|_F / \|W_l^*\|_2$ is at most b
    (eq. 4), each $\|W_l^*\|_F$ (eq. 19), and $\|\theta^*\|^2$ at most $k' b^2$ (eq. 18).
    Timor et al.

    Args:
        reference: the shallower network, of depth k ≥ 2 and layers W_l.
        depth: k′ > k, of the networks that the bound is for.
        sharp: give $\prod_l \|W_l\|_F^{1/k'}$ instead, which is no larger.

    Raises:
        TypeError, ValueError: unless k′ is an integer and the reference a ReLU MLP of one
            output and of depth 2 ≤ k < k′.
    """
    check_reference(reference, depth)
    return jnp.exp(_log_size(reference, sharp) * (reference.degree / depth))


def maximum_margin_bound(reference: MLP, depth: int, sharp: bool = False) -> Scalar:
    r"""$b = \sqrt2\,(B/\sqrt2)^{k/k'} \sqrt{(k'+1)/k'}$ of Thm 5, with
    $B = \max_l \|W_l\|_F$.

    At an optimum $\theta^*$ the harmonic mean of $\|W_l^*\|_F / \|W_l^*\|_2$ is at most b
    (eq. 8), each $\|W_l^*\|_F$ (eq. 21), and $\|\theta^*\|^2$ at most $k' b^2$ (eq. 20).
    Timor et al.

    Args:
        reference: the shallower network, of depth k ≥ 2 and layers W_l.
        depth: k′ > k, of the networks that the bound is for.
        sharp: give $2^{(k'-k+1)/(2k')} \prod_l \|W_l\|_F^{1/k'}$ instead, which is no
            larger.

    Raises:
        TypeError, ValueError: unless k′ is an integer and the reference a ReLU MLP of one
            output and of depth 2 ≤ k < k′.
    """
    check_reference(reference, depth)
    k = reference.degree
    log_root = 0.5 * math.log(2)
    if sharp:
        log_factor = log_root * (depth - k + 1) / depth
    else:
        log_factor = log_root * (depth - k) / depth + 0.5 * math.log1p(1 / depth)
    return jnp.exp(_log_size(reference, sharp) * (k / depth) + log_factor)


def minimum_norm_ratios(
    problem: Problem,
    net: MLP,
    reference: MLP,
    sharp: bool = False,
    tolerance: float = 1e-6,
) -> Check:
    r"""A net that interpolates with least norm has layers near rank one:

    $$\frac1{k'} \sum_l \frac{\|W_l\|_2}{\|W_l\|_F} \ge \frac1b, \qquad
    \Big(\frac1{k'} \sum_l \frac{\|W_l\|_2}{\|W_l\|_F}\Big)^{-1} \le b,
    \qquad b = B^{k/k'}.$$

    Timor et al., Thm 4, eqs. 3 and 4: two entries, equivalent. b is `minimum_norm_bound`.
    Their proof prints ‖θ*‖ ≤ ‖θ‖ for ‖θ′‖. Assumptions: both nets interpolate (`feasible`,
    `reference`), y ≥ 0 (`nonnegative`), some ‖x_i‖ ≤ 1 has y_i ≥ 1 (`sample`), and
    ‖θ‖² ≤ k′b² (`small`). Vacuous where 1/b is at most the `norm_ratio_floor`.

    Args:
        problem: with squared loss.
        net: of depth k′, claimed to be optimal.
        reference: of depth k < k′, which interpolates as well.
        sharp: the sharper bound.
        tolerance: on outputs, relative to the largest target, and on the norm.

    Raises:
        TypeError, ValueError: if a net is no ReLU MLP of one output, does not fit the
            problem, if k < 2 or k ≥ k′, or if the loss is not squared.
    """
    check_program(problem, margin=False)
    _check_nets(problem, net, reference)
    x, y = problem.data.x, problem.data.y[:, 0]
    bound = minimum_norm_bound(reference, net.degree, sharp)
    assumptions = {
        "nonnegative": jnp.all(y >= 0),
        "sample": jnp.any(_in_unit_ball(x) & (y >= 1)),
    }
    return _ratios(problem, net, reference, bound, assumptions, tolerance)


def maximum_margin_ratios(
    problem: Problem,
    net: MLP,
    reference: MLP,
    sharp: bool = False,
    tolerance: float = 1e-6,
) -> Check:
    r"""A net of margin 1 and least norm has layers near rank one, or two:

    $$\frac1{k'} \sum_l \frac{\|W_l\|_2}{\|W_l\|_F} \ge \frac1b, \qquad
    \Big(\frac1{k'} \sum_l \frac{\|W_l\|_2}{\|W_l\|_F}\Big)^{-1} \le b, \qquad
    b = \sqrt2 \Big(\frac B{\sqrt2}\Big)^{k/k'} \sqrt{\frac{k'+1}{k'}}.$$

    Timor et al., Thm 5, eqs. 7 and 8: two entries, equivalent. b is `maximum_margin_bound`.
    Their proof prints ‖θ*‖ ≤ ‖θ‖ for ‖θ′‖. Assumptions: both nets have margin 1
    (`feasible`, `reference`), some ‖x_i‖ ≤ 1 (`sample`), and ‖θ‖² ≤ k′b² (`small`). Vacuous
    where 1/b is at most the `norm_ratio_floor`: for B ≥ √2 it is below 1/√2, so that it
    says nothing of nets of width 2.

    Args:
        problem: with exponential or logistic loss.
        net: of depth k′, claimed to be optimal; scaled to margin 1.
        reference: of depth k < k′, which has margin 1 as well.
        sharp: the sharper bound.
        tolerance: on margins and on the norm.

    Raises:
        TypeError, ValueError: if a net is no ReLU MLP of one output, does not fit the
            problem, if k < 2 or k ≥ k′, or if the loss has no margin.
    """
    check_program(problem, margin=True)
    _check_nets(problem, net, reference)
    bound = maximum_margin_bound(reference, net.degree, sharp)
    assumptions = {"sample": jnp.any(_in_unit_ball(problem.data.x))}
    return _ratios(problem, net, reference, bound, assumptions, tolerance)


def optimal_layer_norms(
    problem: Problem,
    net: MLP,
    reference: MLP,
    sharp: bool = False,
    tolerance: float = 1e-6,
) -> Check:
    r"""$\|W_l^*\|_F \le b$ at an optimum, l = 1, …, k′; b the `minimum_norm_bound` or, with
    a loss of signs, the `maximum_margin_bound`.

    Timor et al., eqs. 19 and 21. Assumptions: both nets are feasible (`feasible`,
    `reference`), and y ≥ 0 for interpolation. Violated by a net that is not optimal; layers
    of very different norms are one reason (`equal_layers`).

    Args:
        reference: of depth k < k′, feasible as well.
        sharp: the sharper bound.
        tolerance: on outputs or margins, relative to the largest target, and on the norms,
            relative to b.

    Raises:
        TypeError, ValueError: if a net is no ReLU MLP of one output, does not fit the
            problem, or if k < 2 or k ≥ k′; for a loss that is neither squared nor of signs.
    """
    with_margin = asks_for_margin(problem)
    _check_nets(problem, net, reference)
    of = maximum_margin_bound if with_margin else minimum_norm_bound
    bound = of(reference, net.degree, sharp)
    return at_most(
        layer_norms(problem, net),
        bound,
        assumptions={
            "feasible": is_feasible(problem, net, tolerance),
            "reference": is_feasible(problem, reference, tolerance),
            "nonnegative": jnp.all(problem.data.y >= 0) | with_margin,
        },
        slack=tolerance * bound,
    )


def equal_layer_norms(problem: Problem, net: MLP, tolerance: float = 1e-6) -> Check:
    r"""At an optimum of either program $\|W_l^*\|_F = \|\theta^*\|/\sqrt{k'}$, each l.

    Timor et al., Lemmas 14 and 15. Violated by a net that is not optimal.

    Args:
        tolerance: what a norm may err, relative to ‖θ*‖/√k′.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem.
    """
    check_mlp(net)
    check_fit(problem, net)
    mean = norm(net) / math.sqrt(net.degree)
    return equal(layer_norms(problem, net), mean, assumptions={}, slack=tolerance * mean)


def _ratios(
    problem: Problem,
    net: MLP,
    reference: MLP,
    bound: Scalar,
    assumptions: dict[str, Array],
    tolerance: float,
) -> Check:
    mean = mean_norm_ratio(problem, net)
    least = 1 / bound
    size = norm(net) / math.sqrt(net.degree)
    return at_most(
        jnp.stack([least, 1 / mean]),
        jnp.stack([mean, bound]),
        assumptions={
            "feasible": is_feasible(problem, net, tolerance),
            "reference": is_feasible(problem, reference, tolerance),
            "small": size <= (1 + tolerance) * bound,
            **assumptions,
        },
        vacuous=least <= norm_ratio_floor(net),
        slack=2 * tolerance * jnp.stack([least, bound]),
    )


def _log_size(reference: MLP, sharp: bool) -> Scalar:
    """log B, of the largest ‖W_l‖_F, or of their geometric mean."""
    if sharp:
        return log_mean_size(reference)
    return jnp.log(jnp.max(jnp.stack([norm(w) for w in reference.weights])))


def _in_unit_ball(x: Float[Array, "samples dim"]) -> Array:
    """Which rows have ‖x‖ ≤ 1, up to rounding."""
    return jnp.linalg.norm(x, axis=1) <= 1 + 10 * float(jnp.finfo(x.dtype).eps)


def _check_nets(problem: Problem, net: MLP, reference: MLP) -> None:
    check_mlp(net)
    check_reference(reference, net.degree)
    check_fit(problem, net)
    check_fit(problem, reference)
    if any(sigma.slope != 0 for sigma in net.activations):
        raise ValueError("net must be a ReLU network; the theorems are for those.")
