"""Le & Jegelka: what each version states of a point, and of edges."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from le_jegelka_cases import (
    KEY,
    built,
    close,
    flowed,
    inputs,
    problem_on,
    random_graph,
    randomised,
    statements,
)

import gfdyn as gf
from gfdyn.theory import le_jegelka as lj


# --- Where the flow stands -------------------------------------------------------------


@pytest.fixture(scope="module")
def relu_point():
    """A random ReLU net on random data: its neurons have all sorts of patterns."""
    net = randomised(gf.nets.MLP([3, 5, 4, 1], key=KEY, activation="relu"), 3)
    return problem_on(inputs(net, 7)), net


def test_which_versions_hold_at_a_point(relu_point):
    found = statements(*relu_point)
    assert found["vertices"].verdict == "HOLDS"
    for name, size in (("pairs", 10 + 6), ("matrix", 25 + 16)):
        first, corrected = found[f"{name} first"], found[f"{name} corrected"]
        assert first.lhs.shape == (size,) and first.verdict == "VIOLATED"
        assert np.all(first.applies) and not np.all(corrected.applies)
        assert corrected.verdict != "VIOLATED"
        np.testing.assert_array_equal(corrected.applies, found[f"{name} second"].applies)


def test_gram_velocities_by_hand(relu_point):
    problem, net = relu_point
    gradient = jax.jit(jax.grad(problem.risk))(net)
    into, out = (np.asarray(w) for w in net.weights[:2])
    d_into, d_out = (-np.asarray(w) for w in gradient.weights[:2])
    incoming = into @ d_into.T + d_into @ into.T
    outgoing = out.T @ d_out + d_out.T @ out
    above = np.triu_indices(5, 1)
    found = statements(problem, net)
    close(found["pairs corrected"].lhs[:10], outgoing[above])
    close(found["pairs corrected"].rhs[:10], incoming[above])
    close(found["matrix corrected"].lhs[:25], outgoing.ravel())
    close(found["vertices"].lhs[:5], np.diag(outgoing))
    close(found["vertices"].rhs[:5], np.diag(incoming))


def test_linear_layers_in_full():
    """Between linear layers all versions agree, also behind a ReLU layer."""
    net = gf.nets.MLP([3, 5, 4, 1], key=KEY, activation=("relu", "identity"))
    net = randomised(net, 3)
    found = statements(problem_on(inputs(net, 7)), net)
    first, corrected = found["matrix first"], found["matrix corrected"]
    assert first.verdict == "VIOLATED" and np.all(first.holds[25:])
    assert np.all(corrected.applies[25:]) and corrected.verdict == "HOLDS"


def test_e3_of_lemma_4():
    """One neuron on, one off, a single example: numbers of the spec."""
    x = np.array([[1.0, 0.5]]) / np.sqrt(1.25)
    net = gf.nets.MLP.from_weights(
        [np.array([[10.0, 2.0], [-0.1, -0.05]]), np.array([[0.1, 10.0]])]
    )
    problem = gf.Problem(gf.Dataset(x, np.ones((1, 1))), gf.losses.logistic)
    found = statements(problem, net)
    result = found["lemma 4"]
    assert result.verdict == "HOLDS"
    np.testing.assert_array_equal(result.applies, [[False, True, False, False]] * 2)
    np.testing.assert_allclose(result.lhs[:, 1], [26.7735, -0.0030424], rtol=1e-4)
    np.testing.assert_array_equal(found["ranks"].lhs, [[2], [2], [2], [1]])
    # They could not be larger here.
    assert found["ranks"].verdict == "VACUOUS"


def test_noninvariance_for_any_gates(relu_point):
    """The general sums agree with the velocities for all pairs."""
    problem, net = relu_point
    rng = np.random.default_rng(5)
    random = tuple(jnp.asarray(rng.uniform(size=(7, n))) for n in (5, 4))
    for gates in (None, random):
        result = statements(problem, net, gates)["lemma 4"]
        assert np.all(result.holds)
        assert np.abs(result.lhs[0] - result.lhs[1]).max() > 1e-2


@pytest.mark.parametrize("samples", [1, 2])
def test_ranks(samples):
    net = randomised(gf.nets.MLP([8, 7, 8], key=KEY, activation="leaky_relu(0.5)"))
    x = inputs(net, samples)
    problem = gf.Problem(gf.Dataset(x, inputs(net, samples, 9)), gf.losses.squared)
    ranks = eqx.filter_jit(lj.gram_velocity_ranks)(problem, net)
    np.testing.assert_array_equal(ranks.lhs, [[2 * samples]] * 4)
    assert ranks.verdict == "HOLDS"


def test_rank_counts_positions_of_convolutions():
    net = built("conv")
    ranks = eqx.filter_jit(lj.gram_velocity_ranks)(problem_on(inputs(net, 1)), net)
    np.testing.assert_array_equal(ranks.rhs[0], [2 * 3, 2 * 2])


# --- Edges -----------------------------------------------------------------------------


EDGES = [(0, 2), (1, 2), (0, 3), (2, 3), (2, 4), (3, 4)]
LAST, ALL_IN = [(2, 4), (3, 4)], [(0, 2), (1, 2), (0, 3)]
OUT_OF_0 = [(0, 2), (0, 3)]


def test_edge_wise():
    """Layers that every path meets once; not those that the printed definition lets in."""
    edge_wise = eqx.filter_jit(lj.edge_wise)
    net = gf.nets.Dag(EDGES, np.random.default_rng(0).normal(size=6), 2)
    problem = problem_on(inputs(net))
    assert edge_wise(problem, net, LAST, ALL_IN).verdict == "HOLDS"
    assert lj.is_printed_layer(net, OUT_OF_0) and not gf.diagnostics.is_layer(net, OUT_OF_0)
    for layer in (LAST, ALL_IN):
        assert lj.is_printed_layer(net, layer)
    assert not lj.is_printed_layer(net, [(0, 2)])
    assert not lj.is_printed_layer(net, [*ALL_IN, *LAST])
    assert edge_wise(problem, net, LAST, OUT_OF_0).verdict == "ASSUMPTIONS NOT MET"
    printed = edge_wise(problem, net, LAST, OUT_OF_0, "printed")
    assert printed.verdict == "VIOLATED"
    gradient = np.asarray(jax.grad(problem.risk)(net).values)
    w = np.asarray(net.values)
    close(printed.lhs, -2 * w[4:] @ gradient[4:])
    close(printed.rhs, -2 * w[[0, 2]] @ gradient[[0, 2]])


@pytest.mark.usefixtures("unhooked")
def test_edges_that_cannot_be_layers():
    net = random_graph(0)
    problem = problem_on(inputs(net))
    constant = next(e for e, p in zip(net.edges, net.parameters, strict=True) if p < 0)
    shared = next(e for e, p in zip(net.edges, net.parameters, strict=True) if p == 0)
    for edges, message in (
        ([(0, 1)], "first has (0, 1), which is no edge"),
        ([constant], "first contains constants"),
        ([shared], "first lacks the edge"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            lj.edge_wise(problem, net, edges, edges)
    net = gf.nets.Dag(EDGES, np.ones(6), 2)
    with pytest.raises(ValueError, match="definition='other'; use 'exactly once'"):
        lj.edge_wise(problem, net, LAST, LAST, "other")  # pyright: ignore


# --- Sliding neurons: the gap that the correction leaves -------------------------------


def test_edge_wise_drift():
    """Along the flow of a net with a skip; each layer against another."""
    net = gf.nets.Dag(EDGES, np.random.default_rng(0).normal(size=6), 2)
    problem = problem_on(inputs(net))
    nets = flowed(problem, net)
    assert lj.edge_wise_drift(nets, LAST, ALL_IN, tolerance=1e-4).verdict == "HOLDS"
    printed = lj.edge_wise_drift(nets, LAST, OUT_OF_0, "printed", tolerance=1e-3)
    assert printed.verdict == "VIOLATED" and printed.lhs.shape == (11,)
    w = np.asarray(nets.values)
    expected = (w[:, 4:] ** 2).sum(axis=1) - (w[:, [0, 2]] ** 2).sum(axis=1)
    close(printed.lhs, expected)


@pytest.mark.parametrize(
    "statement, message",
    [
        (lj.pairwise, "version='third'; use 'corrected', 'second' or 'first'."),
        (lj.matrix_wise, "version='third'; use 'corrected'"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_no_such_version(statement, message, relu_point):
    with pytest.raises(ValueError, match=re.escape(message)):
        statement(*relu_point, version="third")


def test_nets_without_hidden_neurons():
    net = gf.nets.MLP.from_weights([np.ones((1, 2))])
    problem = problem_on(inputs(net))
    for statement in (lj.vertex_wise, lj.pairwise, lj.noninvariance):
        with pytest.raises(ValueError, match="net has no hidden neurons"):
            statement(problem, net)
    with pytest.raises(ValueError, match="net has no hidden neurons"):
        lj.vertex_wise_drift(jax.tree.map(lambda w: w[None], net))
