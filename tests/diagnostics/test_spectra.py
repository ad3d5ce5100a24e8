"""Sharpness, spectra and layers on data, against NumPy; escape speeds in closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from diagnostics_cases import TARGETS, X, build, scaled
from fixtures import assert_close, example_one
from jax.flatten_util import ravel_pytree

import gfdyn as gf
from gfdyn import diagnostics


# --- Sharpness -------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize(
    "widths, size", [([4, 2, 3], 14), ([4, 5, 3, 3], 44)], ids=["14", "44"]
)
def test_sharpness_is_the_largest_eigenvalue(loss, widths, size):
    """With fewer parameters than the 40 iterations, and with more."""
    weights, y = reference.random_weights(widths, seed=17), TARGETS[loss]
    slopes = [0.0] * (len(weights) - 1)
    assert sum(w.size for w in weights) == size
    # No gate flips within the reference's step.
    assert min(np.abs(z).min() for z in reference.forward(weights, slopes, X)[1]) > 1e-3
    problem = gf.Problem(gf.Dataset(X, y), getattr(gf.losses, loss))
    net = gf.nets.MLP.from_weights(weights)
    hessian = reference.risk_hessian(loss, weights, slopes, X, y)
    actual = jax.jit(diagnostics.sharpness)(problem, net)
    np.testing.assert_allclose(actual, np.linalg.eigvalsh(hessian)[-1], rtol=1e-8)


def test_hessian_eigenvalues_against_dense_ones():
    problem, net, *_ = build("relu")
    flat, unravel = ravel_pytree(net)
    step, rows = 1e-5, []
    gradient = jax.grad(lambda theta: problem.risk(unravel(theta)))
    for unit in step * np.eye(flat.size):
        rows.append((gradient(flat + unit) - gradient(flat - unit)) / (2 * step))
    expected = np.linalg.eigvalsh((np.asarray(rows) + np.asarray(rows).T) / 2)[::-1]
    found = diagnostics.hessian_eigenvalues(problem, net, 4, iterations=flat.size)
    np.testing.assert_allclose(found, expected[:4], rtol=1e-6, atol=1e-8)
    largest = diagnostics.sharpness(problem, net, iterations=flat.size)
    np.testing.assert_allclose(found[0], largest, rtol=1e-12)
    with pytest.raises(ValueError, match="count=41 must lie between 1 and 40"):
        diagnostics.hessian_eigenvalues(problem, net, 41)


def test_sharpness_of_a_quadratic():
    # No hidden layer: the Hessian is XᵀX/N once an output, so few distinct eigenvalues.
    problem, net, *_ = build("no-hidden")
    expected = np.linalg.eigvalsh(X.T @ X / len(X))[-1]
    for iterations in (4, 12, 40):
        actual = diagnostics.sharpness(problem, net, iterations=iterations)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_sharpness_in_float32():
    problem, net, *_ = build("relu")
    single = diagnostics.sharpness(*build("relu", dtype=np.float32)[:2])
    assert single.dtype == jnp.float32
    expected = diagnostics.sharpness(problem, net)
    np.testing.assert_allclose(single, expected, rtol=1e-5)


@pytest.mark.parametrize("factor", [1e20, 1e-8, 1e-20, 1e-80])
def test_sharpness_of_small_nets(factor):
    """The Hessian of the linear loss is homogeneous of degree L - 2 = 1."""
    problem, net, *_ = build("relu", "linear")
    expected = factor * diagnostics.sharpness(problem, net)
    actual = diagnostics.sharpness(problem, scaled(net, factor))
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize("iterations", [0, -3])
def test_sharpness_takes_a_product_at_least(iterations):
    problem, net, *_ = build()
    message = f"iterations={iterations} must be 1 or more products with the Hessian"
    with pytest.raises(ValueError, match=message):
        diagnostics.sharpness(problem, net, iterations)


# --- Spectra ---------------------------------------------------------------------------


def with_spectrum(*spectra, side=6):
    """A net of square matrices with these singular values, and a problem for it."""
    rng = np.random.default_rng(1)
    weights = []
    for spectrum in spectra:
        u, v = (np.linalg.qr(rng.normal(size=(side, side)))[0] for _ in range(2))
        s = np.zeros(side)
        s[: len(spectrum)] = spectrum
        weights.append(u @ np.diag(s) @ v)
    problem = gf.Problem(gf.Dataset(np.eye(side), np.eye(side)), gf.losses.squared)
    return problem, gf.nets.MLP.from_weights(weights)


def test_singular_values_pad_and_cut():
    problem, net, weights, _ = build()
    for k in (2, 3, 5, 20):
        expected = [reference.singular_values(w, k) for w in weights]
        actual = diagnostics.singular_values(problem, net, k=k)
        assert_close(actual, np.array(expected))
        if k == 20:
            smaller = [min(w.shape) for w in weights]
            assert np.count_nonzero(actual, axis=1).tolist() == smaller


def test_a_number_of_singular_values_is_not_negative():
    problem, net, *_ = build()
    assert diagnostics.singular_values(problem, net, 0).shape == (len(net.weights), 0)
    with pytest.raises(ValueError, match="k=-1 must be 0 or more: how many singular"):
        diagnostics.singular_values(problem, net, -1)


def test_ranks_of_known_spectra():
    problem, net = with_spectrum([2.0] * 6, [3.0], [2.0, 1.0], [1e-9] * 3)
    np.testing.assert_allclose(
        diagnostics.stable_rank(problem, net), [6, 1, 1.25, 3], rtol=1e-13
    )
    p = np.array([2, 1]) / 3
    entropy = np.exp(-np.sum(p * np.log(p)))
    np.testing.assert_allclose(
        diagnostics.effective_rank(problem, net), [6, 1, entropy, 3], rtol=1e-12
    )
    np.testing.assert_allclose(
        diagnostics.tail(problem, net), [5 / 6, 0, 0.2, 2 / 3], rtol=1e-13, atol=1e-30
    )


def test_the_tail_keeps_its_digits_near_rank_one():
    problem, net = with_spectrum([1.0], [1.0, 1e-8], [1.0, 1e-10, 1e-10])
    tail = diagnostics.tail(problem, net)
    assert tail[0] <= 1e-30
    # Singular values are known to 1e-16 of the largest.
    np.testing.assert_allclose(tail[1:], [1e-16, 2e-20], rtol=1e-5)
    outer = gf.nets.MLP.from_weights([np.outer([1.0, 2.0, 3.0], [0.3, -0.7, 1.1, 0.9])])
    assert diagnostics.tail(problem, outer)[0] <= 1e-30


@pytest.mark.parametrize(
    "normalisation, expected", [("none", 5), ("spectral", 4), ("frobenius", 1)]
)
def test_numerical_rank(normalisation, expected):
    # Over the spectral norm 1, 0.3, 0.1; over the Frobenius norm 0.88, 0.27, 0.09.
    problem, net = with_spectrum([10.0, 3.0, 3.0, 3.0, 1.0])
    rank = functools.partial(
        diagnostics.numerical_rank, threshold=0.28, normalisation=normalisation
    )
    assert jax.jit(rank)(problem, net).tolist() == [expected]


def test_numerical_rank_counts_from_one_thousandth_of_the_largest():
    problem, net = with_spectrum([7.0, 7.1e-3, 6.9e-3])
    assert diagnostics.numerical_rank(problem, net).tolist() == [2]


THRESHOLDS = ["numerical_rank", "layer_ranks", "average_rank", "kink_count"]


@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("threshold", [-1e-3, np.nan])
def test_thresholds_are_not_negative(name, threshold):
    problem, net, *_ = build()
    with pytest.raises(ValueError, match=f"threshold={threshold} must be 0 or more, such"):
        getattr(diagnostics, name)(problem, net, threshold)


def test_the_norm_of_zero_is_not_negative():
    problem, net, *_ = build()
    with pytest.raises(ValueError, match=r"zero_norm=-0\.1 must be 0 or more"):
        diagnostics.layer_ranks(problem, net, zero_norm=-0.1)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("name", THRESHOLDS)
def test_thresholds_may_be_traced_or_infinite(name):
    problem, net, *_ = build()
    measure = functools.partial(getattr(diagnostics, name), problem, net)
    for threshold in (0.0, 1e-2, np.inf):
        traced = jax.jit(measure)(threshold)
        np.testing.assert_array_equal(traced, measure(threshold))


# --- Layers on data --------------------------------------------------------------------


def test_nonlinearity_of_lines():
    # z = x or -x on x = 1, 2, -1: a ReLU cuts 1 of 6 or 5 of 6, a leaky one 0.9² of it.
    data = gf.Dataset([[1.0], [2.0], [-1.0]], np.ones((3, 1)))
    problem = gf.Problem(data, gf.losses.squared)
    one = np.ones((1, 1))
    for activation, first, second in (
        ("relu", 1 / 6, 0.0),
        ("leaky_relu(0.1)", 0.81 / 6, 0.81 * 0.01 / 5.01),
        ("identity", 0.0, 0.0),
    ):
        net = gf.nets.MLP.from_weights([one, one, one], activation)
        actual = diagnostics.nonlinearity(problem, net)
        np.testing.assert_allclose(actual, [first, second], rtol=1e-14)
    flipped = gf.nets.MLP.from_weights([-one, one])
    np.testing.assert_allclose(diagnostics.nonlinearity(problem, flipped), [5 / 6], 1e-14)


def test_kinks():
    x = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [2.0, 1.0]])
    # Neuron 0 is at its kink on sample 0, neuron 2 on sample 1. Neither sample 2, without
    # input, nor neuron 3, without weights, counts.
    first = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0], [0.0, 0.0]])
    # On activations (0, 1, 0, 0), (1, 1, 0, 0), 0, (2, 1, 1, 0): neuron 0 is at its kink on
    # sample 1, neuron 1 on sample 0.
    second = np.array([[1.0, -1.0, 0.0, 0.0], [1.0, 0.0, 5.0, 0.0]])
    problem = gf.Problem(gf.Dataset(x, np.ones((4, 1))), gf.losses.squared)

    def count(activation):
        net = gf.nets.MLP.from_weights([first, second, np.ones((1, 2))], activation)
        return jax.jit(diagnostics.kink_count)(problem, net).tolist()

    assert count("relu") == [2, 2]
    assert count(["identity", "relu"])[0] == 0
    assert count("identity") == [0, 0]
    assert reference.kink_count([first, second, second], [0.0, 0.0], x).tolist() == [2, 2]


def test_the_threshold_of_a_kink_is_an_angle():
    problem = gf.Problem(gf.Dataset([[3.0, 3e-7]], [[1.0]]), gf.losses.squared)
    net = gf.nets.MLP.from_weights([np.array([[0.0, 5.0]]), np.ones((1, 1))])
    for threshold, expected in ((1.1e-7, 1), (0.9e-7, 0)):
        assert diagnostics.kink_count(problem, net, threshold).tolist() == [expected]


def test_alignment_of_rank_one_layers():
    rng = np.random.default_rng(2)
    v = [a / np.linalg.norm(a) for a in (rng.normal(size=n) for n in (4, 5, 6, 3))]
    aligned = [s * np.outer(v[i + 1], v[i]) for i, s in enumerate((2.0, -0.1, 1e-30))]
    problem, *_ = build()
    actual = diagnostics.alignment(problem, gf.nets.MLP.from_weights(aligned))
    np.testing.assert_allclose(actual, [1, 1], rtol=1e-14)
    across = np.eye(5)[0] - v[1] * v[1][0]
    turned = [aligned[0], np.outer(v[2], across), aligned[2]]
    actual = diagnostics.alignment(problem, gf.nets.MLP.from_weights(turned))
    np.testing.assert_allclose(actual, [0, 1], rtol=1e-14, atol=1e-14)


# --- Escape: Bantzis, Simon & Jacot, example 1 -----------------------------------------


@pytest.mark.parametrize("factor", [1.0, 1e-40])
def test_speed_of_the_rank_two_direction(factor):
    weights = [
        np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]]) / 2,
        np.array([[1.0, -1, 1, -1]]) / 2,
        np.array([[-1.0]]),
    ]
    net = gf.nets.MLP.from_weights([factor * w for w in weights])
    speed = jax.jit(diagnostics.escape_speed)(example_one(), net)
    np.testing.assert_allclose(speed, 0.5, rtol=1e-15)
    ranks = diagnostics.stable_rank(example_one(), net)
    np.testing.assert_allclose(ranks, [2, 1, 1], 1e-14)


@pytest.mark.parametrize("phi", [0.0, 0.1, 0.5, np.pi / 4, 2.0, -1.3], ids="{:.2f}".format)
def test_speed_of_rank_one_directions(phi):
    xi = phi % (np.pi / 4)
    terms = np.cos(xi + np.pi / 4) - np.cos(xi) + np.cos(xi - np.pi / 4)
    expected = abs(terms - np.cos(xi - np.pi / 2))
    first = np.array([[np.cos(phi), np.sin(phi)]])
    speeds = [
        diagnostics.escape_speed(
            example_one(),
            gf.nets.MLP.from_weights([first, np.ones((1, 1)), last * np.ones((1, 1))]),
        )
        for last in (1.0, -1.0)
    ]
    np.testing.assert_allclose(np.abs(speeds), expected, rtol=1e-12)
    assert speeds[0] == -speeds[1]
