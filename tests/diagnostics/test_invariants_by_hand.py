"""Conserved quantities of single examples, vertices and edges."""

import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from invariant_cases import activations, rate_of

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


# --- Single examples, by hand ----------------------------------------------------------


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


@pytest.mark.parametrize("tolerance", [-1e-9, np.nan])
def test_the_tolerance_of_signatures_is_not_negative(tolerance):
    net = gf.nets.MLP([2, 3, 1], key=jr.key(0))
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    with pytest.raises(ValueError, match=f"tolerance={tolerance} must be 0 or more, such"):
        signatures(problem, net, tolerance)


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


# --- Vertices and edges ----------------------------------------------------------------


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
