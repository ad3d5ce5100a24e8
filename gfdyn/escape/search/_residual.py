"""How far a net is from an escape direction, kinks included."""

import equinox as eqx
import jax
from jaxtyping import Array, Float

from ...diagnostics import direction, escape_speed, minimum_norm_subgradient
from ...nets import AbstractNet, norm
from ...problem import Problem


@eqx.filter_jit
def clarke_residual(
    problem: Problem, net: AbstractNet, tolerance: float = 1e-6
) -> Float[Array, ""]:
    r"""$\min_\lambda \|g_\lambda + s\rho\|$ at the net's direction ρ, $g_\lambda =
    \nabla_\lambda \mathcal L_0(\rho)$: 0 where ρ is an escape direction (Bantzis et al.,
    Def. 2.1).

    λ are the gates of the kinks at which ρ stands, in [σ'(0−), σ'(0+)]; others follow the
    sign of z. Best directions often stand on kinks, and there ∇L₀(ρ) = −sρ, as the paper
    prints it, is false for σ'(0) = 0.

    By Euler's identity $\langle\rho, g_\lambda\rangle = L\,\mathcal L_0(\rho) = -Ls$ for
    every selection of gates, so that $\|g_\lambda + s\rho\|^2 = \|g_\lambda\|^2 - Ls^2$,
    the part of g_λ along the sphere: the `minimum_norm_subgradient` has the least of it
    too, under the conditions stated there (several local minima are possible with more
    than one hidden layer; the residual is then an upper bound).

    Args:
        tolerance: how near to a kink, relative to a unit's weights, is on it.

    Raises:
        TypeError: if `net` is no gfdyn network.
        ValueError: for a net without a degree, unless 0 ≤ tolerance < 1, or if net and
            problem do not fit.
    """
    rho = direction(problem, net)
    speed = escape_speed(problem, rho)
    least = minimum_norm_subgradient(problem.localized(), rho, tolerance).gradient
    return norm(jax.tree.map(lambda g, w: g + speed * w, least, rho))
