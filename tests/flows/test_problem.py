"""The risk, its gradient and its checks against naive NumPy."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import reference

import gfdyn as gf
from gfdyn.problem import check_fit


RNG = np.random.default_rng(0)
N, K = 6, 3
X = RNG.normal(size=(N, 4))
SIGNS = np.sign(RNG.normal(size=(N, K)))
LABELS = np.array([0, 2, 1, 1, 0, 2])
TARGETS = {
    "squared": RNG.normal(size=(N, K)),
    "linear": RNG.normal(size=(N, K)),
    "exponential": SIGNS,
    "logistic": SIGNS,
    "cross_entropy": np.eye(K)[LABELS],
}
WEIGHTS = reference.random_weights([4, 5, 3, K])
ACTIVATIONS = {
    "relu": ("relu", [0.0, 0.0]),
    "leaky-identity": (["leaky_relu(0.1)", "identity"], [0.1, 1.0]),
}
losses = pytest.mark.parametrize("loss", reference.LOSSES)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum"])
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


def build(loss, reduction: Any = "mean", activation="relu"):
    """A problem, a net, and the arguments of their reference."""
    spec, slopes = ACTIVATIONS[activation]
    data = gf.Dataset(X, TARGETS[loss])
    problem = gf.Problem(data, getattr(gf.losses, loss), reduction=reduction)
    net = gf.nets.MLP.from_weights(WEIGHTS, spec)
    return problem, net, (loss, WEIGHTS, slopes, X, TARGETS[loss], reduction)


# --- Risk and gradients ---------------------------------------------------------------


@losses
@reductions
@activations
def test_risk_and_localized_risk(loss, reduction, activation):
    problem, net, args = build(loss, reduction, activation)
    np.testing.assert_allclose(problem.risk(net), reference.risk(*args), rtol=1e-12)
    expected = reference.localized_risk(*args)
    np.testing.assert_allclose(problem.localized_risk(net), expected, rtol=1e-12)
    np.testing.assert_allclose(problem.localized().risk(net), expected, rtol=1e-12)


@losses
@reductions
def test_outputs_cost_and_its_gradient(loss, reduction):
    problem, net, (_, weights, slopes, x, y, _) = build(loss, reduction)
    outputs = reference.forward(weights, slopes, x)[0]
    np.testing.assert_allclose(problem.outputs(net), outputs, rtol=1e-12, atol=1e-15)
    expected = reference.cost(loss, outputs, y, reduction)
    np.testing.assert_allclose(problem.cost(jnp.asarray(outputs)), expected, rtol=1e-12)
    actual = problem.cost_gradient(jnp.asarray(outputs))
    expected = reference.cost_gradient(loss, outputs, y, reduction)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "loss, gradient",
    [
        ("squared", lambda y: -y),
        ("linear", lambda y: -y),
        ("exponential", lambda y: -y),
        ("logistic", lambda y: -y / 2),
        ("cross_entropy", lambda y: 1 / K - y),
    ],
    ids=reference.LOSSES,
)
def test_cost_gradient_at_zero(loss, gradient):
    expected = gradient(TARGETS[loss])
    mean, total = build(loss, "mean")[0], build(loss, "sum")[0]
    np.testing.assert_allclose(mean.cost_gradient_at_zero, expected / N, rtol=1e-15)
    np.testing.assert_allclose(total.cost_gradient_at_zero, expected, rtol=1e-15)


@losses
@reductions
@activations
def test_gradient_of_the_risk_is_backpropagation(loss, reduction, activation):
    problem, net, args = build(loss, reduction, activation)
    gradient = jax.grad(problem.risk)(net)
    for actual, expected in zip(
        gradient.weights, reference.risk_gradient(*args), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-15)


@losses
def test_gradient_of_the_risk_is_a_central_difference(loss):
    problem, net, args = build(loss)
    _, weights, slopes, x, y, _ = args
    _, preactivations = reference.forward(weights, slopes, x)
    assert min(np.abs(z).min() for z in preactivations) > 1e-3  # no kink within h

    def risk(theta):
        return reference.risk(loss, reference.unflatten(theta, weights), slopes, x, y)

    expected = reference.central_differences(risk, reference.flatten(weights), 1e-5)
    actual = reference.flatten([np.asarray(w) for w in jax.grad(problem.risk)(net).weights])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


@losses
def test_sum_is_samples_times_mean(loss):
    (mean, net, _), (total, _, _) = build(loss, "mean"), build(loss, "sum")
    np.testing.assert_allclose(total.risk(net), N * mean.risk(net), rtol=1e-15)
    sums, means = jax.grad(total.risk)(net), jax.grad(mean.risk)(net)
    for a, b in zip(sums.weights, means.weights, strict=True):
        np.testing.assert_allclose(a, N * b, rtol=1e-14, atol=1e-16)


# --- Log domain -----------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "exponential", "logistic", "cross_entropy"])
@reductions
def test_log_risk(loss, reduction):
    problem, net, args = build(loss, reduction)
    expected = np.log(reference.risk(*args))
    np.testing.assert_allclose(problem.log_risk(net), expected, rtol=1e-12, atol=1e-15)
    gradient = jax.grad(problem.log_risk)(net)
    for actual, g in zip(gradient.weights, reference.risk_gradient(*args), strict=True):
        np.testing.assert_allclose(
            actual, g / reference.risk(*args), rtol=1e-12, atol=1e-15
        )


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
@reductions
def test_log_risk_where_the_risk_underflows(loss, reduction):
    # f(x) = w x with margins 1e4 and 1e4 + 1: the risk is e^-1e4 (1 + 1/e).
    data = gf.Dataset([[1.0], [1.0001]], [[1.0], [1.0]])
    problem = gf.Problem(data, getattr(gf.losses, loss), reduction=reduction)
    net = gf.nets.MLP.from_weights([np.array([[1e4]])])
    assert problem.risk(net) == 0
    expected = -1e4 + np.log1p(np.exp(-1)) - (np.log(2) if reduction == "mean" else 0)
    np.testing.assert_allclose(problem.log_risk(net), expected, rtol=1e-14)
    p = 1 / (1 + np.exp(-1))
    slope = jax.grad(problem.log_risk)(net).weights[0]
    np.testing.assert_allclose(slope, [[-(p + (1 - p) * 1.0001)]], rtol=1e-12)


@pytest.mark.parametrize("fitted", ["one", "all"])
def test_log_risk_with_fitted_samples(fitted):
    y = [[1.0], [2.0]] if fitted == "all" else [[1.0], [0.0]]
    problem = gf.Problem(gf.Dataset([[1.0], [2.0]], y), gf.losses.squared)
    net = gf.nets.MLP.from_weights([np.array([[1.0]])])
    value, gradient = jax.value_and_grad(problem.log_risk)(net)
    # Risk 1/4 (2w)^2 at w = 1 if one sample is fitted.
    expected, slope = {"all": (-np.inf, 0.0), "one": (0.0, 2.0)}[fitted]
    np.testing.assert_allclose(value, expected, atol=1e-15)
    np.testing.assert_allclose(gradient.weights[0], [[slope]], rtol=1e-15)


# --- Targets --------------------------------------------------------------------------


def test_class_labels_equal_one_hot_rows():
    by_row, net, _ = build("cross_entropy")
    by_label = gf.Problem(gf.Dataset(X, LABELS), gf.losses.cross_entropy)
    np.testing.assert_array_equal(by_label.data.y, by_row.data.y)
    assert by_label.risk(net) == by_row.risk(net)


@pytest.mark.parametrize("loss", reference.LOSSES)
def test_float32_data_stay_float32(loss):
    data = gf.Dataset(X, TARGETS[loss]).astype(jnp.float32)
    if loss == "cross_entropy":
        data = gf.Dataset(jnp.asarray(X, jnp.float32), LABELS)
    problem = gf.Problem(data, getattr(gf.losses, loss))
    net = gf.nets.MLP([4, 5, K], key=jr.key(0), dtype=jnp.float32)
    assert problem.data.y.dtype == jnp.float32
    assert problem.risk(net).dtype == jnp.float32
    assert problem.cost_gradient_at_zero.dtype == jnp.float32
    assert problem.localized_risk(net).dtype == jnp.float32


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_integer_targets_become_a_column_of_the_dtype_of_x(loss):
    data = gf.Dataset(jnp.asarray(X, jnp.float32), [1, -1, 1, 1, -1, 1])
    problem = gf.Problem(data, getattr(gf.losses, loss))
    assert problem.data.y.dtype == jnp.float32
    np.testing.assert_array_equal(problem.data.y, [[1], [-1], [1], [1], [-1], [1]])


def test_problems_may_be_built_under_jit():
    problem, net, _ = build("logistic")
    x, y = problem.data.x, problem.data.y

    @jax.jit
    def risk(x, y, net):
        return gf.Problem(gf.Dataset(x, y), gf.losses.logistic).risk(net)

    np.testing.assert_allclose(risk(x, y, net), problem.risk(net), rtol=1e-15)


# --- Errors ---------------------------------------------------------------------------


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    "data, message",
    [
        ((X, X), "data must be a gf.Dataset, got tuple; use gf.Dataset(x, y)"),
        (X, "data must be a gf.Dataset, got ndarray"),
    ],
    ids=["tuple", "array"],
)
def test_data_of_another_kind(data, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        gf.Problem(data, gf.losses.squared)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("loss", ["squared", gf.losses.Squared], ids=["name", "class"])
def test_loss_of_another_kind(loss):
    message = f"loss must be one of gf.losses (such as gf.losses.squared), got {loss!r}"
    with pytest.raises(TypeError, match=re.escape(message)):
        gf.Problem(gf.Dataset(X, X), loss)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("reduction", ["average", None, "Mean"])
def test_unknown_reduction(reduction):
    message = f"reduction={reduction!r}; use 'mean' or 'sum'"
    with pytest.raises(ValueError, match=message):
        gf.Problem(gf.Dataset(X, X), gf.losses.squared, reduction=reduction)


def test_the_loss_checks_the_targets():
    data = gf.Dataset(X, np.array([0, 1, 1, 0, 1, 0]))
    with pytest.raises(ValueError, match=re.escape("y[0, 0] = 0: labels must be +1")):
        gf.Problem(data, gf.losses.logistic)


class Biased(eqx.Module):
    """What a user might write."""

    weight: jax.Array
    bias: jax.Array

    def __call__(self, x):
        return x @ self.weight.T + self.bias


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    "net, name",
    [
        (eqx.nn.MLP(4, K, 5, 1, key=jr.key(0)), "MLP"),
        (Biased(jnp.ones((K, 4)), jnp.ones(K)), "Biased"),
        ([np.ones((K, 4))], "list"),
    ],
    ids=["equinox", "biased", "list"],
)
def test_net_of_another_kind(net, name):
    message = f"net must be a network of gf.nets, got {name}; build one with gf.nets.MLP"
    with pytest.raises(TypeError, match=re.escape(message)):
        check_fit(build("squared")[0], net)


@pytest.mark.parametrize(
    "widths, message",
    [
        ([5, 3], "net has 5 inputs but the data have 4; its widths must start with 4"),
        (
            [4, 6, 2],
            "net has 2 outputs but the data have 3; .* start with 4 and end with 3",
        ),
    ],
    ids=["inputs", "outputs"],
)
def test_net_of_another_size(widths, message):
    net = gf.nets.MLP(widths, key=jr.key(0))
    with pytest.raises(ValueError, match=message):
        check_fit(build("squared")[0], net)


@pytest.mark.parametrize("ours, theirs", [("float32", "float64"), ("float64", "float32")])
def test_net_of_another_dtype(ours, theirs):
    net = gf.nets.MLP([4, K], key=jr.key(0), dtype=ours)
    problem = gf.Problem(gf.Dataset(X, X[:, :K]).astype(theirs), gf.losses.squared)
    message = f"net is {ours} but the data are {theirs}; use data.astype({ours}) or a net"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_fit(problem, net)


def test_a_net_that_fits():
    problem, net, _ = build("squared")
    check_fit(problem, net)
