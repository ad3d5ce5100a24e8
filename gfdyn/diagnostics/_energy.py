"""Risk, gradient and curvature."""

import jax
import jax.flatten_util
from jaxtyping import Array, Float

from .._lanczos import extremal_eigenvalues
from .._problem import Problem
from ..nets import AbstractNet, norm


Scalar = Float[Array, ""]


def risk(problem: Problem, net: AbstractNet) -> Scalar:
    """R(θ)."""
    return problem.risk(net)


def log_risk(problem: Problem, net: AbstractNet) -> Scalar:
    """log R(θ), where R itself may underflow."""
    return problem.log_risk(net)


def gradient_norm(problem: Problem, net: AbstractNet) -> Scalar:
    """‖∇R(θ)‖."""
    return norm(jax.grad(problem.risk)(net))


def sharpness(problem: Problem, net: AbstractNet, iterations: int = 40) -> Scalar:
    """The largest eigenvalue of the Hessian of R, by Lanczos with this many products.

    The Hessian is that of the activation pattern at hand: kinks have none. Matrix-free:
    each product is one forward-over-reverse pass.
    """
    flat, unravel = jax.flatten_util.ravel_pytree(net)
    gradient = jax.grad(lambda theta: problem.risk(unravel(theta)))

    def product(v: Array) -> Array:
        return jax.jvp(gradient, (flat,), (v,))[1]

    return extremal_eigenvalues(product, flat, iterations)[1]
