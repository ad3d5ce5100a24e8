"""Nets, and diagnostics in naive NumPy."""

import jax
import numpy as np
import reference

import gfdyn as gf


RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4))
TARGETS = {
    "squared": RNG.normal(size=(6, 3)),
    "linear": RNG.normal(size=(6, 3)),
    "logistic": np.sign(RNG.normal(size=(6, 3))),
    "cross_entropy": np.eye(3)[[0, 2, 1, 1, 0, 2]],
}


# widths, activation, slopes
NETS = {
    "relu": ([4, 5, 6, 3], "relu", [0.0, 0.0]),
    "mixed": ([4, 3, 5, 4, 3], ["leaky_relu(0.1)", "identity", "relu"], [0.1, 1.0, 0.0]),
    "no-hidden": ([4, 3], "relu", []),
}


def build(name="relu", loss="squared", dtype: type = np.float64):
    """A problem, a net, and the weights and slopes of the latter."""
    widths, activation, slopes = NETS[name]
    weights = reference.random_weights(widths)
    data = gf.Dataset(X.astype(dtype), TARGETS[loss].astype(dtype))
    problem = gf.Problem(data, getattr(gf.losses, loss))
    net = gf.nets.MLP.from_weights([w.astype(dtype) for w in weights], activation)
    return problem, net, weights, slopes


def scaled(net, factor):
    return jax.tree.map(lambda w: factor * w, net)
