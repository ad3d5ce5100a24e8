"""Galanti & Poggio, Propositions 1 and 2: where SGD rests, with decay and without."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from galanti_cases import N, by_hand, random_net, regression, stationarity
from jax.flatten_util import ravel_pytree

import gfdyn as gf
from gfdyn.theory import galanti


zero_or_collinear = jax.jit(galanti.zero_or_collinear)
fitted_or_zero = jax.jit(galanti.fitted_or_zero)


def test_residuals_against_numpy():
    problem, net, decay = regression(), random_net(), 0.03
    found = stationarity(problem, net, decay)
    flat = [g.reshape(N, -1) for g in by_hand(problem, net)]
    g = np.concatenate(flat, axis=1)
    w = np.concatenate([np.asarray(w).ravel() for w in net.weights])
    residuals = np.linalg.norm(g + 2 * decay * w, axis=1)
    np.testing.assert_allclose(found.largest, residuals.max(), rtol=1e-12)
    mean = np.linalg.norm(g.mean(axis=0) + 2 * decay * w)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    noise = np.trace(np.cov(g.T, bias=True))
    np.testing.assert_allclose(found.noise, noise, rtol=1e-12)
    np.testing.assert_allclose(
        found.root_mean_square**2, found.mean**2 + found.noise, rtol=1e-12
    )
    signals = np.asarray(problem.outputs(net)) - np.asarray(problem.data.y)
    np.testing.assert_allclose(
        found.loss_derivatives, np.linalg.norm(signals, axis=1), rtol=1e-12
    )
    with pytest.raises(ValueError, match="reduction='sum', but the penalty"):
        galanti.stationarity(gf.Problem(problem.data, problem.loss, "sum"), net, decay)


def test_collinearity():
    rng = np.random.default_rng(0)
    line = rng.normal(size=(5, 1)) * rng.normal(size=(1, 4))
    assert abs(float(galanti.collinearity(jnp.asarray(line)))) < 1e-15
    with_zero = jnp.asarray(np.concatenate([line, np.zeros((1, 4))]))
    assert abs(float(galanti.collinearity(with_zero))) < 1e-15
    assert float(galanti.collinearity(jnp.zeros((3, 2)))) == 0
    cross = jnp.asarray([[1.0, 0], [0, 3.0]])
    np.testing.assert_allclose(galanti.collinearity(cross), 0.5, rtol=1e-14)


@pytest.mark.parametrize("decay, height", [(0.02, 1.0), (0.7, 0.3)])
def test_on_collinear_data_sgd_rests(decay, height):
    """The bound of Prop. 1 is sharp: without its assumption, f ≠ 0 at rest."""
    rng = np.random.default_rng(0)
    problem, net = galanti.collinear_convergence_point(
        rng.normal(size=3), np.array([0.5, 1.0, 2.0, 3.0]), decay, height
    )
    gradients = [
        g + 2 * decay * np.asarray(w)
        for g, w in zip(by_hand(problem, net), net.weights, strict=True)
    ]
    assert max(np.abs(g).max() for g in gradients) <= 1e-12
    found = stationarity(problem, net, decay)
    assert float(found.largest) <= 1e-12 and float(found.noise) <= 1e-24
    assert float(jnp.abs(problem.outputs(net)).min()) > 1e-2
    assert abs(float(galanti.collinearity(problem.data.x))) < 1e-14
    assert float(galanti.jacobian_collinearity(problem, net).max()) < 1e-14
    check = zero_or_collinear(problem, net, decay)
    assert check.verdict == "ASSUMPTIONS NOT MET"
    assert "not not_collinear" in str(check)
    with pytest.raises(ValueError, match="multiples must be positive"):
        galanti.collinear_convergence_point(np.ones(2), np.array([1.0, -1.0]), decay)


def search_for_rest(problem, net, decay, starts):
    """Levenberg–Marquardt on all single-sample gradients from a net."""
    theta, unravel = ravel_pytree(net)
    x, y = problem.data.x, problem.data.y

    def residuals(theta):
        def of(xi, yi):
            one = gf.Problem(gf.Dataset(xi[None], yi[None]), problem.loss)
            return ravel_pytree(jax.grad(one.risk)(unravel(theta)))[0]

        return (jax.vmap(of)(x, y) + 2 * decay * theta[None]).ravel()

    compiled, jacobian = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))
    ends = []
    for start in starts:
        found = scipy.optimize.least_squares(
            lambda t: np.asarray(compiled(jnp.asarray(t))),
            start,
            lambda t: np.asarray(jacobian(jnp.asarray(t))),  # pyright: ignore
            method="lm",
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
            max_nfev=300,
        )
        ends.append(unravel(jnp.asarray(found.x)))
    return ends


def test_with_decay_sgd_rests_at_zero_only():
    """The best that a least-squares solver finds is f = 0, or is bounded away from rest;
    at every point the quantitative bound holds."""
    problem, decay = regression((3, 1), n=5), 0.02
    net = random_net((3, 6, 1))
    size = ravel_pytree(net)[0].size
    starts = np.random.default_rng(1).normal(size=(6, size)) * 0.6
    at_rest = []
    for end in search_for_rest(problem, net, decay, starts):
        check = zero_or_collinear(problem, end, decay)
        assert check.verdict == "HOLDS"
        largest = float(stationarity(problem, end, decay).largest)
        at_rest.append(largest < 1e-8)
        if at_rest[-1]:
            assert float(jnp.abs(problem.outputs(end)).max()) < 1e-8
        else:
            assert largest > 1e-3
    assert any(at_rest)
    assert zero_or_collinear(problem, net, 0.0).verdict == "VACUOUS"


def test_the_bound_on_the_first_layer_against_numpy():
    problem, net, decay = regression(), random_net(), 0.05
    check = zero_or_collinear(problem, net, decay)
    x, first = np.asarray(problem.data.x), np.asarray(net.weights[0])
    residual = by_hand(problem, net)[0] + 2 * decay * first
    largest = max(np.linalg.norm(r) for r in residual)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    sine = 1 - np.min((unit @ unit.T) ** 2)
    np.testing.assert_allclose(
        check.rhs, largest / (2 * decay) * np.sqrt(1 + 4 / sine), rtol=1e-12
    )
    np.testing.assert_allclose(check.lhs, np.linalg.norm(first), rtol=1e-14)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_without_decay_samples_are_fitted_or_zero(loss):
    problem = regression((3, 1), n=5, loss=getattr(gf.losses, loss))
    net = random_net((3, 6, 1))
    check = fitted_or_zero(problem, net)
    assert check.verdict == "HOLDS"
    gradients = np.concatenate([g.reshape(5, -1) for g in by_hand(problem, net, loss)], 1)
    size = float(gf.nets.norm(net))
    np.testing.assert_allclose(
        check.rhs, np.linalg.norm(gradients, axis=1) * size / 2, rtol=1e-12
    )
    if loss == "squared":
        size = ravel_pytree(net)[0].size
        starts = np.random.default_rng(1).normal(size=(4, size))
        ends = search_for_rest(problem, net, 0.0, starts)
        largest = [float(stationarity(problem, end).largest) for end in ends]
        assert min(largest) < 1e-8
        end = ends[int(np.argmin(largest))]
        gap = np.abs(np.asarray(problem.outputs(end) - problem.data.y))
        either = np.minimum(gap, np.abs(np.asarray(problem.outputs(end))))
        assert either.max() < 1e-6
        assert fitted_or_zero(problem, end).verdict == "HOLDS"


def test_gradient_descent_rests_where_sgd_does_not():
    """f ≠ 0 with noise at the limit of full batches: decay alone forbids nothing."""
    problem, decay = regression((6, 1), n=12), 0.01
    net = random_net((6, 16, 1))
    end = gf.descend(problem, net, 0.05, 8000, weight_decay=decay, save_every=8000)
    at = stationarity(problem, end.final, decay)
    assert float(at.mean) < 0.05 * math.sqrt(float(at.noise))
    assert float(at.noise) > 1e-2
    assert float(jnp.abs(problem.outputs(end.final)).max()) > 0.1
