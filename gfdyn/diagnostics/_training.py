"""What is watched from epoch to epoch."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nets import AbstractNet
from ..problem import Problem


def accuracy(problem: Problem, net: AbstractNet) -> Float[Array, ""]:
    """The fraction of samples whose largest output is that of their class; of a single
    output, whose sign is the target's. Under any loss; ties and zeros count as wrong."""
    outputs, targets = problem.outputs(net), problem.data.y
    if outputs.shape[-1] == 1:
        right = (outputs * targets)[:, 0] > 0
    else:
        own = jnp.argmax(targets, axis=-1, keepdims=True)
        of_class = jnp.take_along_axis(outputs, own, axis=-1)
        others = jnp.arange(outputs.shape[-1])[None, :] != own
        right = of_class[:, 0] > jnp.max(outputs, -1, where=others, initial=-jnp.inf)
    return jnp.mean(right.astype(outputs.dtype))


def epoch_distance(before: AbstractNet, after: AbstractNet) -> Float[Array, ""]:
    r"""$d = \frac1L \sum_l \|W_l' - W_l\|_F$ of two nets, one epoch apart.

    Galanti & Poggio, §4.2, who leave the norm open; it is Frobenius' in their later code.
    Unlike the other diagnostics it is of two nets: those at neighbouring saves, by `vmap`.

    Args:
        before: the net of the W_l, at the start of the epoch.
        after: that of the W_l′, at its end, with the same shapes.
    """
    pairs = zip(before.weights, after.weights, strict=True)
    return jnp.mean(jnp.stack([jnp.linalg.norm(b - a) for a, b in pairs]))
