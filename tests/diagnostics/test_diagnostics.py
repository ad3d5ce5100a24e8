"""Diagnostics against naive NumPy, at every scale and at zero; errors."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from diagnostics_cases import NETS, TARGETS, X, build, scaled
from fixtures import assert_close, biased_net

from gfdyn import diagnostics


def layers(function):
    """A reference that looks at one matrix at a time."""
    return lambda loss, weights, slopes, y: np.array([function(w) for w in weights])


def escape_speed(loss, weights, slopes, y):
    size = np.sqrt(len(weights) / sum(np.sum(w**2) for w in weights))
    rho = [size * w for w in weights]
    return -reference.localized_risk(loss, rho, slopes, X, y)


def margin(loss, weights, slopes, y):
    outputs = reference.forward(weights, slopes, X)[0]
    return reference.margin(outputs, y, classes=loss == "cross_entropy")


def normalised_margin(loss, weights, slopes, y):
    size = np.sqrt(sum(np.sum(w**2) for w in weights))
    return margin(loss, weights, slopes, y) / size ** len(weights)


# What each diagnostic should give: of (loss, weights, slopes, targets).
REFERENCE = {
    "risk": lambda loss, w, s, y: reference.risk(loss, w, s, X, y),
    "log_risk": lambda loss, w, s, y: np.log(reference.risk(loss, w, s, X, y)),
    "gradient_norm": lambda loss, w, s, y: np.linalg.norm(
        reference.flatten(reference.risk_gradient(loss, w, s, X, y))
    ),
    "layer_norms": layers(lambda w: np.sqrt(np.sum(w**2))),
    "neuron_balance": lambda loss, w, s, y: [
        reference.neuron_balance(*pair) for pair in reference.pairs(w)
    ],
    "balance": lambda loss, w, s, y: [
        after.T @ after - before @ before.T for before, after in reference.pairs(w)
    ],
    "singular_values": layers(lambda w: reference.singular_values(w, k=10)),
    "stable_rank": layers(reference.stable_rank),
    "tail": layers(reference.tail),
    "numerical_rank": layers(lambda w: np.linalg.matrix_rank(w, rtol=1e-3)),
    "effective_rank": layers(reference.effective_rank),
    "nonlinearity": lambda loss, w, s, y: reference.nonlinearity(w, s, X),
    "kink_count": lambda loss, w, s, y: reference.kink_count(w, s, X, 0.2),
    "alignment": lambda loss, w, s, y: np.array(
        [reference.alignment(*pair) for pair in reference.pairs(w)]
    ),
    "escape_speed": escape_speed,
}
OPTIONS = {"kink_count": {"threshold": 0.2}}


def named(name):
    return functools.partial(getattr(diagnostics, name), **OPTIONS.get(name, {}))


def test_every_diagnostic_is_checked_here():
    public = {name for name, value in vars(diagnostics).items() if callable(value)}
    elsewhere = {"sharpness", "hessian_eigenvalues", "direction", "margin"}
    elsewhere |= {"normalised_margin"}
    elsewhere |= {"Subgradient", "minimum_norm_subgradient", "subgradient_norm"}
    elsewhere |= {"invariants", "invariant_rates", "gram_drift", "gram_velocities"}
    elsewhere |= {"GramVelocity", "signatures", "is_layer", "edge_balance"}
    elsewhere |= {"layer_ranks", "average_rank", "accuracy", "epoch_distance"}
    elsewhere |= {"norm_ratio", "mean_norm_ratio", "smoothed_margin"}
    elsewhere |= {"ntk", "ntk_alignment", "ntk_change"}
    assert public == set(REFERENCE) | elsewhere


# --- Against NumPy, compiled -----------------------------------------------------------


@pytest.mark.parametrize("net_name", NETS)
@pytest.mark.parametrize("name", REFERENCE)
def test_against_numpy(name, net_name):
    problem, net, weights, slopes = build(net_name)
    actual = jax.jit(named(name))(problem, net)
    assert_close(actual, REFERENCE[name]("squared", weights, slopes, TARGETS["squared"]))


@pytest.mark.parametrize("name", REFERENCE)
def test_float32(name):
    problem, net, weights, slopes = build(dtype=np.float32)
    actual = jax.jit(named(name))(problem, net)
    counts = name in ("numerical_rank", "kink_count")
    for leaf in jax.tree.leaves(actual):
        assert jnp.issubdtype(leaf.dtype, jnp.integer) if counts else leaf.dtype == "f4"
    expected = REFERENCE[name]("squared", weights, slopes, TARGETS["squared"])
    assert_close(actual, expected, rtol=2e-5)


@pytest.mark.parametrize("loss", ["logistic", "cross_entropy"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_margins(loss, dtype):
    problem, net, weights, slopes = build("relu", loss, dtype)
    rtol = 1e-12 if dtype == np.float64 else 2e-5
    for name, expected in (("margin", margin), ("normalised_margin", normalised_margin)):
        actual = jax.jit(named(name))(problem, net)
        assert actual.dtype == dtype
        assert_close(actual, expected(loss, weights, slopes, TARGETS[loss]), rtol)


@pytest.mark.parametrize("net_name", NETS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_direction(net_name, dtype):
    problem, net, weights, _ = build(net_name, dtype=dtype)
    rho = jax.jit(diagnostics.direction)(problem, net)
    rtol = 1e-15 if dtype == np.float64 else 1e-6
    size = np.sqrt(len(weights) / sum(np.sum(w**2) for w in weights))
    assert_close(rho.weights, [size * w for w in weights], rtol)
    assert all(w.dtype == dtype for w in rho.weights)
    squares = sum(np.sum(np.float64(w) ** 2) for w in rho.weights)
    np.testing.assert_allclose(np.sqrt(squares), np.sqrt(net.degree), rtol=rtol)


# --- Scales ----------------------------------------------------------------------------


SCALE_FREE = {
    "stable_rank": "squared",
    "tail": "squared",
    "numerical_rank": "squared",
    "effective_rank": "squared",
    "nonlinearity": "squared",
    "kink_count": "squared",
    "alignment": "squared",
    "escape_speed": "squared",
    "normalised_margin": "logistic",
}


@pytest.mark.parametrize("factor", [1e-80, 1e80])
@pytest.mark.parametrize("name", SCALE_FREE)
def test_scale_free(name, factor):
    problem, net, *_ = build("mixed", SCALE_FREE[name])
    measure = jax.jit(named(name))
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(measure(problem, net))]
    assert np.any(np.concatenate([e.ravel() for e in expected]) != 0)
    assert_close(measure(problem, scaled(net, factor)), expected)


# The degree in the parameters, with the linear loss where the risk comes in.
@pytest.mark.parametrize("factor", [1e-20, 1e-60, 1e60])
@pytest.mark.parametrize(
    "name, degree",
    [
        ("layer_norms", 1),
        ("singular_values", 1),
        ("neuron_balance", 2),
        ("gradient_norm", 2),
        ("risk", 3),
    ],
)
def test_homogeneous(name, degree, factor):
    problem, net, *_ = build("relu", "linear")
    measure = jax.jit(named(name))
    expected = jax.tree.leaves(measure(problem, net))
    expected = [factor**degree * np.asarray(leaf) for leaf in expected]
    assert_close(measure(problem, scaled(net, factor)), expected)


@pytest.mark.parametrize(
    "dtype, factor", [(np.float64, 1e-200), (np.float64, 1e200), (np.float32, 1e-30)]
)
@pytest.mark.parametrize("name", ["layer_norms", "singular_values"])
def test_norms_of_layers_whose_squares_leave_the_range(name, dtype, factor):
    problem, net, weights, _ = build(dtype=dtype)
    actual = getattr(diagnostics, name)(problem, scaled(net, factor))
    expected = factor * REFERENCE[name](None, weights, None, None)
    assert_close(actual, expected, 1e-12 if dtype == np.float64 else 1e-5)


# --- Zero ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, expected",
    [
        ("gradient_norm", 0),
        ("sharpness", 0),
        ("layer_norms", [0, 0, 0]),
        ("neuron_balance", ([0] * 5, [0] * 6)),
        ("balance", (np.zeros((5, 5)), np.zeros((6, 6)))),
        ("singular_values", np.zeros((3, 10))),
        ("stable_rank", [0, 0, 0]),
        ("tail", [0, 0, 0]),
        ("numerical_rank", [0, 0, 0]),
        ("effective_rank", [1, 1, 1]),
        ("nonlinearity", [0, 0]),
        ("kink_count", [0, 0]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_zero_net(name, expected):
    problem, net, *_ = build()
    actual = jax.jit(getattr(diagnostics, name))(problem, scaled(net, 0.0))
    leaves = [
        np.array(e) for e in (expected if isinstance(expected, tuple) else [expected])
    ]
    for a, b in zip(jax.tree.leaves(actual), leaves, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "name", ["alignment", "margin", "normalised_margin", "direction", "escape_speed"]
)
def test_zero_net_gives_numbers(name):
    problem, net, *_ = build(loss="logistic")
    actual = jax.jit(getattr(diagnostics, name))(problem, scaled(net, 0.0))
    for leaf in jax.tree.leaves(actual):
        assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize("loss", ["squared", "logistic", "cross_entropy"])
def test_risk_of_the_zero_net(loss):
    problem, net, *_ = build(loss=loss)
    zero, y = scaled(net, 0.0), TARGETS[loss]
    expected = {
        "squared": np.sum(y**2) / 12,
        "logistic": 3 * np.log(2),
        "cross_entropy": np.log(3),
    }[loss]
    np.testing.assert_allclose(diagnostics.risk(problem, zero), expected, rtol=1e-14)
    log_risk = diagnostics.log_risk(problem, zero)
    np.testing.assert_allclose(log_risk, np.log(expected), rtol=1e-14)


# --- Errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["direction", "escape_speed", "normalised_margin"])
def test_a_net_without_degree(name):
    problem, *_ = build(loss="logistic")
    net = biased_net((4, 5, 3))
    message = "net is a BiasedNet without a degree of homogeneity; it"
    with pytest.raises(ValueError, match=message):
        getattr(diagnostics, name)(problem, net)


@pytest.mark.parametrize("name", ["margin", "normalised_margin"])
def test_a_regression_has_no_margin(name):
    problem, net, *_ = build()
    with pytest.raises(ValueError, match="the squared loss has no margin; use logistic"):
        getattr(diagnostics, name)(problem, net)


def test_a_linear_loss_has_no_logarithm():
    problem, net, *_ = build(loss="linear")
    with pytest.raises(ValueError, match="the linear loss has no logarithm"):
        diagnostics.log_risk(problem, net)


@pytest.mark.usefixtures("unhooked")
def test_unknown_normalisation():
    problem, net, *_ = build()
    message = re.escape("normalisation='nuclear'; use 'none', 'spectral' or 'frobenius'")
    with pytest.raises(ValueError, match=message):
        wrong: Any = "nuclear"
        diagnostics.numerical_rank(problem, net, normalisation=wrong)
