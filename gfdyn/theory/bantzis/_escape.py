"""Along and at escape directions: the explosion, balance, depth, and small outputs."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...diagnostics import direction, escape_speed, neuron_balance
from ...escape import clarke_residual, deepen, log_escape_time
from ...nets import MLP, AbstractNet, check_mlp, norm
from ...problem import Problem, check_fit
from .._check import Check, at_most, equal
from .._neuron_balance import balances
from ._quantities import operator_norm


def explosion_law(
    problem: Problem,
    net: AbstractNet,
    log_radius: Float[Array, " times"],
    log_time: Float[Array, " times"],
    tolerance: float = 1e-6,
) -> Check:
    r"""From an escape direction the localized flow explodes on a ray, r = ‖θ‖/√L at time t:

    $$s\,r_0^{L-2}\,t = \frac{1 - (r/r_0)^{2-L}}{L-2}, \qquad
    L = 2:\ s\,t = \log(r/r_0).$$

    Bantzis et al., Prop. 2.2 = A.2, who print L s for s and ‖θ‖ for r, too fast by the
    factor L^{L/2}. Both sides are free of scale, (T,).

    Args:
        net: where it starts, r₀ ρ.
        log_radius, log_time: `traj.log_radius`, `traj.log_time` of an
            `EscapeFlow(problem, localized=True)`.
        tolerance: on both sides, relative to the largest, and on the Clarke residual
            ‖g + s ρ‖ / s of the assumption `critical`.

    Raises:
        ValueError: for a net without a degree of at least 2, or if it does not fit the
            problem.
    """
    check_fit(problem, net)
    speed = escape_speed(problem, net)
    residual = clarke_residual(problem, net, tolerance)
    escaping = speed > 0
    safe = jnp.where(escaping, speed, 1)
    degree = net.degree
    assert degree is not None
    log_start = jnp.log(norm(net)) - 0.5 * jnp.log(jnp.asarray(degree, safe.dtype))
    unit = jnp.log(safe) + (degree - 2) * log_start
    law = log_escape_time(degree, safe, log_start, log_radius)
    lhs, rhs = jnp.exp(unit + log_time), jnp.exp(unit + law)
    return equal(
        lhs,
        rhs,
        assumptions={"escaping": escaping, "critical": residual <= tolerance * safe},
        slack=tolerance * jnp.max(jnp.where(jnp.isfinite(rhs), rhs, 0)),
    )


def balance_law(problem: Problem, net: MLP, initial: MLP, tolerance: float = 1e-6) -> Check:
    r"""Gradient flow conserves $\|W_{l+1,\cdot i}\|^2 - \|W_{l,i\cdot}\|^2$ of each neuron.

    Bantzis et al., section 5: of the full and of the localized loss, for any positively
    homogeneous activation, without weight decay. Left its value at `net`, right at
    `initial`; (Σ n_l,), layer by layer.

    The whole matrices W_{l+1}ᵀW_{l+1} − W_l W_lᵀ are conserved where Z_l > 0; the paper
    writes them with l−1 for l, but asks Z_l ≥ 0 still.

    Args:
        initial: the net that the flow started from, of the same widths.
        tolerance: of the solve; what a value may err relative to the larger ‖θ‖². 0 or
            more.

    Raises:
        TypeError, ValueError: if a net is no MLP, does not fit the problem, or has no
            hidden layer; if the widths differ, or unless the tolerance is at least 0.
    """
    now, then, slack = balances(problem, net, initial, tolerance)
    return equal(now, then, assumptions={}, slack=slack)


def escape_direction_balance(problem: Problem, net: MLP, tolerance: float = 1e-6) -> Check:
    r"""Near an escape direction layers have norm 1 and neurons are balanced:

    $$|\|W_l\|_F^2 - 1| \le \|W_l\|_F\,\frac{\epsilon}{s}, \qquad
    \big|\|W_{l+1,\cdot i}\|^2 - \|W_{l,i\cdot}\|^2\big| \le
    (\|W_{l+1,\cdot i}\| + \|W_{l,i\cdot}\|)\,\frac{\epsilon}{s}$$

    for ρ = √L θ/‖θ‖ and its Clarke residual ε = ‖g + s ρ‖, 0 at an escape direction. By
    Euler's theorem for each layer and each neuron; Bantzis et al. use ‖W_l‖_F = 1 without
    proof. Entries: the L layers, then the neurons, layer by layer.

    Args:
        tolerance: kinks closer than this count as kinks, see `minimum_norm_subgradient`.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem.
    """
    check_mlp(net)
    check_fit(problem, net)
    speed = escape_speed(problem, net)
    residual = clarke_residual(problem, net, tolerance)
    escaping = speed > 0
    safe = jnp.where(escaping, speed, 1)
    rho = direction(problem, net)
    sizes = [norm(w)[None] for w in rho.weights]
    pairs = list(zip(rho.weights[:-1], rho.weights[1:], strict=True))
    totals = [
        jnp.linalg.norm(before, axis=1) + jnp.linalg.norm(after, axis=0)
        for before, after in pairs
    ]
    lhs = [*(size**2 - 1 for size in sizes), *neuron_balance(problem, rho)]
    # What gates at kinks that are not quite reached may do.
    scale = operator_norm(problem.data.x) * norm(problem.cost_gradient_at_zero)
    return at_most(
        jnp.abs(jnp.concatenate(lhs)),
        jnp.concatenate([*sizes, *totals]) * residual / safe,
        assumptions={"escaping": escaping},
        slack=tolerance * scale / safe,
    )


def deepening_never_loses(problem: Problem, net: MLP, k: int = 1) -> Check:
    r"""A net `deepen`ed by k layers escapes at least as fast:
    $\mathcal L_0(\tilde\theta) \le \mathcal L_0(\rho)$, each on the sphere of its depth.

    Bantzis et al., Prop. 3.2 = A.3; so s*(L) does not fall with depth from L = 2 on. (From
    L = 1 to 2 it may.) Up to rounding, relative to ‖X‖_op ‖G‖_F.

    Args:
        k: how many layers to add, 0 or more.

    Raises:
        TypeError, ValueError: see `deepen`.
    """
    deeper = deepen(problem, net, k)
    before, after = escape_speed(problem, net), escape_speed(problem, deeper)
    x, g = problem.data.x, problem.cost_gradient_at_zero
    rounding = 1000 * float(jnp.finfo(x.dtype).eps)
    return at_most(
        -after,
        -before,
        assumptions={"escaping": before > 0},
        slack=rounding * operator_norm(x) * norm(g),
    )


def output_bound(problem: Problem, net: MLP) -> Check:
    r"""Outputs of a small net are small, in logarithms with r = ‖θ‖/√L:

    $$\|f_\theta(X)\|_F \le \prod_l \|W_l\|_{op}\,\|X\|_F \le r^L\,\|X\|_F,
    \qquad \|f_\theta(X)\|_F \le r^L\,\|X\|_{op}.$$

    Bantzis et al., section 2.2; the last, which is sharper, is not in the paper. Three
    entries, in this order. They say how long L₀ stands for the risk: while r^L ‖X‖ ≪ ‖G‖.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem.
    """
    check_mlp(net)
    check_fit(problem, net)
    rho, x = direction(problem, net), problem.data.x
    length = norm(net)
    power = net.degree * jnp.log(length) - 0.5 * net.degree * jnp.log(
        jnp.asarray(net.degree, x.dtype)
    )
    outputs = jnp.log(norm(rho(x)))
    gains = jnp.stack([operator_norm(w) for w in rho.weights])
    product = jnp.sum(jnp.log(gains)) + jnp.log(norm(x))
    largest, sharper = jnp.log(norm(x)), jnp.log(operator_norm(x))
    contracting = all(abs(sigma.slope) <= 1 for sigma in net.activations)
    sides = [(outputs, product), (product, largest), (outputs, sharper)]
    rounding = 100 * net.degree * float(jnp.finfo(x.dtype).eps)
    return at_most(
        power + jnp.stack([left for left, _ in sides]),
        power + jnp.stack([right for _, right in sides]),
        assumptions={"contracting": contracting},
        slack=rounding * (1 + jnp.abs(power)),
    )
