"""Risk, gradient and curvature."""

from collections.abc import Callable

import jax
import jax.flatten_util
from jaxtyping import Array, Float

from .._lanczos import extremal_eigenvalues, largest_eigenvalues
from .._numbers import check_count
from .._types import Scalar
from ..nets import AbstractNet, norm
from ..problem import Problem


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
    """The largest eigenvalue of the Hessian of R, by Lanczos.

    The Hessian is that of the activation pattern at hand: kinks have none. Matrix-free:
    each product is one forward-over-reverse pass.

    Args:
        iterations: how many products with the Hessian, 1 or more. Exact from the number of
            parameters on; fewer approach the eigenvalue from below.

    Raises:
        TypeError, ValueError: unless `iterations` is an integer of at least 1.
    """
    remedy = "must be 1 or more products with the Hessian, such as 40."
    check_count("iterations", iterations, 1, remedy)
    return extremal_eigenvalues(*_hessian(problem, net), iterations)[1]


def hessian_eigenvalues(
    problem: Problem, net: AbstractNet, count: int = 5, iterations: int = 40
) -> Float[Array, " count"]:
    """The largest eigenvalues of the Hessian of R, from the largest on, as `sharpness`.

    Args:
        count: how many, 1 or more; at most the number of parameters, and `iterations`.
        iterations: see `sharpness`.

    Raises:
        ValueError: if `count` is out of range.
    """
    product, flat = _hessian(problem, net)
    most = min(flat.size, iterations)
    if not 1 <= count <= most:
        raise ValueError(
            f"count={count} must lie between 1 and {most}: there are {flat.size} "
            f"parameters and iterations={iterations}."
        )
    return largest_eigenvalues(product, flat, count, iterations)


def _hessian(problem: Problem, net: AbstractNet) -> tuple[Callable[[Array], Array], Array]:
    """v ↦ ∇²R v, and θ, both in one row."""
    flat, unravel = jax.flatten_util.ravel_pytree(net)
    gradient = jax.grad(lambda theta: problem.risk(unravel(theta)))
    return lambda v: jax.jvp(gradient, (flat,), (v,))[1], flat
