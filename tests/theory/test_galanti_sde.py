"""The stochastic differential equation of SGD: its covariance, its paths."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import distance, rows
from galanti_cases import by_hand, random_net, regression
from jax.flatten_util import ravel_pytree

import gfdyn as gf
from gfdyn.theory import galanti


def test_the_covariance_is_that_of_all_batches():
    """Enumerated: every subset of the samples without replacement."""
    problem, net = regression(n=6), random_net()
    gradients = np.concatenate([g.reshape(6, -1) for g in by_hand(problem, net)], axis=1)
    for size in (1, 2, 4, 6):
        means = np.stack(
            [
                gradients[list(batch)].mean(axis=0)
                for batch in itertools.combinations(range(6), size)
            ]
        )
        exact = np.cov(means.T, bias=True) if size < 6 else np.zeros((means.shape[1],) * 2)
        noise = galanti.gradient_noise(problem, net, size)
        columns = jax.vmap(lambda e, a=noise: ravel_pytree(a.mv(e))[0])(jnp.eye(6))
        root = np.asarray(columns).T
        np.testing.assert_allclose(root @ root.T, exact, atol=1e-12 * exact.max() + 1e-16)
    with pytest.raises(ValueError, match="size=7 must lie between 1 and the 6 samples"):
        galanti.gradient_noise(problem, net, 7)


def test_paths_of_the_equation():
    """Without noise the steps are those of gradient descent; from many seeds, the moments
    of the first are within five deviations."""
    problem, net, eta, decay, dt = regression(n=6), random_net(), 0.2, 0.03, 0.05
    number, settings = 1000, dict[str, Any](batch_size=2, steps=8)

    def path(rate, key):
        return galanti.sgd_diffusion(
            problem, net, rate, 0.4, saves=8, weight_decay=decay, key=key, **settings
        )

    rates = jnp.full(number + 1, eta).at[0].set(0.0)
    keys = jax.random.split(jax.random.key(0), number + 1)
    times, nets = jax.vmap(path)(rates, keys)
    descent = gf.descend(problem, net, dt, 8, weight_decay=decay, save_every=1)
    np.testing.assert_allclose(times[0], dt * np.arange(1, 9), rtol=1e-14)
    for i in range(8):
        assert distance(rows(rows(nets, 0), i), rows(descent.net, i + 1)) < 1e-13
    first = [np.asarray(w)[1:, 0].reshape(number, -1) for w in nets.weights]
    ends = np.concatenate(first, axis=1)
    mean = np.asarray(ravel_pytree(rows(descent.net, 1))[0])
    gradients = np.concatenate([g.reshape(6, -1) for g in by_hand(problem, net)], axis=1)
    variance = eta * dt * (6 - 2) / (2 * 5) * gradients.var(axis=0)
    moving = variance > 1e-12
    noise = ends - mean
    np.testing.assert_allclose(noise[:, ~moving], 0, atol=1e-12)
    ratios = (noise[:, moving] ** 2).mean(axis=0) / variance[moving]
    assert np.abs(ratios - 1).max() < 5 * math.sqrt(2 / number)
    means = noise[:, moving].mean(axis=0) / np.sqrt(variance[moving] / number)
    assert np.abs(means).max() < 5
    with pytest.raises(ValueError, match="saves=9 must lie between 1 and steps=8"):
        galanti.sgd_diffusion(problem, net, 0.1, 0.4, saves=9, key=keys[0], **settings)
