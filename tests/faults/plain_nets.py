"""Networks written out for gradient descent: their convolutions as products of matrices,
which run side by side at the speed of dense layers.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gfdyn.nets import AbstractNet, Conv, LayeredNet


def outputs(net: AbstractNet, x: jax.Array) -> jax.Array:
    """f(x) of a network, in which only a first layer may be a convolution."""
    if not isinstance(net, LayeredNet) or not isinstance(_first(net), Conv):
        return net(x)
    kernel = _first(net).kernel
    spread = unrolled(tuple(_first(net).in_positions), kernel.shape)
    hidden = jnp.maximum(x @ jnp.tensordot(spread, kernel.ravel(), 1).T, 0.0)
    return hidden @ net.weights[-1].T


def _first(net: LayeredNet) -> Any:
    return net.layers[0].connections[0]


def unrolled(positions: tuple[int, ...], kernel: tuple[int, ...]) -> np.ndarray:
    """The matrix of a convolution, (units, inputs), of each entry of its kernel, by which
    all are to be multiplied; with one zero on all ends and one input channel."""
    *window, entering, channels = kernel
    assert entering == 1
    ends = [n + 3 - size for n, size in zip(positions, window, strict=True)]
    entries = np.arange(np.prod(kernel)).reshape(kernel)
    inputs = np.arange(np.prod(positions)).reshape(positions)
    units = np.arange(np.prod(ends) * channels).reshape(*ends, channels)
    found = np.zeros((units.size, inputs.size, entries.size))
    for place in itertools.product(*map(range, ends)):
        for offset in itertools.product(*map(range, window)):
            seen = tuple(p + o - 1 for p, o in zip(place, offset, strict=True))
            if all(0 <= s < n for s, n in zip(seen, positions, strict=True)):
                for c in range(channels):
                    entry = entries[(*offset, 0, c)]
                    found[units[(*place, c)], inputs[seen], entry] = 1.0
    return found
