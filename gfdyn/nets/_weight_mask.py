"""Which parameters are weights, and which biases, gains and shifts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._base import AbstractNet


def weight_mask(net: AbstractNet) -> Any:
    """A net of booleans: True for the parameters that `net.weights` are made of."""
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), net)
    with jax.ensure_compile_time_eval():
        total = lambda net: sum(jnp.sum(w) for w in net.weights)  # noqa: E731
        return jax.tree.map(lambda slope: bool(slope.any()), jax.grad(total)(ones))
