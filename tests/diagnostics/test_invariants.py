"""What is conserved on which architecture: Le & Jegelka's table, corrected."""

import functools
import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import gfdyn as gf
from gfdyn.diagnostics import (
    edge_balance,
    gram_drift,
    gram_velocities,
    invariant_rates,
    invariants,
    is_layer,
    signatures,
)
from gfdyn.nets import (
    conv,
    dense,
    densely_connected,
    resnet_diagonal,
    resnet_free,
    resnet_identity,
    sequential,
)


LOSSES = [gf.losses.logistic, gf.losses.exponential, gf.losses.squared]
SLOPES = ["relu", "leaky_relu(0.1)", "identity"]
activations = pytest.mark.parametrize("sigma", SLOPES)

# Input shape, blocks, and the form that each hidden layer has where its units are linear:
# every row of the table meets in one of these.
NETS = {
    # FC, with biases, and DenseNet
    "dense": lambda s: (
        (3,),
        [
            dense(4, s, bias=True),
            densely_connected([3, 2], s, bias=True),
            dense(1, "identity"),
        ],
        {"layer 1": "full", "layer 2": "full", "layer 3": "full"},
    ),
    # conv–conv with strides and padding, conv–FC, and with biases
    "conv": lambda s: (
        (6, 2),
        [conv(3, 3, 1, 1, s, bias=True), conv(2, 3, 2, [(2, 1)], s), dense(1, "identity")],
        {"layer 1": "full", "layer 2": "full"},
    ),
    # 2-D; conv–Free, inside Free, Free–Free, Free–FC
    "conv-free": lambda s: (
        (3, 4, 2),
        [
            conv(3, (2, 3), (1, 2), "SAME", s),
            resnet_free(3, 4, s),
            resnet_free(3, 2, s),
            dense(1, "identity"),
        ],
        {f"layer {i}": "full" for i in range(1, 6)},
    ),
    # FC–Identity–Diagonal–Diagonal–FC, and inside each
    "residual": lambda s: (
        (3,),
        [
            dense(4, s),
            resnet_identity(3, s),
            resnet_diagonal(5, s),
            resnet_diagonal(3, s),
            dense(1, "identity"),
        ],
        {
            "layer 2": "full",
            "layer 4": "full",
            "layer 5": "diagonal",
            "layer 6": "full",
            "layer 7": "diagonal",
            # Not of layers 1 and 3, before and behind a constant skip
            "cuts 0, 3": "norms",
        },
    ),
}
nets = pytest.mark.parametrize("name", NETS)
POINTS, SAMPLES = 50, 5


@functools.cache
def points(name, sigma):
    """Random nets, stacked; inputs; and ∇C of each of the losses there."""
    shape, blocks, forms = NETS[name](sigma)
    net = sequential(shape, blocks, key=jr.key(0), scale=0.7)
    leaves, tree = jax.tree.flatten(net)
    rng = np.random.default_rng(len(leaves))
    stack = [jnp.asarray(0.7 * rng.normal(size=(POINTS, *w.shape))) for w in leaves]
    x = jnp.asarray(rng.normal(size=(SAMPLES, net.in_size)))
    y = np.sign(rng.normal(size=(SAMPLES, 1)))

    @jax.jit
    def cotangents(stacked):
        outputs = jax.vmap(lambda net: net(x))(stacked)
        problems = [gf.Problem(gf.Dataset(x, jnp.asarray(y)), loss) for loss in LOSSES]
        return jnp.stack([jax.vmap(p.cost_gradient)(outputs) for p in problems])

    stacked = jax.tree.unflatten(tree, stack)
    return net, stacked, x, cotangents(stacked), forms


@functools.cache
def measured(name, sigma):
    """At all points and for all losses: rates, velocities of the Gram matrices and the
    drift law. A loss enters through its gradient only, so that of a linear one will do."""
    _, stacked, x, cotangents, _ = points(name, sigma)

    @jax.jit
    def measure(cotangents):
        def of(net, cotangent):
            problem = gf.Problem(
                gf.Dataset(x, -cotangent), gf.losses.linear, reduction="sum"
            )
            return (
                invariant_rates(problem, net),
                gram_velocities(problem, net),
                gram_drift(problem, net),
            )

        over_nets = jax.vmap(of)
        return jax.vmap(lambda c: over_nets(stacked, c))(cotangents)

    return measure(cotangents)


def largest(a):
    return np.abs(np.asarray(a)).reshape(len(LOSSES), POINTS, -1).max(axis=-1)


@activations
@nets
def test_forms(name, sigma):
    net, *_, linear = points(name, sigma)
    forms = {m.name: m.form for m in invariants(net)}
    if sigma != "identity":
        linear = {k: "blocks" if form == "full" else form for k, form in linear.items()}
    assert forms == linear
    values = net.invariants()
    for m, value in zip(invariants(net), values, strict=True):
        np.testing.assert_array_equal(m.value, value)
        square = m.outgoing.T @ m.outgoing - m.incoming @ m.incoming.T
        whole = m.form == "full"
        np.testing.assert_allclose(value, square if whole else np.diag(square), atol=1e-14)


@activations
@nets
def test_what_is_conserved_does_not_move(name, sigma):
    """d/dt along the gradient of each loss, at random nets."""
    rates, grams, _ = measured(name, sigma)
    *_, forms = points(name, sigma)
    assert set(rates) == set(forms)
    speeds = {key: largest(gram.incoming) for key, gram in grams.items()}
    speeds["cuts 0, 3"] = sum(speeds.values())
    for key, rate in rates.items():
        scale = speeds[key]
        assert np.all(largest(rate) <= 1e-12 * np.maximum(scale, 1e-3)), key
        assert np.median(scale) > 1e-3, key


@activations
@nets
def test_the_rest_moves_by_the_drift_law(name, sigma):
    """And it does move, but of linear units."""
    _, grams, drifts = measured(name, sigma)
    *_, forms = points(name, sigma)
    matrices = {key for key, form in forms.items() if form == "full"}
    assert set(drifts) == matrices
    for key, form in forms.items():
        if form == "norms":
            continue
        moved = np.asarray(grams[key].outgoing - grams[key].incoming)
        scale = np.maximum(largest(grams[key].incoming), 1e-3)
        if key in matrices:
            assert np.all(largest(moved - drifts[key]) <= 1e-12 * scale), key
        if key in matrices and sigma == "identity":
            assert np.all(largest(moved) <= 1e-12 * scale), key
        else:
            # Some point has gates that differ, even of few neurons.
            assert np.max(largest(moved) / scale) > 1e-2, key


def rate_of(problem, net, quantity):
    """d/dt of a quadratic quantity of θ along gradient flow, and its largest part."""
    velocity = jax.tree.map(jnp.negative, jax.grad(problem.risk)(net))
    return jax.jvp(quantity, (net,), (velocity,))[1]


def test_wrong_flattenings_move():
    """Each way to flatten that Le & Jegelka print, or that one could take it for."""
    net, stacked, x, _, _ = points("conv", "identity")
    y = jnp.asarray(np.sign(np.random.default_rng(5).normal(size=(SAMPLES, 1))))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.logistic)
    positions, channels = net.layers[1].shape

    def gram(w):
        return w.T @ w

    def blocks(net):
        first, second, last = net.layers
        bias, kernel = first.bias[None, :], first.connections[0].kernel.reshape(-1, 3)
        after_first = second.connections[0].kernel
        into_second = after_first.reshape(-1, channels)
        after_second = last.connections[0].weight
        out_of_first = jnp.moveaxis(after_first, 1, 2).reshape(-1, 3)
        swapped = after_second.reshape(channels, positions).T
        into_first = gram(jnp.concatenate([kernel, bias]))
        return {
            "right 1": gram(out_of_first) - into_first,
            "right 2": gram(after_second.reshape(-1, channels)) - gram(into_second),
            "channels not kept": gram(after_first.reshape(-1, 3)) - into_first,
            "no bias": gram(out_of_first) - gram(kernel),
            "positions and channels swapped": gram(swapped) - gram(into_second),
        }

    @jax.jit
    def rates(stacked):
        return jax.vmap(lambda net: rate_of(problem, net, blocks))(stacked)

    for key, rate in rates(stacked).items():
        size = np.abs(np.asarray(rate)).max(axis=(1, 2))
        if key.startswith("right"):
            assert np.all(size <= 1e-13), key
        else:
            assert np.max(size) >= 1e-2, key


# --- Single examples, by hand ---------------------------------------------------------


def test_two_neurons_of_le_and_jegelka():
    """Their Lemma 4: one neuron on, one off, a single example (E3 of our notes)."""
    x = np.array([[1.0, 0.5]]) / np.sqrt(1.25)
    w1, w2 = np.array([[10.0, 2.0], [-0.1, -0.05]]), np.array([[0.1, 10.0]])
    net = gf.nets.MLP.from_weights([w1, w2])
    problem = gf.Problem(gf.Dataset(x, np.ones((1, 1))), gf.losses.logistic)
    velocity = gram_velocities(problem, net)["layer 1"]
    np.testing.assert_allclose(velocity.incoming[0, 1], -0.0030424, rtol=1e-4)
    np.testing.assert_allclose(velocity.outgoing[0, 1], 26.7735, rtol=1e-5)
    for gram in (velocity.incoming, velocity.outgoing):
        np.testing.assert_allclose(np.diag(gram), [0.53547, 0], rtol=1e-5)
    np.testing.assert_array_equal(velocity.ranks(), [2, 2, 2, 1])
    # Their equations (65) and (67)
    z = x @ w1.T
    g = -w2 / (1 + np.exp(w2[0, 0] * z[0, 0]))
    np.testing.assert_allclose(velocity.outgoing[0, 1], -g[0, 1] * z[0, 0], rtol=1e-13)
    np.testing.assert_allclose(velocity.incoming[0, 1], -g[0, 0] * z[0, 1], rtol=1e-13)
    drift = gram_drift(problem, net)["layer 1"]
    expected = -g[0, 1] * z[0, 0] + g[0, 0] * z[0, 1]
    np.testing.assert_allclose(drift, [[0, expected], [expected, 0]], rtol=1e-13)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_ranks_of_gram_velocities(samples):
    rng = np.random.default_rng(samples)
    net = gf.nets.MLP([8, 7, 8], key=jr.key(1), activation="leaky_relu(0.5)")
    x, y = rng.normal(size=(samples, 8)), rng.normal(size=(samples, 8))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    ranks = gram_velocities(problem, net)["layer 1"].ranks()
    np.testing.assert_array_equal(ranks, [2 * samples] * 4)


def test_drift_law_with_given_gates():
    """Of a neuron that slides, with its gate: the velocity is that of these gates."""
    rng = np.random.default_rng(2)
    net = gf.nets.MLP([3, 4, 1], key=jr.key(2))
    problem = gf.Problem(
        gf.Dataset(rng.normal(size=(5, 3)), rng.normal(size=(5, 1))), gf.losses.squared
    )
    gates = (jnp.asarray(rng.uniform(size=(5, 4))),)
    velocity = gram_velocities(problem, net, gates)["layer 1"]
    drift = gram_drift(problem, net, gates)["layer 1"]
    np.testing.assert_allclose(velocity.outgoing - velocity.incoming, drift, atol=1e-14)
    assert np.abs(drift).max() > 1e-2
    (rate,) = invariant_rates(problem, net, gates).values()
    np.testing.assert_allclose(rate, 0, atol=1e-14)
    w1, w2 = (np.asarray(w) for w in net.weights)
    gate, x = np.asarray(gates[0]), np.asarray(problem.data.x)
    z = x @ w1.T
    g = ((gate * z) @ w2.T - np.asarray(problem.data.y)) / 5 * w2
    expected = np.zeros((4, 4))
    for i in range(5):
        for u in range(4):
            for v in range(4):
                expected[u, v] += (gate[i, u] - gate[i, v]) * (
                    g[i, u] * z[i, v] - g[i, v] * z[i, u]
                )
    np.testing.assert_allclose(drift, expected, atol=1e-14)


def test_signatures():
    """Neurons on the first sample only, on both, on none; and one on a kink."""
    w1 = np.array(
        [[1.0, -1.0], [1.0, 1.0], [2.0, -1.0], [-1.0, -1.0], [1.0, 0.0], [3.0, 1.0]]
    )
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    net = gf.nets.MLP.from_weights(
        [w1, np.ones((3, 6)), np.ones((1, 3))], ["relu", "linear"]
    )
    problem = gf.Problem(gf.Dataset(x, np.ones((2, 1))), gf.losses.squared)
    found = signatures(problem, net)
    # The fifth is on its kink at the second sample, and alone.
    np.testing.assert_array_equal(found["layer 1"], [0, 1, 0, 3, 4, 1])
    np.testing.assert_array_equal(found["layer 2"], [0, 0, 0])
    drift = np.asarray(gram_drift(problem, net)["layer 1"])
    same = np.asarray(found["layer 1"])[:, None] == np.asarray(found["layer 1"])
    np.testing.assert_array_equal(drift[same], 0)
    assert np.abs(drift[0, 1]) > 0.1


def test_signatures_of_dead_neurons_and_of_convolutions():
    """A sample that is dead leaves no kink; channels must agree at every position."""
    kernel = np.array([[[1.0, 2.0, -1.0]]])
    net = gf.nets.LayeredNet(
        (2, 1),
        [
            gf.nets.Layer(
                (gf.nets.Conv(jnp.asarray(kernel), (2,), (1,), ((0, 0),)),),
                None,
                (0,),
                gf.nets.relu(),
                (2, 3),
            ),
            gf.nets.Layer(
                (gf.nets.Dense(jnp.ones((1, 6))),), None, (1,), gf.nets.identity(), (1,)
            ),
        ],
    )
    x = np.array([[1.0, -2.0], [0.0, 3.0]])
    problem = gf.Problem(gf.Dataset(x, np.ones((2, 1))), gf.losses.squared)
    np.testing.assert_array_equal(signatures(problem, net)["layer 1"], [0, 0, 2])


# --- Vertices and edges ---------------------------------------------------------------


def graph(sigma, seed=0):
    """Two inputs, skips, twins 2 and 3, a constant edge 4 ⇢ 6, a weight on two edges."""
    edges = [(0, 2), (1, 2), (0, 3), (1, 3), (2, 4), (3, 4), (0, 5), (2, 5), (3, 5)]
    edges += [(4, 7), (5, 7), (5, 6), (6, 7)]
    values = np.random.default_rng(seed).normal(size=12)
    return gf.nets.Dag(
        edges,
        values,
        2,
        activation=sigma,
        constants={(4, 6): 0.5},
        parameters=[*range(11), 11, 11],
    )


@activations
def test_vertex_wise(sigma):
    """Only of vertices all of whose weights are trained, and their own."""
    net = graph(sigma)
    forms = {m.name: m.form for m in invariants(net)}
    form = "full" if sigma == "identity" else "blocks"
    assert forms == {"vertices 2, 3": form}
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 2)), np.sign(rng.normal(size=(6, 1)))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.exponential)

    @jax.jit
    def rates(net):
        grams = gram_velocities(problem, net)
        return invariant_rates(problem, net), grams, gram_drift(problem, net)

    conserved, grams, drifts = rates(net)
    velocity = grams["vertices 2, 3"]
    scale = np.abs(velocity.incoming).max()
    assert scale > 1e-3
    assert np.abs(conserved["vertices 2, 3"]).max() <= 1e-12 * scale
    gap = velocity.outgoing - velocity.incoming - drifts["vertices 2, 3"]
    assert np.abs(gap).max() <= 1e-12 * scale


def test_layers_are_what_every_path_meets_once():
    edges = [(0, 2), (1, 2), (0, 3), (2, 3), (2, 4), (3, 4)]
    net = gf.nets.Dag(edges, np.arange(1.0, 7), 2)
    assert is_layer(net, [(2, 4), (3, 4)])
    assert is_layer(net, [(0, 2), (1, 2), (0, 3)])
    assert is_layer(net, [(0, 3), (2, 3), (2, 4)])
    # No path has two edges of OUT(0), and without them the graph falls apart.
    assert not is_layer(net, [(0, 2), (0, 3)])
    assert not is_layer(net, [(0, 2), (1, 2), (2, 4), (3, 4)])
    with pytest.raises(ValueError, match=re.escape("edges has (1, 4), which is no edge")):
        is_layer(net, [(1, 4)])


@activations
def test_edge_wise(sigma):
    """Between any two layers; not with what Definition 6 of the first version lets pass."""
    edges = [(0, 2), (1, 2), (0, 3), (2, 3), (2, 4), (3, 4)]
    net = gf.nets.Dag(edges, np.random.default_rng(0).normal(size=6), 2, activation=sigma)
    layers = ([(2, 4), (3, 4)], [(0, 2), (1, 2), (0, 3)], [(0, 3), (2, 3), (2, 4)])
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(6, 2)), np.sign(rng.normal(size=(6, 1)))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.logistic)

    def balances(net):
        out_of_0 = net.values[0] ** 2 + net.values[2] ** 2
        last = net.values[4] ** 2 + net.values[5] ** 2
        pairs = [(layers[0], layers[1]), (layers[1], layers[2])]
        return [edge_balance(net, *pair) for pair in pairs], last - out_of_0

    conserved, moving = jax.jit(lambda net: rate_of(problem, net, balances))(net)
    np.testing.assert_allclose(conserved, 0, atol=1e-14)
    assert abs(moving) > 1e-2
    expected = sum(np.asarray(net.values)[[4, 5]] ** 2) - sum(
        np.asarray(net.values)[:3] ** 2
    )
    np.testing.assert_allclose(edge_balance(net, layers[0], layers[1]), expected)


@pytest.mark.parametrize(
    "edges, message",
    [
        ([(0, 2), (1, 2)], "first is not a layer: paths meet 0 to 1 of its edges"),
        ([(4, 7), (5, 7), (6, 7)], "first lacks the edge (5, 6), which shares its weight"),
        ([(4, 7), (4, 6), (5, 6), (5, 7)], "first contains constants, whose weights"),
    ],
)
def test_edges_that_have_no_balance(edges, message):
    net = graph("relu")
    with pytest.raises(ValueError, match=re.escape(message)):
        edge_balance(net, edges, edges)
