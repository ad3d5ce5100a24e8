"""What the norm of any net says of the ranks of its layers."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...diagnostics import norm_ratio
from ...nets import MLP, check_mlp, norm
from ...problem import Problem, check_fit
from .._check import Check, at_most
from ._witness import log_mean_size


def ratio_certificate(problem: Problem, net: MLP) -> Check:
    r"""Of any net, its gain and its norm bound the mean of $\rho_l = \|W_l\|_2/\|W_l\|_F$:

    $$\frac{\sqrt L\,g^{1/L}}{\|\theta\|}
    \le \Big(\frac{g}{\prod_l \|W_l\|_F}\Big)^{1/L}
    \le \Big(\prod_l \rho_l\Big)^{1/L} \le \frac1L \sum_l \rho_l, \qquad
    g = \max_i \frac{\|f(x_i)\|}{\|x_i\|}.$$

    Not in the paper; its proofs of Thms 4 and 5 use the ends of it, at an optimum. Three
    entries, from the left. No assumptions, so that it may be recorded along a trajectory.
    Vacuous where the left side is at most the `norm_ratio_floor`.

    Raises:
        TypeError, ValueError: if the net is no MLP, does not fit the problem, or has an
            activation of slope beyond ±1.
    """
    check_mlp(net)
    check_fit(problem, net)
    for sigma in net.activations:
        if abs(sigma.slope) > 1:
            raise ValueError(
                f"net has the activation {sigma.name}, which may enlarge its input; the "
                "certificate needs |slope| ≤ 1."
            )
    ratios = norm_ratio(problem, net)
    log_gain = jnp.log(_gain(problem, net)) / net.degree
    log_size = jnp.log(norm(net)) - 0.5 * math.log(net.degree)
    # A layer of zeros: there is no gain, and nothing to divide.
    alive = jnp.all(ratios > 0)
    log_geometric = jnp.mean(jnp.log(jnp.where(alive, ratios, 1)))
    geometric = jnp.where(alive, jnp.exp(log_geometric), 0)
    by_product = jnp.where(alive, jnp.exp(log_gain - log_mean_size(net)), 0)
    by_norm = jnp.where(alive, jnp.exp(log_gain - log_size), 0)
    lhs = jnp.stack([by_norm, by_product, geometric])
    return at_most(
        lhs,
        jnp.stack([by_product, geometric, jnp.mean(ratios)]),
        assumptions={},
        vacuous=lhs <= norm_ratio_floor(net),
    )


def norm_ratio_floor(net: MLP) -> float:
    r"""$\frac1L \sum_l \min(n_l, n_{l-1})^{-1/2}$, which the mean of ‖W_l‖_2/‖W_l‖_F never
    falls below: a bound that is no larger says nothing.

    Raises:
        TypeError: if the net is no MLP.
        ValueError: on a stack of nets.
    """
    check_mlp(net)
    return float(np.mean([min(w.shape) ** -0.5 for w in net.weights]))


def _gain(problem: Problem, net: MLP) -> Float[Array, ""]:
    """max ‖f(x)‖/‖x‖ over the samples with x ≠ 0."""
    sizes = jnp.linalg.norm(problem.data.x, axis=1)
    outputs = jnp.linalg.norm(problem.outputs(net), axis=1)
    return jnp.max(jnp.where(sizes > 0, outputs / jnp.where(sizes > 0, sizes, 1), 0))
