"""Risk, gradient and curvature."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

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

    return _largest_eigenvalue(product, flat.size, min(iterations, flat.size), flat.dtype)


def _largest_eigenvalue(
    product: Callable[[Array], Array], size: int, iterations: int, dtype: jnp.dtype
) -> Scalar:
    """Lanczos with full reorthogonalisation, from a fixed random vector."""
    start = jr.normal(jr.key(0), (size,), jnp.float32).astype(dtype)
    basis = jnp.zeros((iterations + 1, size), dtype)
    basis = basis.at[0].set(start / jnp.linalg.norm(start))

    def step(basis: Array, i: Array) -> tuple[Array, tuple[Array, Array]]:
        w = product(basis[i])
        diagonal = w @ basis[i]
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        length = jnp.linalg.norm(w)
        # The space is exhausted when nothing is left: the chain ends there.
        alive = length > jnp.finfo(dtype).eps * jnp.maximum(jnp.abs(diagonal), 1.0)
        following = jnp.where(alive, w / jnp.where(alive, length, 1.0), 0.0)
        return basis.at[i + 1].set(following), (diagonal, jnp.where(alive, length, 0.0))

    _, (diagonal, off) = jax.lax.scan(step, basis, jnp.arange(iterations))
    tridiagonal = jnp.diag(diagonal) + jnp.diag(off[:-1], 1) + jnp.diag(off[:-1], -1)
    return jnp.linalg.eigvalsh(tridiagonal)[-1]
