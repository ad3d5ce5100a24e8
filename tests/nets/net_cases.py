"""Fully connected networks."""

import jax
import jax.random as jr
import numpy as np

import gfdyn as gf


def assert_close(actual, expected, rtol=1e-12, atol=0.0):
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol + rtol * np.abs(b).max())


def mlp(widths, init=None, seed=0, **options):
    return gf.nets.MLP(widths, key=jr.key(seed), init=init, **options)
