"""How far a net is from a KKT point of the two programs, kinks included."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..._types import Mask, Outputs, Scalar, Sites, Vector
from ...nets import MLP, PiecewiseLinear, check_mlp, norm
from ...problem import Problem, check_fit
from ._programs import asks_for_margin, at_margin_one, gaps, violation


Gate = Callable[[Array], Array]

_LIMITS = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 50}


class KKT(eqx.Module):
    """The nearest that multipliers and gates bring a net to the KKT conditions.

    Attributes:
        net: the net they are about, of margin 1 if a margin is asked for.
        residual: ‖θ − Σ λ_i y_i ∂f(x_i)‖ / ‖θ‖.
        complementarity: Σ λ_i (y_i f(x_i) − 1) / Σ λ_i; for interpolation
            max |f(x_i) − y_i|.
        multipliers: λ, (N, k).
        gates: of every hidden layer, (N, n_l): those of kinks as they were chosen.
    """

    net: MLP
    residual: Scalar
    complementarity: Scalar
    multipliers: Float[Array, "samples outputs"]
    gates: Sites


def kkt(problem: Problem, net: MLP, tolerance: float = 1e-3) -> KKT:
    r"""Multipliers and gates that come nearest to a KKT point of the program:

    $$\min_{\lambda, \gamma}\ \frac1{\|\theta\|}
    \Big\| \theta - \sum_i \lambda_i\,y_i\,\partial_\gamma f_\theta(x_i) \Big\|, \qquad
    \lambda \ge 0,\quad \gamma \in [\text{slope}, 1] \text{ where }
    |z| \le \text{tolerance}\,\|w\|\,\|\partial z/\partial\theta\|.$$

    Of $\min \frac12\|\theta\|^2$ subject to $y_i f_\theta(x_i) \ge 1$ (Timor et al., eq. 6)
    with a loss of signs, where θ is scaled to margin 1 first; subject to
    $f_\theta(x_i) = y_i$ (eq. 2) with squared loss, where λ has any sign and $y_i$ is left
    out of the sum. The direction to which gradient flow of an exponential or logistic loss
    converges satisfies the first of them (their Lemma 1, after Lyu & Li and Ji &
    Telgarsky).

    The gates γ of kinks, one for each sample and unit, are free, as the Clarke
    subdifferential of each constraint has it: optimal nets do stand on kinks, where ReLU
    with σ′(0) = 0 gives a residual of a half. With one hidden layer the problem is convex;
    with more it is a local minimum, and the gates contain the subdifferential rather than
    being it. Computed on the host by scipy's bounded least squares.

    Args:
        tolerance: how near a unit stands to a kink whose gate is free, in [0, 1); 0 frees
            those at z = 0 only.

    Raises:
        TypeError: if the net is no MLP.
        ValueError: if it does not fit the problem, has no positive margin where one is
            asked for, for another loss, or unless 0 ≤ tolerance < 1.
    """
    check_mlp(net)
    check_fit(problem, net)
    if not 0 <= tolerance < 1:
        raise ValueError(
            f"tolerance={tolerance} must be at least 0 and below 1: how near a unit stands "
            "to a kink whose gate is free, such as 1e-3; 0 for z = 0 only."
        )
    net = at_margin_one(problem, net)
    if asks_for_margin(problem) and violation(problem, problem.outputs(net)) > 0.5:
        raise ValueError(
            "net does not classify all samples with a positive margin, so that it cannot "
            "be scaled to margin 1; train it longer, or check the labels."
        )
    gates, free = _kinks(problem, net, tolerance)
    multipliers, gates, residual = _fitted(problem, net, gates, free)
    gap = gaps(problem, problem.outputs(net))
    total = jnp.sum(multipliers)
    slackness = -jnp.sum(multipliers * gap) / jnp.where(total > 0, total, 1)
    return KKT(
        net=net,
        residual=residual,
        complementarity=slackness if asks_for_margin(problem) else jnp.max(jnp.abs(gap)),
        multipliers=multipliers,
        gates=gates,
    )


def _kinks(problem: Problem, net: MLP, tolerance: float) -> tuple[Sites, Mask]:
    """The gates of all sites, half open at kinks, and which are at kinks."""
    x, gates, free = problem.data.x, [], []
    z = net.preactivations(x)
    slopes = net.gradient_norms(x, tuple(jnp.ones_like(zl) for zl in z))
    sites = zip(net.activations, net.weights[:-1], z, slopes, strict=True)
    for sigma, w, zl, slope in sites:
        near = jnp.abs(zl) <= tolerance * jnp.linalg.norm(w, axis=1)[None, :] * slope
        free.append(near & (not sigma.is_linear))
        gates.append(jnp.where(free[-1], 0.5 * (sigma.slope + 1), sigma.gate(zl)))
    return tuple(gates), tuple(free)


def _fitted(
    problem: Problem, net: MLP, gates: Sites, free: Mask
) -> tuple[Outputs, Sites, Scalar]:
    """The multipliers and free gates of least residual, and that residual."""
    # Takes a sixth of the time of importing gfdyn, and few come here.
    from scipy.optimize import least_squares, lsq_linear

    square = norm(net) ** 2
    start, unravel = ravel_pytree((jnp.zeros_like(problem.data.y), gates))
    number = problem.data.y.size
    unknown = np.asarray(ravel_pytree((jnp.ones_like(problem.data.y, bool), free))[0])
    slopes = [
        jnp.full_like(g, s.slope) for g, s in zip(gates, net.activations, strict=True)
    ]
    least = 0.0 if asks_for_margin(problem) else -np.inf
    lower = np.concatenate([np.full(number, least), *(np.ravel(s) for s in slopes)])
    upper = np.where(np.arange(len(lower)) < number, np.inf, 1.0)

    def at(values: np.ndarray) -> tuple[Outputs, Sites]:
        """Multipliers in units of ‖θ‖², and gates."""
        return unravel(start.at[np.flatnonzero(unknown)].set(values.astype(start.dtype)))

    def residual(values: np.ndarray) -> np.ndarray:
        return np.asarray(_residual(problem, net, square, *at(values)), np.float64)

    def jacobian(values: np.ndarray) -> np.ndarray:
        columns = _jacobian(problem, net, square, *at(values))
        return np.asarray(columns, np.float64)[:, unknown]

    # With the gates half open it is linear.
    values = np.array(start, np.float64)[unknown]
    columns = jacobian(values)[:, :number]
    linear = lsq_linear(columns, -residual(values), (lower[:number], np.inf))
    values[:number] = linear.x
    bounds = lower[unknown], upper[unknown]
    # scipy's stubs know of strings only.
    jac: Any = jacobian
    found = least_squares(residual, values, jac, bounds, method="dogbox", **_LIMITS)
    multipliers, gates = at(found.x)
    value = norm(_residual(problem, net, square, multipliers, gates))
    return square * multipliers, gates, value


@eqx.filter_jit
def _residual(
    problem: Problem, net: MLP, square: Scalar, multipliers: Outputs, gates: Sites
) -> Vector:
    """(θ − Σ λ_i y_i ∂_γ f(x_i))/‖θ‖, λ in units of ‖θ‖²."""
    x, y = problem.data.x, problem.data.y

    def tangent(sigma: PiecewiseLinear, z0: Array, gate: Array) -> Gate:
        """The value of σ at this net, the derivative γ."""
        return lambda z: sigma(z0) + gate * (z - z0)

    z0 = net.preactivations(x)
    tangents = [tangent(*each) for each in zip(net.activations, z0, gates, strict=True)]
    signs = y if asks_for_margin(problem) else jnp.ones_like(y)
    (gradient,) = jax.vjp(lambda net: net.forward(x, tangents)[0], net)[1](
        square * multipliers * signs
    )
    difference = ravel_pytree(net)[0] - ravel_pytree(gradient)[0]
    return difference / jnp.sqrt(square)


@eqx.filter_jit
def _jacobian(
    problem: Problem, net: MLP, square: Scalar, multipliers: Outputs, gates: Sites
) -> Float[Array, "parameters unknowns"]:
    """The derivative of the residual in multipliers and gates."""
    flat, unravel = ravel_pytree((multipliers, gates))
    return jax.jacfwd(lambda v: _residual(problem, net, square, *unravel(v)))(flat)
