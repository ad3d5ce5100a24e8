"""Where a homogeneous net points, and how fast it leaves the origin."""

import math
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nets import AbstractNet, scaled_to_norm
from ..problem import Problem


Net = TypeVar("Net", bound=AbstractNet)


def direction(problem: Problem, net: Net) -> Net:
    """ρ = √L θ/‖θ‖, the net on the sphere of radius √L.

    Raises:
        ValueError: for a net without a degree.
    """
    del problem
    if net.degree is None:
        raise ValueError(
            f"net is a {type(net).__name__} without a degree of homogeneity; it has no "
            "direction on the sphere of radius √L."
        )
    return scaled_to_norm(net, jnp.asarray(math.sqrt(net.degree), net.weights[0].dtype))


def escape_speed(problem: Problem, net: AbstractNet) -> Float[Array, ""]:
    r"""$s(\rho) = -\mathcal L_0(\rho)$, $\rho = \sqrt L\,\theta/\|\theta\|$.

    The rate d log r/dτ of the localized flow, constant along an escape direction
    (Bantzis et al., Def. 2.1; the paper's s* = min lacks the minus).

    Raises:
        ValueError: for a net without a degree.
    """
    return -problem.localized_risk(direction(problem, net))
