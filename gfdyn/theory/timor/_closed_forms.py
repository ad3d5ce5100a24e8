r"""Closed forms: two neurons that each see a point of their own, and ranks of 2×2 nets.

While w sees x alone, with target y, |x| = |y| = 1, and v starts at 0,

$$w(t) = w(0) + (p(t) - s)\,x, \quad v(t) = b(t)\,y, \quad \dot p = b(1-pb), \quad
\dot b = p(1-pb), \quad s = w(0)\cdot x.$$

Solved after Appendix C of Timor et al., who prove convergence only. Times are those of the
paper's loss, `reduction="sum"`. With $c = s^2/2$, $\Delta = \sqrt{1+c^2}$,
$g = c+\Delta = e^{\operatorname{arsinh} c}$; nothing cancels, for however small s.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._numbers import check_number, is_not_negative
from ..._tracing import is_concrete
from ...nets import MLP
from ...problem import Problem
from ._setting import TwoNeurons, two_neurons


def matched_growth(
    s: ArrayLike, t: ArrayLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""(p, b) at time t, from p = s > 0 and b = 0:

    $$\frac bp = \tau = \frac{1 - E}{g + E/g}, \quad E = e^{-2\Delta t}, \qquad
    p = \frac{s}{\sqrt{1-\tau^2}}, \qquad
    1 - \tau = \frac{c + c^2/(\Delta+1)}{g} + \frac{2\Delta\,E}{g\,(g + E/g)}.$$

    Args:
        s: w(0)·x > 0.
        t: times t ≥ 0, repeated against s.

    Raises:
        ValueError: unless s is positive.
    """
    _check_positive(s)
    s, t = _together(s, t)
    c, root, log_c = _constants(s)
    g = c + root
    left = jnp.exp(-2 * root * t)
    tau = -jnp.expm1(-2 * root * t) / (g + left / g)
    # In logarithms: c and E may underflow together.
    log_start = log_c + jnp.log1p(c / (root + 1)) - jnp.log(g)
    log_left = jnp.log(2 * root) - 2 * root * t - jnp.log(g * (g + left / g))
    log_gap = jnp.logaddexp(log_start, log_left)
    p = jnp.exp(jnp.log(s) - (log_gap + jnp.log1p(tau)) / 2)
    return p, p * tau


def matched_limit_growth(kappa: ArrayLike) -> Float[Array, "..."]:
    r"""The limit of p, $\sqrt{(\kappa+\sqrt{\kappa^2+4})/2} = e^{\frac12
    \operatorname{arsinh}(\kappa/2)}$; that of b is its inverse.

    Args:
        kappa: κ = s² of `matched_growth`; $(w(0)\cdot x)^2 - |v(0)|^2$ from v(0) ≠ 0, as
            long as w never leaves its cone.
    """
    return jnp.exp(jnp.arcsinh(_array(kappa) / 2) / 2)


def escape_time(s: ArrayLike, eta: ArrayLike) -> Float[Array, "..."]:
    r"""When pb = η in (0, 1), from p = s > 0 and b = 0:

    $$t = \frac1{2\Delta}\log\Big(1 + \frac{2\Delta\,\eta}{c\,(1-\eta)}\Big/
    \Big(1 + \frac{c\,(1+\eta)}{\sqrt{c^2+\eta^2}+\eta\Delta}\Big)\Big)
    \approx \tfrac12\log\frac{4\eta}{s^2(1-\eta)}.$$

    Args:
        s: w(0)·x > 0.
        eta: η, the part of the target that is fitted, in (0, 1); repeated against s.

    Raises:
        ValueError: unless s is positive and η in (0, 1).
    """
    _check_positive(s)
    if is_concrete(eta) and not np.all((0 < np.asarray(eta)) & (np.asarray(eta) < 1)):
        raise ValueError(f"eta={eta} must lie in (0, 1): the part of a target fitted.")
    s, eta = _together(s, eta)
    c, root, log_c = _constants(s)
    factor = 1 + c * (1 + eta) / (jnp.hypot(c, eta) + eta * root)
    ratio = jnp.log(2 * root * eta / ((1 - eta) * factor)) - log_c
    return jnp.logaddexp(jnp.zeros_like(ratio), ratio) / (2 * root)


def matched_trajectory(problem: Problem, net: MLP, ts: Float[Array, " times"]) -> MLP:
    """The nets at given times from a matched net with V = 0, leading axis T.

    Args:
        ts: in the clock of the paper's loss, a sum over the points.

    Raises:
        TypeError, ValueError: see `two_neurons`; if the net is not matched, or V not 0.
    """
    neurons = two_neurons(problem, net)
    _check_matched(neurons)
    if is_concrete(neurons.v) and np.any(np.asarray(neurons.v)):
        raise ValueError("net has V != 0; the trajectory has a closed form from V = 0.")
    x, y, s = _own(neurons)

    def at(t: Array) -> MLP:
        p, b = matched_growth(s, t)
        w = neurons.w + (p - s)[:, None] * x
        return MLP.from_weights([w, (b[:, None] * y).T])

    return jax.vmap(at)(jnp.asarray(ts))


def matched_limit(problem: Problem, net: MLP) -> MLP:
    """The limit of the flow from a matched net, from any V, if no neuron leaves its cone.

    Raises:
        TypeError, ValueError: see `two_neurons`; if the net is not matched.
    """
    neurons = two_neurons(problem, net)
    _check_matched(neurons)
    return limit_of(neurons)


def limit_of(neurons: TwoNeurons) -> MLP:
    """The `matched_limit`; of a net that is not matched it means nothing."""
    x, y, s = _own(neurons)
    p = matched_limit_growth(s**2 - neurons.v_norm**2)
    w = neurons.w + (p - s)[:, None] * x
    return MLP.from_weights([w, (y / p[:, None]).T])


def overlapping_limit(rho: ArrayLike) -> MLP:
    r"""The limit of type 1B for orthonormal points, Y = I, from a vanishing start.

    Neuron 1 sees both points, neuron 2 the first alone:

    $$WX = \begin{pmatrix} a & \beta \\ c & 0 \end{pmatrix}, \quad
    \beta = (1+\rho^2)^{-1/4}, \quad a = \rho\beta, \quad c = 1/\beta, \quad
    V = (WX)^{-1}.$$

    Both rows have the norm c: the stable rank is $2/(1+\rho/\sqrt{1+\rho^2})$. Not in the
    paper.

    Args:
        rho: ρ = a/β ≥ 0, a number. It depends on the start; the largest that we found is
            about 1.15.

    Raises:
        TypeError, ValueError: unless ρ is one number, not negative.
    """
    remedy = "must be 0 or more: w·x_1 over w·x_2 of the neuron that sees both points."
    check_number("rho", rho, is_not_negative, remedy)
    rho = _array(rho)
    beta = (1 + rho**2) ** -0.25
    zero = jnp.zeros_like(beta)
    w = jnp.asarray([[rho * beta, beta], [1 / beta, zero]])
    v = jnp.asarray([[zero, beta], [1 / beta, -rho * beta]])
    return MLP.from_weights([w, v])


def stable_rank_of_rows(
    a: ArrayLike, b: ArrayLike, angle: ArrayLike
) -> Float[Array, "..."]:
    r"""‖W‖_F²/‖W‖² of two rows of norms a, b at an angle θ:

    $$\frac{2(a^2+b^2)}{a^2+b^2+\sqrt{(a^2-b^2)^2+4a^2b^2\cos^2\theta}}.$$

    Args:
        a, b: |w_1| and |w_2|, not both 0.
        angle: θ, in radians.
    """
    a, b, angle = (_array(number) for number in (a, b, angle))
    return 2 * (a**2 + b**2) / _top(a, b, angle)


def singular_ratio_of_rows(
    a: ArrayLike, b: ArrayLike, angle: ArrayLike
) -> Float[Array, "..."]:
    r"""σ_2/σ_1 of two rows of norms a, b at an angle θ, as |det W|/σ_1²:

    $$\frac{2ab\,|\sin\theta|}{a^2+b^2+\sqrt{(a^2-b^2)^2+4a^2b^2\cos^2\theta}}.$$

    Args:
        a, b: |w_1| and |w_2|, not both 0.
        angle: θ, in radians.
    """
    a, b, angle = (_array(number) for number in (a, b, angle))
    return 2 * a * b * jnp.abs(jnp.sin(angle)) / _top(a, b, angle)


def _own(neurons: TwoNeurons) -> tuple[Array, Array, Array]:
    """The point that each neuron of a matched net sees, its target, and w_i·x."""
    second = neurons.own_point[1][:, None]
    x, y = (jnp.where(second, a[1], a[0]) for a in (neurons.x, neurons.y))
    return x, y, jnp.sum(neurons.w * x, axis=1)


def _top(a: Array, b: Array, angle: Array) -> Array:
    """2 σ_1²."""
    return a**2 + b**2 + jnp.hypot(a**2 - b**2, 2 * a * b * jnp.cos(angle))


def _constants(s: Array) -> tuple[Array, Array, Array]:
    """c, Δ, log c."""
    c = s**2 / 2
    return c, jnp.sqrt(1 + c**2), 2 * jnp.log(s) - math.log(2)


def _array(number: ArrayLike) -> Array:
    array = jnp.asarray(number)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def _together(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    a, b = _array(a), _array(b)
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    dtype = jnp.result_type(a, b)
    a, b = (jnp.broadcast_to(n, shape).astype(dtype) for n in (a, b))
    return a, b


def _check_positive(s: Any) -> None:
    if is_concrete(s) and not np.all(np.asarray(s) > 0):
        raise ValueError(f"s={s} must be positive: w(0)·x of a neuron that sees x.")


def _check_matched(neurons: TwoNeurons) -> None:
    if is_concrete(neurons.w) and not bool(neurons.is_matched):
        raise ValueError(
            "net is not matched: each of its neurons must see one point, and each another "
            "(see gf.theory.timor.cones)."
        )
