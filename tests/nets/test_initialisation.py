"""Initialisations against what their names promise."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import reference
from fixtures import assert_close
from net_cases import mlp

import gfdyn as gf


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_gaussian_entries(scale):
    net = mlp([300, 200, 200], scale=scale)
    for w in net.weights:
        entries = np.asarray(w).ravel() / scale
        # Four standard deviations of what 40 000 or more draws show.
        assert abs(entries.mean()) < 4 / np.sqrt(entries.size)
        assert abs(entries.std() - 1) < 4 / np.sqrt(2 * entries.size)
        assert abs((entries**4).mean() - 3) < 4 * np.sqrt(96 / entries.size)
    square = mlp([200, 200, 200]).weights
    correlation = np.mean(np.asarray(square[0]) * np.asarray(square[1]))
    assert abs(correlation) < 4 / 200


def test_scale_is_that_of_gaussian_and_seeds_differ():
    named = mlp([3, 4, 2], gf.nets.gaussian(0.3))
    assert_close(mlp([3, 4, 2], scale=0.3), named, rtol=0)
    other = mlp([3, 4, 2], gf.nets.gaussian(0.3), seed=1)
    assert not np.allclose(named.weights[0], other.weights[0])


@pytest.mark.parametrize("ratio", [1.0, 2.0, 7.5])
def test_outgoing_weights_dominate(ratio):
    net = mlp([3, 5, 4, 2], gf.nets.dominated(0.1, ratio))
    first = mlp([3, 5, 4, 2], scale=0.1).weights[0]
    np.testing.assert_array_equal(net.weights[0], first)
    for before, after in reference.pairs([np.asarray(w) for w in net.weights]):
        incoming = np.linalg.norm(before, axis=1)
        outgoing = np.linalg.norm(after, axis=0)
        np.testing.assert_allclose(outgoing, ratio * incoming, rtol=1e-14)


def test_balanced_neurons():
    net = mlp([3, 5, 4, 2], gf.nets.balanced(0.1))
    for before, after in reference.pairs([np.asarray(w) for w in net.weights]):
        balance = reference.neuron_balance(before, after)
        np.testing.assert_allclose(balance, 0, atol=1e-14 * np.sum(before**2))


@pytest.mark.parametrize("widths", [[3, 8, 1], [3, 5, 6, 2], [2, 64, 3]], ids=str)
def test_zero_output(widths):
    net = mlp(widths, gf.nets.zero_output())
    *_, incoming, outgoing = (np.asarray(w) for w in net.weights)
    half = widths[-2] // 2
    np.testing.assert_array_equal(incoming[:half], incoming[half:])
    np.testing.assert_array_equal(outgoing[:, :half], -outgoing[:, half:])
    assert np.all(outgoing != 0)
    x = jr.normal(jr.key(1), (9, widths[0]))
    # Zero up to the rounding of a sum over the last hidden layer.
    a = np.maximum(np.asarray(net.preactivations(x)[-1]), 0)
    terms = a @ np.abs(outgoing).T
    assert np.all(np.abs(net(x)) <= widths[-2] * np.finfo(float).eps * terms)


@pytest.mark.parametrize(
    "init, rtol",
    [
        (gf.nets.gaussian(1.0), 0),
        (gf.nets.gaussian(0.1), 3e-7),
        (gf.nets.balanced(0.1), 3e-6),
        (gf.nets.dominated(0.1, 3.0), 3e-6),
        (gf.nets.zero_output(0.1), 3e-7),
    ],
    ids=["gaussian-1", "gaussian-0.1", "balanced", "dominated", "zero_output"],
)
def test_one_seed_is_one_net_in_every_precision(init, rtol):
    single = mlp([3, 4, 4, 2], init, dtype=jnp.float32)
    double = mlp([3, 4, 4, 2], init, dtype=jnp.float64)
    for a, b in zip(single.weights, double.weights, strict=True):
        assert (a.dtype, b.dtype) == (jnp.float32, jnp.float64)
        np.testing.assert_allclose(a, b, rtol=rtol)


def test_default_dtype_is_that_of_jax():
    assert mlp([2, 3, 1]).weights[0].dtype == jnp.result_type(float)
