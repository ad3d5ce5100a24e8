"""Networks against naive NumPy."""

import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import reference
from fixtures import assert_close
from net_cases import mlp

import gfdyn as gf


# widths, activation, slopes
NETS = {
    "relu": ([3, 5, 4, 2], "relu", [0.0, 0.0]),
    "leaky": ([3, 5, 4, 2], "leaky_relu(0.1)", [0.1, 0.1]),
    "identity": ([3, 5, 4, 2], "identity", [1.0, 1.0]),
    "mixed": (
        [3, 5, 4, 6, 2],
        ["relu", "identity", gf.nets.leaky_relu(0.1)],
        [0.0, 1.0, 0.1],
    ),
    "one-hidden": ([3, 5, 2], "relu", [0.0]),
    "no-hidden": ([3, 2], "relu", []),
    "width-one": ([1, 1, 1], "relu", [0.0]),
}
nets = pytest.mark.parametrize("name", NETS)


def build(name):
    widths, activation, slopes = NETS[name]
    weights = reference.random_weights(widths)
    x = np.random.default_rng(1).normal(size=(7, widths[0]))
    return gf.nets.MLP.from_weights(weights, activation), weights, slopes, x


# --- Forward and backward --------------------------------------------------------------


@nets
def test_outputs_and_preactivations(name):
    net, weights, slopes, x = build(name)
    outputs, preactivations = reference.forward(weights, slopes, x)
    assert_close(net(jnp.asarray(x)), outputs)
    assert_close(net.preactivations(jnp.asarray(x)), preactivations)


@nets
def test_as_layers(name):
    """The same arrays, and with them the same outputs."""
    net, weights, slopes, x = build(name)
    layered = gf.nets.as_layered(net)
    assert isinstance(layered, gf.nets.LayeredNet)
    pairs = zip(jax.tree.leaves(layered), net.weights, strict=True)
    assert all(ours is theirs for ours, theirs in pairs)
    outputs, preactivations = reference.forward(weights, slopes, x)
    assert_close(layered(jnp.asarray(x)), outputs)
    assert_close(layered.preactivations(jnp.asarray(x)), preactivations)
    np.testing.assert_array_equal(layered(jnp.asarray(x)), net(jnp.asarray(x)))
    assert gf.nets.as_layered(layered) is layered


def test_as_layers_of_another_kind():
    dag = gf.nets.as_dag(mlp([2, 3, 1]))
    message = "net must be a gf.nets.MLP or LayeredNet, got Dag; build it with"
    with pytest.raises(TypeError, match=message):
        gf.nets.as_layered(dag)


@nets
def test_gradient_live_and_frozen(name):
    net, weights, slopes, x = build(name)
    cotangents = np.random.default_rng(2).normal(size=(7, weights[-1].shape[0]))
    gates = net.frozen_gates(jnp.asarray(x))
    expected = reference.backprop(weights, slopes, x, cotangents)

    live = jax.grad(lambda n: jnp.sum(cotangents * n(jnp.asarray(x))))
    frozen = jax.grad(lambda n: jnp.sum(cotangents * n.forward(jnp.asarray(x), gates)[0]))
    assert_close(live(net), expected)
    assert_close(frozen(net), expected)


@nets
def test_frozen_gates_reproduce_the_net_and_do_not_move(name):
    net, weights, slopes, x = build(name)
    x = jnp.asarray(x)
    gates = net.frozen_gates(x)
    for gate, z in zip(gates, net.preactivations(x), strict=True):
        assert gate.value.shape == z.shape
    assert_close(net.forward(x, gates)[0], net(x), rtol=1e-15)
    # Odd in x with the gates frozen, where a live ReLU net is not.
    assert_close(net.forward(-x, gates)[0], -net(x), rtol=1e-15)
    linear = all(slope == 1 for slope in slopes)
    assert bool(jnp.allclose(net(-x), -net(x))) == linear


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
def test_derivative_at_a_kink_is_the_slope(slope):
    sigma = gf.nets.PiecewiseLinear(slope)
    assert jax.grad(sigma)(0.0) == slope
    assert sigma(jnp.zeros(())) == 0.0
    assert jax.grad(sigma)(1e-300) == 1.0
    assert jax.grad(sigma)(-1e-300) == slope


def test_gradient_of_a_net_on_its_kinks():
    weights = [np.array([[1.0, -1.0], [1.0, 1.0]]), np.array([[2.0, 3.0]])]
    x, cotangents = np.array([[1.0, 1.0], [1.0, -1.0]]), np.ones((2, 1))
    net = gf.nets.MLP.from_weights(weights)
    gradient = jax.grad(lambda n: jnp.sum(n(jnp.asarray(x))))(net)
    # Each neuron sees one sample at z = 0, which must not contribute.
    np.testing.assert_array_equal(gradient.weights[0], [[2.0, -2.0], [3.0, 3.0]])
    np.testing.assert_array_equal(gradient.weights[1], [[2.0, 2.0]])
    assert_close(gradient, reference.backprop(weights, [0.0], x, cotangents), rtol=0)


@nets
@pytest.mark.parametrize("factor, rtol", [(0.5, 0.0), (2.0**-80, 0.0), (3.7, 1e-13)])
def test_positively_homogeneous_of_its_degree(name, factor, rtol):
    net, _, slopes, x = build(name)
    assert net.degree == len(slopes) + 1
    scaled = jax.tree.map(lambda w: factor * w, net)
    assert_close(scaled(jnp.asarray(x)), factor**net.degree * net(jnp.asarray(x)), rtol)


@nets
def test_invariants(name):
    net, weights, slopes, _ = build(name)
    expected = [
        after.T @ after - before @ before.T
        if slope == 1
        else reference.neuron_balance(before, after)
        for slope, (before, after) in zip(slopes, reference.pairs(weights), strict=True)
    ]
    assert_close(net.invariants(), expected)


def test_maps_and_compiles():
    key, x = jr.key(0), jnp.ones((2, 3))

    @jax.jit
    def outputs(scale):
        return gf.nets.MLP([3, 4, 2], key=key, scale=scale)(x)

    scales = jnp.array([0.5, 1.0, 2.0])
    expected = np.asarray(scales)[:, None, None] ** 2 * np.asarray(outputs(1.0))
    np.testing.assert_allclose(jax.vmap(outputs)(scales), expected, rtol=1e-14)


# --- Structure -------------------------------------------------------------------------


def test_structure():
    net = gf.nets.MLP([4, 3, 2, 5], key=jr.key(0))
    assert [w.shape for w in net.weights] == [(3, 4), (2, 3), (5, 2)]
    assert (net.in_size, net.out_size, net.degree) == (4, 5, 3)
    assert net.parameter_names == ("W1", "W2", "W3")
    for leaf, weight in zip(jax.tree.leaves(net), net.weights, strict=True):
        np.testing.assert_array_equal(leaf, weight)


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray], ids=["np", "jnp"])
def test_from_weights_keeps_the_weights(convert):
    weights = reference.random_weights([3, 4, 2])
    net = gf.nets.MLP.from_weights([convert(w) for w in weights])
    for kept, given in zip(net.weights, weights, strict=True):
        assert isinstance(kept, jax.Array) and kept.dtype == jnp.float64
        np.testing.assert_array_equal(kept, given)
    assert [sigma.name for sigma in net.activations] == ["relu"]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_from_weights_keeps_the_dtype(dtype):
    net = gf.nets.MLP.from_weights([np.ones((2, 3), dtype), np.ones((1, 2), dtype)])
    assert all(w.dtype == dtype for w in net.weights)
    assert net(jnp.ones((4, 3), dtype)).dtype == dtype


@pytest.mark.parametrize(
    "spec, slope, name",
    [
        ("relu", 0.0, "relu"),
        ("identity", 1.0, "identity"),
        ("linear", 1.0, "identity"),
        ("leaky_relu(0.1)", 0.1, "leaky_relu(0.1)"),
        ("leaky_relu(-1)", -1.0, "leaky_relu(-1.0)"),
        (gf.nets.leaky_relu(0.0), 0.0, "relu"),
        (gf.nets.identity(), 1.0, "identity"),
    ],
)
def test_activation_specifications(spec, slope, name):
    (sigma,) = gf.nets.MLP([2, 3, 1], key=jr.key(0), activation=spec).activations
    assert (sigma.slope, sigma.name) == (slope, name)
    assert sigma.is_linear == (slope == 1)


# --- Norms -----------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-300, 1e-80, 1.0, 1e80, 1e300])
def test_norm(factor):
    weights = reference.random_weights([3, 4, 2])
    net = gf.nets.MLP.from_weights([factor * w for w in weights])
    expected = factor * np.sqrt(sum(np.sum(w**2) for w in weights))
    np.testing.assert_allclose(gf.nets.norm(net), expected, rtol=1e-14)


def test_norm_of_zero_and_its_gradient_elsewhere():
    net = gf.nets.MLP.from_weights([np.zeros((2, 3)), np.zeros((1, 2))])
    assert gf.nets.norm(net) == 0
    weights = [np.array([[2.0, -2.0], [1.0, 0.0]]), np.array([[0.0, 4.0]])]
    gradient = jax.grad(gf.nets.norm)(gf.nets.MLP.from_weights(weights))
    assert_close(gradient, [w / 5 for w in weights], rtol=1e-15)


@pytest.mark.parametrize("value", [1e-80, 1.0, 1e80])
@pytest.mark.parametrize("start", [1e-80, 1.0, 1e80])
def test_scaled_to_norm(start, value):
    weights = reference.random_weights([3, 4, 2])
    net = gf.nets.MLP.from_weights([start * w for w in weights])
    scaled = gf.nets.scaled_to_norm(net, value)
    np.testing.assert_allclose(gf.nets.norm(scaled), value, rtol=1e-14)
    length = np.sqrt(sum(np.sum(w**2) for w in weights))
    assert_close(scaled, [w / length * value for w in weights], rtol=1e-14)


@pytest.mark.parametrize(
    "value",
    [2.0, np.float64(2.0), jnp.array(2.0, jnp.float32), jnp.array(2.0, jnp.bfloat16)],
    ids=["python", "float64", "float32", "bfloat16"],
)
def test_scaled_to_norm_keeps_the_dtype(value):
    net = mlp([3, 4, 2], dtype=jnp.float32)
    scaled = gf.nets.scaled_to_norm(net, value)
    assert all(w.dtype == jnp.float32 for w in scaled.weights)
    np.testing.assert_allclose(gf.nets.norm(scaled), 2.0, rtol=1e-6)


# --- Errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [[], [3], [3, 0, 1], [3, -2, 1]], ids=str)
def test_widths_that_are_no_network(widths):
    message = re.escape(f"widths={widths} does not describe a network; give at least")
    with pytest.raises(ValueError, match=message):
        mlp(widths)


@pytest.mark.parametrize("name", ["tanh", "ReLU", "leaky_relu", "leaky_relu(a)", ""])
def test_unknown_activation(name):
    message = re.escape(f"activation={name!r} is unknown; use 'relu', 'identity'")
    with pytest.raises(ValueError, match=message):
        mlp([2, 3, 1], activation=name)


@pytest.mark.parametrize("names", [["relu"], ["relu"] * 3, []], ids=len)
def test_wrong_number_of_activations(names):
    message = f"activation lists {len(names)} entries for 2 hidden layers; give one"
    with pytest.raises(ValueError, match=message):
        mlp([2, 3, 3, 1], activation=names)
    with pytest.raises(ValueError, match=message):
        gf.nets.MLP.from_weights([np.eye(2)] * 3, activation=names)


@pytest.mark.parametrize("slope", [np.inf, np.nan])
def test_slope_that_is_not_finite(slope):
    with pytest.raises(ValueError, match="slope must be a finite number, got"):
        gf.nets.leaky_relu(slope)


@pytest.mark.parametrize(
    "weights, message",
    [
        ([], "weights is empty; give at least one matrix"),
        (
            [np.ones((4, 3)), np.ones((1, 5))],
            "weights[1] has shape (1, 5) but weights[0] has 4 rows; W_l must be",
        ),
        (
            [np.ones((4, 3)), np.ones((4, 4)), np.ones((3, 1))],
            "weights[2] has shape (3, 1) but weights[1] has 4 rows",
        ),
        (
            [np.ones((4, 3), np.float32), np.ones((1, 4))],
            "weights[1] is float64 but weights[0] is float32; cast them to one dtype",
        ),
        (
            [np.eye(2, dtype=np.int64), np.ones((1, 2))],
            "weights[0] has shape (2, 2) and dtype int64; each must be a floating",
        ),
        (
            [np.ones((4, 3)), np.ones(4)],
            "weights[1] has shape (4,) and dtype float64; each must be a floating",
        ),
    ],
    ids=["empty", "chain", "chain-transposed", "dtypes", "integers", "vector"],
)
def test_weights_that_are_no_network(weights, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gf.nets.MLP.from_weights(weights)


@pytest.mark.parametrize("widths", [[2, 3, 1], [2, 4, 5, 1], [2, 1]], ids=str)
def test_zero_output_needs_pairs(widths):
    message = re.escape(f"widths={widths}: zero_output pairs the neurons")
    with pytest.raises(ValueError, match=message):
        mlp(widths, gf.nets.zero_output())


@pytest.mark.parametrize("ratio", [0.5, -1.0, np.nan, np.inf])
def test_ratio_that_is_none(ratio):
    with pytest.raises(ValueError, match=f"ratio={ratio} must be at least 1 and finite"):
        gf.nets.dominated(1.0, ratio)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_norm_that_is_none(value):
    net = mlp([2, 3, 1])
    with pytest.raises(ValueError, match=f"value={value} must be a norm, finite and 0 or"):
        gf.nets.scaled_to_norm(net, value)
    assert gf.nets.norm(gf.nets.scaled_to_norm(net, 0.0)) == 0


def test_gradient_norms_against_the_jacobian():
    """Exact in the first two hidden layers, where gradients of different units of the layer
    below are orthogonal; within a small factor in the third."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(5, 3)))
    net = gf.nets.MLP([3, 6, 6, 6, 2], key=jax.random.key(0), scale=0.5)
    values = tuple(gate.value for gate in net.frozen_gates(x))
    rows = jax.jacrev(lambda n: n.preactivations(x))(net)
    for layer, norms in enumerate(net.gradient_norms(x, values)):
        squares = sum(np.sum(np.asarray(w) ** 2, axis=(2, 3)) for w in rows[layer].weights)
        exact = np.sqrt(squares)
        np.testing.assert_array_equal(np.asarray(norms) == 0, exact == 0)
        if layer < 2:
            np.testing.assert_allclose(norms, exact, rtol=1e-12)
        else:
            ratio = np.asarray(norms)[exact > 0] / exact[exact > 0]
            assert np.all((ratio > 0.3) & (ratio < 3)), (ratio.min(), ratio.max())
