"""Losses against naive NumPy, and against extended precision where that overflows."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.special

import gfdyn as gf
from gfdyn.losses._standard import log_softplus


RNG = np.random.default_rng(0)
SIGNS = np.sign(RNG.normal(size=(6, 3)))
ONE_HOT = np.eye(3)[[0, 2, 1, 1, 0, 2]]
OUTPUTS = RNG.normal(size=(6, 3))
TARGETS = {
    "squared": RNG.normal(size=(6, 3)),
    "linear": RNG.normal(size=(6, 3)),
    "exponential": SIGNS,
    "logistic": SIGNS,
    "cross_entropy": ONE_HOT,
}
WITH_LOG = ["squared", "exponential", "logistic", "cross_entropy"]
CLASSIFIERS = ["exponential", "logistic", "cross_entropy"]
MARGINS = [1e4, 40.0, 1.0, 0.0, -1.0, -40.0, -1e4]


def loss_of(name):
    return getattr(gf.losses, name)


def value_and_gradient(function, outputs, targets):
    """Of each sample: `function` must not mix them."""
    outputs, targets = jnp.asarray(outputs), jnp.asarray(targets)
    gradient = jax.grad(lambda f: jnp.sum(function(f, targets)))(outputs)
    return function(outputs, targets), gradient


def assert_close(actual, expected, rtol=1e-12, atol=0.0):
    expected = np.asarray(expected, np.float64)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=rtol, atol=atol)


# --- Moderate outputs -----------------------------------------------------------------


@pytest.mark.parametrize("name", reference.LOSSES)
def test_values_and_gradients(name):
    targets = TARGETS[name]
    values, gradients = value_and_gradient(loss_of(name).values, OUTPUTS, targets)
    pairs = zip(OUTPUTS, targets, strict=True)
    expected = [reference.LOSSES[name](f, y) for f, y in pairs]
    assert_close(values, [value for value, _ in expected])
    assert_close(gradients, [gradient for _, gradient in expected], atol=1e-15)


@pytest.mark.parametrize("name", WITH_LOG)
def test_log_values_and_their_gradients(name):
    targets = TARGETS[name]
    values, gradients = value_and_gradient(loss_of(name).log_values, OUTPUTS, targets)
    pairs = zip(OUTPUTS, targets, strict=True)
    expected = [reference.LOSSES[name](f, y) for f, y in pairs]
    assert_close(values, [np.log(value) for value, _ in expected], atol=1e-15)
    assert_close(gradients, [g / value for value, g in expected], atol=1e-15)


@pytest.mark.parametrize("name", ["exponential", "logistic"])
def test_margins_of_signs(name):
    margins = loss_of(name).margins(jnp.asarray(OUTPUTS), jnp.asarray(SIGNS))
    assert_close(margins, [min(y * f) for f, y in zip(OUTPUTS, SIGNS, strict=True)])


def test_margins_of_classes():
    margins = gf.losses.cross_entropy.margins(jnp.asarray(OUTPUTS), jnp.asarray(ONE_HOT))
    rows = zip(OUTPUTS, ONE_HOT, strict=True)
    assert_close(margins, [f[y == 1][0] - max(f[y == 0]) for f, y in rows])


@pytest.mark.parametrize("name", reference.LOSSES)
def test_float32_stays_float32(name):
    f, y = jnp.float32(OUTPUTS), jnp.float32(TARGETS[name])
    values, gradients = value_and_gradient(loss_of(name).values, f, y)
    assert values.dtype == gradients.dtype == jnp.float32
    pairs = zip(OUTPUTS, TARGETS[name], strict=True)
    assert_close(values, [reference.LOSSES[name](f, y)[0] for f, y in pairs], 1e-5)
    if name in WITH_LOG:
        assert loss_of(name).log_values(f, y).dtype == jnp.float32


# --- Far margins, against 80-bit NumPy ------------------------------------------------


def softplus(u):
    """log(1 + exp(u)) and its derivative in extended precision."""
    u = np.longdouble(u)
    return np.logaddexp(np.longdouble(0), u), 1 / (1 + np.exp(-u))


@pytest.mark.parametrize("label", [1.0, -1.0])
@pytest.mark.parametrize("margin", MARGINS)
def test_logistic_at_any_margin(margin, label):
    outputs, targets = np.array([[label * margin]]), np.array([[label]])
    value, slope = softplus(-margin)
    actual = value_and_gradient(gf.losses.logistic.values, outputs, targets)
    assert_close(actual[0], [value])
    assert_close(actual[1], [[-label * slope]])
    actual = value_and_gradient(gf.losses.logistic.log_values, outputs, targets)
    assert_close(actual[0], [np.log(value)])
    assert_close(actual[1], [[-label * slope / value]])


@pytest.mark.parametrize("label", [1.0, -1.0])
@pytest.mark.parametrize("margin", MARGINS)
def test_log_exponential_at_any_margin(margin, label):
    outputs, targets = np.array([[label * margin]]), np.array([[label]])
    actual = value_and_gradient(gf.losses.exponential.log_values, outputs, targets)
    assert_close(actual[0], [-margin])
    assert_close(actual[1], [[-label]])


@pytest.mark.parametrize("margin", MARGINS)
def test_cross_entropy_at_any_margin(margin):
    # Others at 0.3 and -0.2, and the class that far above their log-sum-exp.
    others = np.array([0.3, -0.2])
    above = np.log(np.sum(np.exp(others)))
    outputs = np.array([[others[0], above + margin, others[1]]])
    targets = np.array([[0.0, 1.0, 0.0]])
    softmax = np.exp(others) / np.sum(np.exp(others))
    direction = np.array([[softmax[0], -1.0, softmax[1]]])
    value, slope = softplus(-(outputs[0, 1] - above))
    # The margin is a difference of outputs: its rounding is relative to them.
    rtol = 1e-12 + 1e-16 * abs(margin)
    actual = value_and_gradient(gf.losses.cross_entropy.values, outputs, targets)
    assert_close(actual[0], [value], rtol)
    assert_close(actual[1], slope * direction, rtol)
    actual = value_and_gradient(gf.losses.cross_entropy.log_values, outputs, targets)
    assert_close(actual[0], [np.log(value)], rtol, atol=1e-15)
    assert_close(actual[1], slope / value * direction)


def test_cross_entropy_of_many_nets_at_once_in_float32():
    # As records of a trajectory on digits are measured; XLA's fusion got this wrong.
    rng = np.random.default_rng(0)
    targets = np.eye(10)[rng.integers(0, 10, 1797)].astype(np.float32)
    outputs = rng.normal(size=(32, 1797, 10), scale=10).astype(np.float32)
    expected = scipy.special.logsumexp(outputs, axis=-1) - np.sum(targets * outputs, -1)
    rest = np.where(targets == 0, outputs, -np.inf).max(-1)
    margins = np.sum(targets * outputs, -1) - rest

    def of_all(method):
        return jax.jit(jax.vmap(lambda o: method(o, jnp.asarray(targets))))(outputs)

    loss = gf.losses.cross_entropy
    np.testing.assert_allclose(of_all(loss.values), expected, atol=2e-5)
    np.testing.assert_allclose(of_all(loss.margins), margins, atol=2e-5)


@pytest.mark.parametrize("common", [1e4, -1e4])
def test_cross_entropy_ignores_a_common_shift(common):
    targets = jnp.asarray(ONE_HOT)
    shifted = value_and_gradient(gf.losses.cross_entropy.log_values, OUTPUTS, targets)
    actual = value_and_gradient(
        gf.losses.cross_entropy.log_values, OUTPUTS + common, targets
    )
    # Adding 1e4 rounds the outputs to 1e-12.
    assert_close(actual[0], shifted[0], 1e-11, atol=1e-11)
    assert_close(actual[1], shifted[1], 1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["logistic", "exponential"])
def test_several_outputs_far_apart(name):
    margins = np.array([[1e4, 900.0, 890.0]])
    value = {
        "exponential": np.exp(-np.longdouble(margins)),
        "logistic": np.log1p(np.exp(-np.longdouble(margins))),
    }[name]
    weights = np.exp(-np.longdouble(margins)) / np.sum(np.exp(-np.longdouble(margins)))
    signs = np.array([[1.0, -1.0, 1.0]])
    actual = value_and_gradient(loss_of(name).log_values, signs * margins, signs)
    assert_close(actual[0], np.log(np.sum(value, axis=1)))
    assert_close(actual[1], -signs * weights)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("margin", [1e4, -1e4, 88.0, -90.0])
def test_far_margins_in_float32(name, margin):
    outputs = jnp.array([[margin, 0.0]], jnp.float32)
    targets = jnp.array([[1.0, 0.0]], jnp.float32)
    if name != "cross_entropy":
        outputs, targets = outputs[:, :1], targets[:, :1]
    values, gradients = value_and_gradient(loss_of(name).log_values, outputs, targets)
    assert values.dtype == gradients.dtype == jnp.float32
    value, slope = softplus(-margin)
    log_value, relative = np.log(value), slope / value
    if name == "exponential":
        log_value, relative = -margin, 1.0
    assert_close(values, [log_value], 1e-6)
    assert_close(gradients[:, 0], [-relative], 1e-6)


@pytest.mark.parametrize(
    "u",
    [
        *np.linspace(-32, -28, 9),
        np.nextafter(-30, -31),
        np.nextafter(-30, 0),
        *[-1e4, -800.0, -100.0, -20.0, -1.0, 0.0, 0.5, 2.0, 30.0, 800.0, 1e4],
    ],
    ids="{:.17g}".format,
)
def test_log_softplus_and_its_derivative(u):
    value, slope = softplus(u)
    assert_close(log_softplus(jnp.asarray(u)), np.log(value), 1e-15, atol=2e-16)
    # Rounding of u is 4e-15 there; without its last term the slope is 5e-14 off at -30.
    assert_close(jax.grad(log_softplus)(u), slope / value, 1e-14)


def test_log_softplus_is_continuous_across_its_switch():
    below, above = np.nextafter(-30, -31), -30.0
    step = above - below
    assert 0 <= log_softplus(jnp.asarray(above)) - log_softplus(jnp.asarray(below))
    assert log_softplus(jnp.asarray(above)) - log_softplus(jnp.asarray(below)) <= 2 * step
    slopes = jax.grad(log_softplus)(above), jax.grad(log_softplus)(below)
    np.testing.assert_allclose(*slopes, rtol=1e-14)


# --- The squared loss -----------------------------------------------------------------


def test_log_squared_of_a_fitted_sample():
    outputs, targets = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [3, 2]])
    values, gradients = value_and_gradient(gf.losses.squared.log_values, outputs, targets)
    np.testing.assert_array_equal(values, [-np.inf, np.log(2.0)])
    np.testing.assert_array_equal(gradients, [[0.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize("residual", [1e-200, 1e200])
def test_log_squared_where_the_square_leaves_the_range(residual):
    outputs, targets = np.array([[residual, residual]]), np.zeros((1, 2))
    values, gradients = value_and_gradient(gf.losses.squared.log_values, outputs, targets)
    assert_close(values, [2 * np.log(residual)])
    assert_close(gradients, 1 / outputs)


@pytest.mark.parametrize("name", ["squared", "linear"])
def test_a_regression_has_no_margin(name):
    message = f"the {name} loss has no margin; use logistic, exponential or cross_entropy"
    with pytest.raises(ValueError, match=message):
        loss_of(name).margins(jnp.ones((2, 1)), jnp.ones((2, 1)))


def test_the_linear_loss_has_no_logarithm():
    with pytest.raises(ValueError, match="the linear loss has no logarithm, it takes neg"):
        gf.losses.linear.log_values(jnp.ones((2, 1)), jnp.ones((2, 1)))


# --- Targets --------------------------------------------------------------------------


@pytest.mark.parametrize("name", reference.LOSSES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_targets_keep_values_and_dtype(name, dtype):
    y = jnp.asarray(TARGETS[name], dtype)
    read = loss_of(name).targets(y)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, y)


@pytest.mark.parametrize("name", ["squared", "linear", "exponential", "logistic"])
def test_one_output_may_come_without_a_column(name):
    y = jnp.array([1.0, -1.0, 1.0])
    np.testing.assert_array_equal(loss_of(name).targets(y), y[:, None])


def test_class_labels_are_one_hot_rows():
    labels = jnp.array([0, 2, 1, 1, 0, 2])
    np.testing.assert_array_equal(gf.losses.cross_entropy.targets(labels), ONE_HOT)


@pytest.mark.parametrize("name", ["exponential", "logistic"])
@pytest.mark.parametrize(
    "y, message",
    [
        (
            [[1.0], [0.0]],
            "y[1, 0] = 0.0: labels must be +1 or -1 for this loss; for labels",
        ),
        ([0, 1, 1], "y[0, 0] = 0: labels must be +1 or -1"),
        ([[1.0, -1.0], [1.0, 0.5]], "y[1, 1] = 0.5: labels must be +1 or -1"),
    ],
    ids=["floats", "integers", "second-output"],
)
def test_labels_that_are_no_signs(name, y, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        loss_of(name).targets(jnp.asarray(y))


@pytest.mark.parametrize(
    "y, sample",
    [
        ([[0.0, 1.0], [1.0, 1.0]], 1),
        ([[0.0, 0.0], [1.0, 0.0]], 0),
        ([[1.0, 0.0], [0.5, 0.5]], 1),
        ([[1.0, 0.0], [2.0, -1.0]], 1),
        ([0.0, 1.0], 0),
    ],
    ids=["two", "none", "soft", "sums-to-one", "float-labels"],
)
def test_rows_that_are_not_one_hot(y, sample):
    message = f"y holds no one-hot row at sample {sample}: .*needs one-hot rows or integer"
    with pytest.raises(ValueError, match=message):
        gf.losses.cross_entropy.targets(jnp.asarray(y))


def test_negative_class_labels():
    message = r"labels must lie in 0..2, and 1 do not, the first at sample 1 \(-1\)"
    with pytest.raises(ValueError, match=message):
        gf.losses.cross_entropy.targets(jnp.array([2, -1, 0]))


@pytest.mark.parametrize("name", ["exponential", "logistic"])
def test_labels_are_not_folded_into_inputs(name):
    # f(x) = relu(x) at x = 1 with label -1: the margin is -1, where f(yx) = f(-1) = 0.
    net = gf.nets.MLP.from_weights([np.ones((1, 1)), np.ones((1, 1))])
    problem = gf.Problem(gf.Dataset([[1.0]], [[-1.0]]), loss_of(name))
    expected = {"exponential": np.e, "logistic": np.log(1 + np.e)}[name]
    assert_close(problem.risk(net), expected, 1e-15)
    assert gf.diagnostics.margin(problem, net) == -1.0
