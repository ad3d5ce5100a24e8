"""Fast directions have many layers of rank nearly one (Prop. 3.4), whatever the net."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._tracing import is_concrete
from ...nets import MLP, norm
from ...problem import Problem
from .._check import Check, at_most
from ._quantities import hidden, operator_norm, tail, unit_layers


def product_inequality(problem: Problem, net: MLP, sharp: bool = False) -> Check:
    r"""Speed bounds the product of the stable ranks of all representations, in logarithms:

    $$\sum_{l=0}^{L-1} \log\frac{\|Z_l^\sigma\|_F^2}{\|Z_l^\sigma\|_{op}^2} \le
    2\log\frac{\|X\|_F\,\|G\|_F}{|\mathcal L_0(\rho)|}, \qquad Z_0^\sigma = X.$$

    What Prop. 3.4 = A.4 of Bantzis et al. rests on. True of every net on every problem,
    whatever its activations as long as |σ(z)| ≤ |z|. Both sides do not see the scale of θ.

    The sharper claim keeps what the paper's proof gives away:
    $\sum_{l=1}^{L-1} \log \|Z_l\|_F^2 / \|Z_l^\sigma\|_{op}^2 \le
    2\log (\|X\|_{op}\,\|G\|_F\,\prod_l \|\rho_l\|_F / |\mathcal L_0(\rho)|)$, which bounds
    the nonlinearity as well and holds for any activation. (With ‖X‖_op on the right and
    without l = 0 on the left, the paper's inequality is the same as before.)

    Z_l is (N, n_l) here, the transpose of the paper's. Scalar sides. Where L₀(ρ) = 0 the
    right side is infinite, and the claim vacuous.

    Args:
        sharp: make the sharper claim instead.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem.
    """
    units = unit_layers(problem, net)
    pairs, x = hidden(problem, units.net), problem.data.x
    log_risk = jnp.log(jnp.abs(problem.localized_risk(units.net)))
    log_g = jnp.log(norm(problem.cost_gradient_at_zero))
    if sharp:
        lhs = _total([_log_rank(a) + _log_loss(z, a) for z, a in pairs], log_g)
        rhs = 2 * (jnp.log(operator_norm(x)) + log_g - log_risk)
        contracting = True
    else:
        lhs = _total([_log_rank(x), *(_log_rank(a) for _, a in pairs)], log_g)
        rhs = 2 * (jnp.log(norm(x)) + log_g - log_risk - units.log_product)
        contracting = all(abs(sigma.slope) <= 1 for sigma in net.activations)
    rhs = jnp.where(jnp.isfinite(log_risk), rhs, jnp.inf)
    return at_most(
        lhs,
        rhs,
        assumptions={"contracting": contracting},
        vacuous=jnp.isinf(rhs),
        slack=_rounding(problem, net) * (1 + jnp.abs(rhs)),
    )


def rank_one_layer_count(problem: Problem, net: MLP, p: ArrayLike = 0.5) -> Check:
    r"""A net of speed s > 0 has at least (1 − p) L representations of rank nearly one:

    $$\#\Big\{0 \le l < L:\ \text{tail}(Z_l^\sigma) \le
    \frac{2}{pL}\log\frac{\|X\|_F\,\|G\|_F}{s}\Big\} \ge (1-p)\,L.$$

    Bantzis et al., Prop. 3.4 = A.4, for s = −L₀(ρ); Z_0^σ = X is counted. Left is
    (1 − p) L, right the number. Vacuous if the threshold is 1 or more, where no tail is.

    Args:
        p: the fraction in (0, 1) that may be otherwise.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem; unless
            0 < p < 1.
    """
    if is_concrete(p) and not 0 < float(np.asarray(p)) < 1:
        raise ValueError(f"p={p} must lie in (0, 1): the fraction of layers exempted.")
    units = unit_layers(problem, net)
    x, degree = problem.data.x, net.degree
    speed = -problem.localized_risk(units.net) * jnp.exp(units.log_product)
    escaping = speed > 0
    sizes = jnp.log(norm(x)) + jnp.log(norm(problem.cost_gradient_at_zero))
    bound = 2 * (sizes - jnp.log(jnp.where(escaping, speed, 1))) / degree
    fraction = jnp.asarray(p, x.dtype)
    bound = jnp.where(escaping, bound, jnp.inf) / fraction
    representations = [x, *(a for _, a in hidden(problem, units.net))]
    tails = jnp.stack([tail(a) for a in representations])
    rounding = _rounding(problem, net)
    count = jnp.sum(tails <= bound * (1 + rounding) + rounding)
    contracting = all(abs(sigma.slope) <= 1 for sigma in net.activations)
    return at_most(
        (1 - fraction) * degree,
        count.astype(x.dtype),
        assumptions={"escaping": escaping, "contracting": contracting},
        vacuous=bound >= 1,
    )


def _log_rank(a: Array) -> Float[Array, ""]:
    """log ‖·‖²_F/‖·‖²_op, to full relative precision near rank one."""
    return -jnp.log1p(-tail(a))


def _log_loss(z: Array, a: Array) -> Float[Array, ""]:
    """log ‖Z‖²_F/‖σ(Z)‖²_F, 0 for Z = 0."""
    before, after = norm(z), norm(a)
    return jnp.where(before > 0, 2 * (jnp.log(before) - jnp.log(after)), 0)


def _total(terms: list[Array], like: Array) -> Float[Array, ""]:
    return sum(terms, jnp.zeros_like(like))


def _rounding(problem: Problem, net: MLP) -> float:
    return 100 * net.degree * float(jnp.finfo(problem.data.x.dtype).eps)
