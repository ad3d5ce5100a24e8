"""Margins of classifiers."""

import jax.numpy as jnp

from .._types import Scalar
from ..nets import AbstractNet, scaled_to_norm
from ..problem import Problem


def margin(problem: Problem, net: AbstractNet) -> Scalar:
    """The smallest margin over the samples, positive if all are classified correctly.

    y f for signs, f_c − max_{a≠c} f_a for classes.

    Raises:
        ValueError: for a regression loss.
    """
    return jnp.min(problem.loss.margins(problem.outputs(net), problem.data.y))


def normalised_margin(problem: Problem, net: AbstractNet) -> Scalar:
    """margin / ‖θ‖^L, which gradient flow on separable data drives up.

    Raises:
        ValueError: for a regression loss, or a net without a degree.
    """
    if net.degree is None:
        raise ValueError(
            f"net is a {type(net).__name__} without a degree of homogeneity; its margin "
            "cannot be normalised."
        )
    return margin(problem, scaled_to_norm(net, 1.0))
