"""Networks of layers and of single neurons."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gfdyn.nets import (
    conv,
    dense,
    densely_connected,
    resnet_branch,
    resnet_diagonal,
    resnet_free,
    resnet_identity,
    sequential,
)


LEAKY = "leaky_relu(0.1)"


# input shape and blocks
NETS = {
    "dense": (3, [dense(4), dense(3, LEAKY), dense(2, "identity")]),
    "biased": (3, [dense(4, bias=True), dense(3, LEAKY, True), dense(1, "identity", True)]),
    "conv": ((5, 2), [conv(3, 3, 2, 1), conv(2, 2, 1, "SAME"), dense(1, "identity")]),
    "conv-2d": (
        (4, 5, 2),
        [
            conv(2, (3, 2), (1, 2), "SAME", bias=True),
            resnet_free(3, 4),
            dense(1, "identity"),
        ],
    ),
    "residual": (
        3,
        [
            dense(4),
            resnet_identity(3, LEAKY),
            resnet_diagonal(5),
            resnet_free(2, 3),
            dense(1, "identity"),
        ],
    ),
    "branches": (
        3,
        [
            dense(4, "identity"),
            resnet_branch(3),
            resnet_branch(2, LEAKY),
            dense(2, "identity"),
        ],
    ),
    "densely connected": (3, [dense(4), densely_connected([2, 3]), dense(2, "identity")]),
}
nets = pytest.mark.parametrize("name", NETS)


def build(name, seed=0):
    """The net, with biases that are not 0, and samples."""
    shape, blocks = NETS[name]
    net = jax.tree.map(
        lambda w: w + 0.2, sequential(shape, blocks, key=jr.key(seed), scale=0.6)
    )
    x = np.random.default_rng(seed).normal(size=(6, net.in_size))
    return net, jnp.asarray(x)


def flat(tree):
    return np.concatenate([np.ravel(w) for w in jax.tree.leaves(tree)])
