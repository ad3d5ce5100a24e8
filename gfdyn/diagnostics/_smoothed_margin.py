"""The margin as the loss sees it."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nets import AbstractNet, norm
from ..problem import Problem


def smoothed_margin(problem: Problem, net: AbstractNet) -> Float[Array, ""]:
    r"""$-\log\mathcal L / \|\theta\|^L$ with $\mathcal L = \sum_i \ell(f(x_i), y_i)$,
    exact where $\mathcal L$ underflows.

    Positive once $\mathcal L < 1$. For the exponential loss it is at most the
    `normalised_margin`, at least that less $\log N / \|\theta\|^L$, and gradient flow never
    lowers it once it is positive (Lyu & Li 2020). For the logistic loss they have
    $-\log(e^{\mathcal L} - 1)$ in the numerator, which is smaller by about
    $\mathcal L / 2$. A sum over samples, whatever the problem's reduction.

    Raises:
        ValueError: for a loss that takes negative values, or a net without a degree.
    """
    if net.degree is None:
        raise ValueError(
            f"net is a {type(net).__name__} without a degree of homogeneity; its margin "
            "cannot be normalised."
        )
    total = Problem(problem.data, problem.loss, reduction="sum")
    return -total.log_risk(net) * jnp.exp(-net.degree * jnp.log(norm(net)))
