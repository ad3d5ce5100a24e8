"""The balance of neurons at two points of a flow."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Scalar
from ..diagnostics import neuron_balance
from ..nets import MLP, check_mlp, norm
from ..problem import Problem, check_fit


def balances(
    problem: Problem, net: MLP, initial: MLP, tolerance: float
) -> tuple[Float[Array, " neurons"], Float[Array, " neurons"], Scalar]:
    r"""$\|W_{l+1,\cdot i}\|^2 - \|W_{l,i\cdot}\|^2$ of all neurons at both nets,
    (Σ n_l,), layer by layer, and the tolerance times the larger ‖θ‖².

    Raises:
        TypeError, ValueError: if a net is no MLP, does not fit the problem, or has no
            hidden layer.
    """
    found = []
    for each in (net, initial):
        check_mlp(each)
        check_fit(problem, each)
        if each.degree < 2:
            raise ValueError("net has no hidden layer, and so no neuron to balance.")
        found.append(jnp.concatenate(neuron_balance(problem, each)))
    now, then = found
    return now, then, tolerance * jnp.maximum(norm(net), norm(initial)) ** 2
