"""Layers of norm 1 and an exponential loss: Appendix E."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._numbers import check_number, is_positive
from ..._types import Scalar
from ...flows import GradientFlow
from ...nets import MLP, WeightNormalised, check_mlp
from ...problem import Problem, check_fit
from ...run import Trajectory, solve
from .._check import Check, at_most, equal
from ._quantities import ROUNDING, distance_to_rank


class Normalised(eqx.Module):
    r"""Eq. 26 at $V_k = W_k/\|W_k\|_F$, and what it is made of.

    Attributes:
        net: of the V_k.
        residuals: $\nabla_k - \langle\nabla_k, V_k\rangle V_k$ of each layer.
        gradients: $\nabla_k = \sum_n c_n\, \partial\hat f_n/\partial V_k$, of rank m.
        growth: $\langle\nabla_k, V_k\rangle = \sum_n c_n \hat f_n$, the same for all k.
    """

    net: MLP
    residuals: tuple[Float[Array, "_ _"], ...]
    gradients: tuple[Float[Array, "_ _"], ...]
    growth: Scalar


def normalised(problem: Problem, net: MLP, rho: ArrayLike) -> Normalised:
    r"""The stationarity of the normalised layers at a fixed product ρ of the norms:

    $$\sum_n c_n \Big(\frac{\partial \hat f_n}{\partial V_k} - V_k \hat f_n\Big) = 0,
    \qquad c_n = \frac{\partial C}{\partial f_n}(\rho \hat f).$$

    Galanti & Poggio, eq. 26, where $c_n = -e^{-\rho y_n \hat f_n} y_n$: the exponential
    loss, λ = 0 (here over m). They print ‖·‖_2 for the norm, which must be Frobenius'.

    Args:
        rho: ρ > 0, whatever the norms of `net` are.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem; unless ρ
            is positive.
    """
    check_mlp(net)
    check_fit(problem, net)
    _check_rho(rho)
    rho = jnp.asarray(rho, problem.data.x.dtype)
    unit = on_spheres(net)
    outputs, vjp = jax.vjp(lambda net: net(problem.data.x), unit)
    slopes = problem.cost_gradient(rho * outputs)
    gradients = vjp(slopes)[0].weights
    growth = jnp.sum(slopes * outputs)
    pairs = zip(gradients, unit.weights, strict=True)
    return Normalised(unit, tuple(g - growth * v for g, v in pairs), gradients, growth)


def on_spheres(net: MLP) -> MLP:
    """The net of the V_k; a layer of zeros stays."""
    return WeightNormalised(net).unit


def projection_identity(problem: Problem, net: MLP) -> Check:
    r"""$\partial f(V/\|V\|_F)/\partial V = \partial f/\partial V - V f$ at ‖V‖_F = 1.

    Galanti & Poggio, App. E, by Euler's identity. Sides (k, L): the norms of the difference
    of both sides over all samples, and 0.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem; unless ρ
            is positive.
    """
    check_mlp(net)
    check_fit(problem, net)
    unit = on_spheres(net)
    # All samples weighted at once, by what no symmetry cancels.
    number = problem.data.x.shape[0]
    weights = jnp.cos(jnp.arange(1, number + 1, dtype=problem.data.x.dtype))

    def outputs(net: MLP) -> Array:
        return weights @ net(problem.data.x)

    plain = jax.jacrev(outputs)(unit)
    through = jax.jacrev(lambda net: outputs(on_spheres(net)))(unit)
    values = outputs(unit)

    def of(left: Array, right: Array, v: Array) -> Array:
        gap = left - (right - values[:, None, None] * v[None])
        return jnp.sqrt(jnp.sum(gap**2, axis=(1, 2)))

    gaps = [
        of(*each) for each in zip(through.weights, plain.weights, unit.weights, strict=True)
    ]
    lhs = jnp.stack(gaps, axis=1)
    slack = ROUNDING * float(jnp.finfo(lhs.dtype).eps)
    return equal(lhs, jnp.zeros_like(lhs), assumptions={}, slack=slack)


def normalised_rank(problem: Problem, net: MLP, rho: ArrayLike) -> Check:
    r"""A nearly stationary normalised layer is nearly of rank m, the number of samples:

    $$\min_{\operatorname{rank} U \le m} \|V_k - U\|_F \le
    \frac{\|\text{residual}_k\|_F}{|\sum_n c_n \hat f_n|}.$$

    What eq. 26 of Galanti & Poggio says at rest, made quantitative. Entries (L,); vacuous
    where the bound is 1 or more, or no matrix has a higher rank.

    Args:
        rho: ρ > 0, the product of the norms.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem; unless ρ
            is positive.
    """
    at = normalised(problem, net, rho)
    rank = problem.data.x.shape[0]
    sizes = jnp.stack([jnp.linalg.norm(r) for r in at.residuals])
    growth = jnp.abs(at.growth)
    rhs = jnp.where(growth > 0, sizes / jnp.where(growth > 0, growth, 1), jnp.inf)
    full = jnp.asarray([rank >= min(v.shape) for v in at.net.weights])
    return at_most(
        jnp.stack([distance_to_rank(v, rank) for v in at.net.weights]),
        rhs,
        assumptions={},
        vacuous=(rhs >= 1) | full,
        slack=ROUNDING * float(jnp.finfo(rhs.dtype).eps),
    )


def normalised_flow(
    problem: Problem, net: MLP, rho: ArrayLike, t1: ArrayLike, **options: Any
) -> Trajectory:
    r"""The flow of the directions at a fixed product ρ of the norms, exact at its kinks:

    $$\frac{dV_k}{dt} = -\rho\,\big(\nabla_k - \langle\nabla_k, V_k\rangle V_k\big).$$

    Galanti & Poggio speak of it in App. E. It is the gradient flow of a
    `gf.nets.WeightNormalised` on the inputs $\rho x_n$, as $\hat f(\rho x) = \rho \hat
    f(x)$; the nets of the trajectory are such ones, whose `unit` has the V_k.

    Args:
        rho: ρ > 0.
        t1: until when; the speed goes with ρ.
        options: of `gf.solve`: `ts`, `solver`, `record`, …

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem; unless ρ
            is positive.
    """
    check_mlp(net)
    check_fit(problem, net)
    _check_rho(rho)
    inputs = jnp.asarray(rho, problem.data.x.dtype) * problem.data.x
    scaled = eqx.tree_at(lambda p: p.data.x, problem, inputs)
    return solve(GradientFlow(scaled), WeightNormalised(on_spheres(net)), t1, **options)


@jax.jit
def normalised_descent(
    problem: Problem, net: MLP, rho: ArrayLike, rate: ArrayLike, steps: ArrayLike
) -> MLP:
    r"""`normalised_flow` by Euler steps, back onto the spheres after each.

    Its speed goes with ρ: rates below 0.05/ρ.

    Args:
        rho: ρ > 0, the product of the norms.
        rate: dt of a step.
        steps: how many.
    """
    rho = jnp.asarray(rho, problem.data.x.dtype)
    rate = jnp.asarray(rate, problem.data.x.dtype)

    def step(_: Array, net: MLP) -> MLP:
        at = normalised(problem, net, rho)
        pairs = zip(at.net.weights, at.residuals, strict=True)
        moved = [v - rate * rho * r for v, r in pairs]
        return on_spheres(MLP.from_weights(moved, net.activations))

    return jax.lax.fori_loop(0, jnp.asarray(steps, jnp.int32), step, on_spheres(net))


def _check_rho(rho: ArrayLike) -> None:
    check_number("rho", rho, is_positive, "must be positive: the product of the norms.")
