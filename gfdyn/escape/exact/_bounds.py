"""Between which numbers the largest escape speed lies, whatever the depth."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...problem import Problem


class SpeedBounds(eqx.Module):
    """lower ≤ s*(2) ≤ s*(L) ≤ upper, the largest escape speeds of ReLU nets."""

    lower: Float[Array, ""]
    upper: Float[Array, ""]


def speed_bounds(problem: Problem) -> SpeedBounds:
    r"""Bounds on the largest escape speed of ReLU nets of every depth L ≥ 2:

    $$\tfrac12 \sigma_1(G^\top X) \le s^*(2) \le s^*(L) \le \|X\|_{op} \|G\|_F.$$

    Below: of the neurons ±w at the top singular pair one has half the linear speed, as
    σ(z) − σ(−z) = z. In the middle: Prop. 3.2 of Bantzis et al. Above: σ shrinks Frobenius
    norms, and ‖W_l‖_F = 1. With samples as columns, as in the paper, GᵀX is GXᵀ.
    """
    x, g = problem.data.x, problem.cost_gradient_at_zero
    return SpeedBounds(
        0.5 * jnp.linalg.norm(g.T @ x, ord=2),
        jnp.linalg.norm(x, ord=2) * jnp.linalg.norm(g),
    )
