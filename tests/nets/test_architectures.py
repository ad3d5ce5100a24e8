"""Networks of layers and of single neurons, against NumPy and against each other."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from architecture_cases import LEAKY, build, flat, nets

import gfdyn as gf
from gfdyn.nets import (
    conv,
    dense,
    resnet_identity,
    sequential,
)


def relu(z):
    return np.maximum(z, 0)


def leaky(z):
    return np.where(z > 0, z, 0.1 * z)


def slow_conv(x, kernel, strides, padding):
    """(N, *grid, in) and (*window, in, out) in two dimensions, entry by entry."""
    x = np.pad(x, [(0, 0), *padding, (0, 0)])
    window = kernel.shape[:2]
    rows, columns = (
        (n - w) // s + 1 for n, w, s in zip(x.shape[1:3], window, strides, strict=True)
    )
    z = np.zeros((len(x), rows, columns, kernel.shape[3]))
    for i in range(rows):
        for j in range(columns):
            a, b = i * strides[0], j * strides[1]
            patch = x[:, a : a + window[0], b : b + window[1]]
            z[:, i, j] = np.einsum("nhwc,hwco->no", patch, kernel)
    return z


# --- Forward, by hand ------------------------------------------------------------------


def by_hand(name, net, x) -> np.ndarray:
    w = [np.asarray(leaf) for leaf in jax.tree.leaves(net)]
    n = len(x)
    match name:
        case "dense":
            return leaky(relu(x @ w[0].T) @ w[1].T) @ w[2].T
        case "biased":
            first = relu(x @ w[0].T + w[1])
            return leaky(first @ w[2].T + w[3]) @ w[4].T + w[5]
        case "conv":
            image, first, second = x.reshape(n, 1, 5, 2), w[0][None], w[1][None]
            image = relu(slow_conv(image, first, (1, 2), [(0, 0), (1, 1)]))
            image = relu(slow_conv(image, second, (1, 1), [(0, 0), (0, 1)]))
            return image.reshape(n, -1) @ w[2].T
        case "conv-2d":
            padding = [(1, 1), (0, 1)]
            a = relu(slow_conv(x.reshape(n, 4, 5, 2), w[0], (1, 2), padding) + w[1])
            a = a.reshape(n, -1)
            y, u, z, last = w[2:]
            return relu(relu(a @ y.T) @ u.T + a @ z.T) @ last.T
        case "residual":
            a = relu(x @ w[0].T)
            a = leaky(leaky(a @ w[1].T) @ w[2].T + a)
            a = relu(relu(a @ w[3].T) @ w[4].T + w[5] * a)
            a = relu(relu(a @ w[6].T) @ w[7].T + a @ w[8].T)
            return a @ w[9].T
        case "branches":
            a = x @ w[0].T
            a = a + relu(relu(a @ w[1].T) @ w[2].T)
            a = a + leaky(leaky(a @ w[3].T) @ w[4].T)
            return a @ w[5].T
    a = relu(x @ w[0].T)
    b = relu(a @ w[1].T)
    c = relu(np.hstack([a, b]) @ np.hstack([w[2], w[3]]).T)
    return np.hstack([a, b, c]) @ np.hstack([w[4], w[5], w[6]]).T


@nets
def test_outputs_by_hand(name):
    net, x = build(name)
    expected = by_hand(name, net, np.asarray(x))
    assert np.abs(expected).max() > 0.1
    outputs = jax.jit(lambda net: net(x))(net)
    np.testing.assert_allclose(outputs, expected, rtol=1e-13, atol=1e-13)


def test_outputs_of_a_graph_by_hand():
    """0, 1 → 2 → 4 → 5 with 0 → 3 ⇢ 4 and 1 → 5; 3 ⇢ 4 is a constant −2, 6 is 1."""
    net = gf.nets.Dag(
        [(0, 2), (1, 2), (0, 3), (2, 4), (4, 5), (1, 5), (6, 3)],
        [1.5, -0.5, 2.0, 0.7, 1.1],
        2,
        activation={2: "relu", 3: LEAKY, 4: "relu"},
        parameters=[0, 1, 2, 3, 4, 0, 1],
        constants={(3, 4): -2.0},
        constant=6,
    )
    x = np.random.default_rng(0).normal(size=(9, 2))
    two = relu(1.5 * x[:, 0] - 0.5 * x[:, 1])
    three = leaky(2 * x[:, 0] - 0.5)
    four = relu(0.7 * two - 2 * three)
    expected = 1.1 * four + 1.5 * x[:, 1]
    np.testing.assert_allclose(net(jnp.asarray(x))[:, 0], expected, rtol=1e-14)
    assert net.layers == ((2,), (3,), (4,), (5,)) or net.layers == ((3,), (2,), (4,), (5,))
    assert net.degree is None and (net.in_size, net.out_size) == (2, 1)
    assert [sigma.slope for sigma in net.activations] == [0.0, 0.1, 0.0]


# --- Layers against vertices -----------------------------------------------------------


@nets
def test_graph_of_vertices_is_the_same_network(name):
    net, x = build(name)
    graph = gf.nets.as_dag(net)

    @jax.jit
    def value_and_gradient(net):
        outputs, pullback = jax.vjp(lambda net: jnp.sin(net(x)), net)
        return outputs, pullback(jnp.cos(outputs))[0]

    ours, theirs = value_and_gradient(net), value_and_gradient(graph)
    np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-12)
    np.testing.assert_allclose(flat(theirs[1]), flat(ours[1]), rtol=1e-12, atol=1e-13)
    assert graph.degree == net.degree
    assert (graph.in_size, graph.out_size) == (net.in_size, net.out_size)


def test_graph_of_an_mlp():
    net = gf.nets.MLP([3, 4, 3, 2], key=jr.key(0), activation=["relu", LEAKY])
    graph, x = gf.nets.as_dag(net), jr.normal(jr.key(1), (5, 3))
    np.testing.assert_allclose(graph(x), net(x), rtol=1e-13)
    for mine, theirs in zip(graph.weights, net.weights, strict=True):
        # Its columns are all vertices before the layer.
        np.testing.assert_array_equal(mine[:, -theirs.shape[1] :], theirs)
        assert not np.any(mine[:, : -theirs.shape[1]])


@nets
def test_gradient_norms_against_the_jacobian(name):
    """0 exactly where it is 0; about right elsewhere."""
    net, x = build(name)
    x = x.at[0].set(0.0)

    @jax.jit
    def norms_and_rows(net):
        values = tuple(gate.value for gate in net.frozen_gates(x))
        rows = jax.jacrev(lambda n: n.preactivations(x))(net)
        return net.gradient_norms(x, values), rows

    subjects = [net, gf.nets.as_dag(net)] if name == "residual" else [net]
    for subject in subjects:
        norms, rows = norms_and_rows(subject)
        for layer, (norm, row) in enumerate(zip(norms, rows, strict=True)):
            squares = [
                np.sum(np.asarray(w) ** 2, axis=tuple(range(2, w.ndim)))
                for w in jax.tree.leaves(row)
            ]
            exact = np.sqrt(sum(squares))
            np.testing.assert_array_equal(np.asarray(norm) == 0, exact == 0)
            if layer == 0:
                np.testing.assert_allclose(norm, exact, rtol=1e-13)
            ratio = np.asarray(norm)[exact > 0] / exact[exact > 0]
            assert np.all((ratio > 0.2) & (ratio < 5)), (ratio.min(), ratio.max())


@pytest.mark.parametrize(
    "blocks, degree",
    [
        ([dense(4), dense(2, "identity")], 2),
        ([dense(4, bias=True), dense(2, "identity")], 2),
        ([dense(4), dense(2, "identity", bias=True)], None),
        ([dense(3), resnet_identity(2), dense(1, "identity")], None),
        ([conv(2, 2), conv(2, 2), dense(1, "identity")], 3),
    ],
    ids=["dense", "first bias", "last bias", "skip", "conv"],
)
def test_degree_of_homogeneity(blocks, degree):
    net = sequential((3, 1), blocks, key=jr.key(0))
    net = jax.tree.map(lambda w: jnp.abs(w) + 0.1, net)
    assert net.degree == gf.nets.as_dag(net).degree == degree
    x = jnp.abs(jr.normal(jr.key(1), (4, 3)))
    doubled = jax.tree.map(lambda w: 2 * w, net)
    now, then = jax.jit(lambda *nets: [net(x) for net in nets])(net, doubled)
    homogeneous = [np.allclose(then, 2**k * now, rtol=1e-12) for k in range(1, 5)]
    assert homogeneous == [k == degree for k in range(1, 5)]


def test_structure():
    net, _ = build("conv-2d")
    assert net.parameter_names == ("W1", "b1", "W2", "W3_2", "W3_1", "W4")
    # Convolutions by output channel; [U Z] side by side
    assert [w.shape for w in net.weights] == [(2, 12), (3, 24), (4, 27), (1, 4)]
    assert [layer.shape for layer in net.layers] == [(4, 3, 2), (3,), (4,), (1,)]
    kernel = jax.tree.leaves(net)[0]
    np.testing.assert_array_equal(net.weights[0][1], np.ravel(kernel[..., 1]))
    _, _, _, u, z, _ = jax.tree.leaves(net)
    np.testing.assert_array_equal(net.weights[2], np.hstack([u, z]))


@pytest.mark.parametrize("padding", ["VALID", "SAME", 2, [(0, 3)]], ids=str)
@pytest.mark.parametrize("size, window, stride", [(7, 3, 1), (6, 3, 2), (5, 1, 3)])
def test_padding_is_that_of_jax(size, window, stride, padding):
    net = sequential(
        (size, 1), [conv(1, window, stride, padding, "identity")], key=jr.key(0)
    )
    x = jr.normal(jr.key(1), (2, size))
    named = [(padding, padding)] if isinstance(padding, int) else padding
    expected = jax.lax.conv_general_dilated(
        x[:, :, None],
        jax.tree.leaves(net)[0],
        (stride,),
        named,
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    np.testing.assert_allclose(net(x), expected[:, :, 0], rtol=1e-14)


def test_draws():
    blocks = [conv(4, 3, padding=1), dense(50), dense(1, "identity")]
    single = sequential((8, 2), blocks, key=jr.key(0), dtype=jnp.float32)
    double = sequential((8, 2), blocks, key=jr.key(0), scale=0.5)
    for a, b in zip(jax.tree.leaves(single), jax.tree.leaves(double), strict=True):
        assert (a.dtype, b.dtype) == (jnp.float32, jnp.float64)
        np.testing.assert_allclose(0.5 * np.asarray(a), b, rtol=1e-6)
    by_fan_in = sequential((8, 2), blocks, key=jr.key(0), fan_in=True)
    for a, b, fan_in in zip(
        jax.tree.leaves(by_fan_in), jax.tree.leaves(double), [6, 32, 50], strict=True
    ):
        np.testing.assert_allclose(a, 2 * b / np.sqrt(fan_in), rtol=1e-14)
    assert np.all(
        sequential(3, [dense(2, "identity", True)], key=jr.key(0))(jnp.zeros((1, 3))) == 0
    )
