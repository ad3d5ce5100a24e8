"""Ranks by thresholds, accuracies and distances of an epoch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from galanti_cases import random_net, regression

import gfdyn as gf


def test_ranks_by_thresholds():
    problem = regression((4, 3))
    diagonal = jnp.diag(jnp.asarray([1.0, 1e-2, 2e-4, 1e-5]))
    net = gf.nets.MLP.from_weights([diagonal, 1e-9 * jnp.eye(4), jnp.eye(3, 4)])
    ranks = gf.diagnostics.layer_ranks(problem, net)
    assert ranks.tolist() == [3, 4, 3]
    assert gf.diagnostics.layer_ranks(problem, net, 1e-3).tolist() == [2, 4, 3]
    zeroed = gf.diagnostics.layer_ranks(problem, net, zero_norm=1e-6)
    assert zeroed.tolist() == [3, 0, 3]
    absolute = gf.diagnostics.layer_ranks(problem, net, normalisation="none")
    assert absolute.tolist() == [3, 0, 3]
    assert float(gf.diagnostics.average_rank(problem, net)) == 3.5
    whole = gf.diagnostics.average_rank(problem, net, include_head=True)
    np.testing.assert_allclose(whole, 10 / 3, rtol=1e-15)
    # At 0.6 of it the norms differ: 1/√2 of Frobenius, 1 of the spectral one.
    even = gf.nets.MLP.from_weights([jnp.eye(4), jnp.ones((3, 4))])
    assert gf.diagnostics.layer_ranks(problem, even, 0.6).tolist() == [0, 1]
    spectral = gf.diagnostics.layer_ranks(problem, even, 0.6, "spectral")
    assert spectral.tolist() == [4, 1]
    with pytest.raises(ValueError, match="no matrix but its head"):
        gf.diagnostics.average_rank(problem, gf.nets.MLP.from_weights([jnp.ones((3, 4))]))


def test_unknown_normalisations(unhooked):
    with pytest.raises(ValueError, match="normalisation='nuclear'; use 'none'"):
        gf.diagnostics.layer_ranks(regression(), random_net(), normalisation="nuclear")  # pyright: ignore


def test_ranks_of_what_is_no_number():
    problem = regression((4, 3))
    bad = gf.nets.MLP.from_weights([jnp.full((4, 4), jnp.nan), jnp.ones((3, 4))])
    assert gf.diagnostics.layer_ranks(problem, bad).tolist() == [-1, 1]
    assert bool(jnp.isnan(gf.diagnostics.average_rank(problem, bad)))


def test_accuracies_and_epoch_distances():
    x = np.eye(3)
    classes = gf.Problem(gf.Dataset(x, np.array([0, 1, 1])), gf.losses.cross_entropy)
    hot = gf.Problem(gf.Dataset(x, np.eye(2)[[0, 1, 1]]), gf.losses.squared)
    signs = gf.Problem(gf.Dataset(x, np.array([1.0, -1, 1])), gf.losses.logistic)
    two, zero, one, a, b = (
        gf.nets.MLP.from_weights(weights)
        for weights in (
            [np.array([[1.0, 0, 2], [0, 1, 1]])],
            [np.zeros((2, 3))],
            [np.array([[2.0, 1, 0]])],
            [np.zeros((2, 3)), np.ones((1, 2))],
            [np.ones((2, 3)), np.array([[4.0, 5.0]])],
        )
    )

    @jax.jit
    def found():
        pairs = (classes, two), (hot, two), (classes, zero), (signs, one)
        shares = [gf.diagnostics.accuracy(*pair) for pair in pairs]
        return shares, gf.diagnostics.epoch_distance(a, b)

    shares, moved = found()
    np.testing.assert_allclose(shares, [2 / 3, 2 / 3, 0, 1 / 3], rtol=1e-15)
    np.testing.assert_allclose(moved, (math.sqrt(6) + 5) / 2, rtol=1e-15)
