"""The balance of neurons at two points of a flow."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numbers import check_number, is_threshold
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
            hidden layer; if the widths differ, or unless the tolerance is at least 0.
    """
    check_number("tolerance", tolerance, is_threshold, "must be 0 or more, such as 1e-6.")
    found = []
    for each in (net, initial):
        check_mlp(each)
        check_fit(problem, each)
        if each.degree < 2:
            raise ValueError("net has no hidden layer, and so no neuron to balance.")
        found.append(jnp.concatenate(neuron_balance(problem, each)))
    widths, others = (
        (each.in_size, *(w.shape[0] for w in each.weights)) for each in (net, initial)
    )
    if others != widths:
        raise ValueError(
            f"initial has widths {others}, and net {widths}; give the net that the flow "
            "started from, whose widths are the same."
        )
    now, then = found
    return now, then, tolerance * jnp.maximum(norm(net), norm(initial)) ** 2
