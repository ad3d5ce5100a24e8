"""Nets on their kinks, and bounded least squares."""

from typing import Any

import jax
import numpy as np
import reference

import gfdyn as gf
from gfdyn.diagnostics import minimum_norm_subgradient


# One program a shape
least = jax.jit(minimum_norm_subgradient, static_argnames="tolerance")
gradient_norm = jax.jit(gf.diagnostics.gradient_norm)
plain_gradient = jax.jit(lambda problem, net: jax.grad(problem.risk)(net))


def flat(net):
    return np.concatenate([np.ravel(w) for w in net.weights]).astype(float)


def problem_of(x, y, dtype: type = np.float64, loss: Any = gf.losses.squared):
    return gf.Problem(gf.Dataset(x.astype(dtype), y.astype(dtype)), loss)


def net_of(weights, activation="relu", dtype: type = np.float64):
    return gf.nets.MLP.from_weights([w.astype(dtype) for w in weights], activation)


def gradient(weights, gates, x, y):
    """Of the mean squared loss, by backpropagation through gates (N, n_l)."""
    outputs, _ = reference.gated_forward(weights, gates, x)
    return reference.gated_backprop(weights, gates, x, (outputs - y) / len(x))


def onto_kinks(w, x, samples):
    """The unit's weights, moved to z = 0 at these samples."""
    q, r = np.linalg.qr(x[samples].T)
    q = q[:, np.abs(np.diag(r)) > 1e-9] if len(samples) <= x.shape[1] else q
    for _ in range(2):
        w = w - q @ (q.T @ w)
    return w


def draw(case, seed):
    """Data and weights of the one shape used here, with kinks."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(12, 4)), rng.normal(size=(12, 2))
    first, last = rng.normal(size=(5, 4)), rng.normal(size=(2, 5))
    if case == "collinear":
        x[6:9] = np.array([[2.5], [-0.7], [-1.0]]) * x[:3]
        x[9] = -3.0 * x[0]
    elif case == "duplicates":
        x[6:9], x[9] = x[:3], x[0]
    elif case == "nearly-collinear":
        x[6:9] = x[:3] + 1e-4 * x[6:9]
    if case == "no-kinks":
        return x, y, [first, last]
    for j in range(5):
        samples = rng.choice(12, size=rng.integers(1, 4), replace=False)
        if case in ("collinear", "duplicates", "nearly-collinear"):
            # One of each line would be enough, two are at their kinks.
            samples = np.array([j % 3, 6 + j % 3])
        if case in ("collinear", "duplicates"):
            samples = samples[:1]
        first[j] = onto_kinks(first[j], x, samples)
    if case == "zero-unit":
        first[0] = 0.0
    elif case == "dead-neuron":
        first[1], last[:, 1] = 0.0, 0.0
        last[:, 2] = 0.0
    return x, y, [first, last]
