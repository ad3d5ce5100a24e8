"""Le & Jegelka: the decomposition into paths, their kinks, jagged paths."""

import itertools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import rows
from le_jegelka_cases import (
    BUILDERS,
    KEY,
    VERSIONS,
    built,
    close,
    inputs,
    problem_on,
    randomised,
)

import gfdyn as gf
from gfdyn.theory import le_jegelka as lj


# --- Decomposition ---------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDERS)
def test_decomposition(name):
    """ν = μ∘h in all its forms; ∇μ is the gates, and eq. (2) the derivative."""
    net = built(name)
    x = inputs(net)
    found = lj.decompose(net)

    def outputs_of(dag):
        outputs = dag(jnp.asarray(x))[:, 0]
        return outputs, outputs

    jacobian, outputs = jax.jit(jax.jacrev(outputs_of, has_aux=True))(found.dag)
    jacobian = jacobian.values
    h, absolute = found.values(x), found.absolute_values(x)
    size = np.abs(h).sum(axis=1).max()
    close(found.unrolled(found.starts(x)), outputs, size)
    close(found.absolute(absolute), outputs, size)
    close(found.signed(h), outputs, size)
    close((found.gates(x) * h).sum(axis=1), outputs, size)
    assert set(np.abs(found.absolute.weights)) == {1.0}
    assert set(np.abs(found.signed.weights)) == {1.0}
    # Whole paths of μ have weight +1.
    close(found.signed.along(found.signed.weights[None])[0, found.signed.leaves], 1)
    close(found.signed.gradient(h), found.gates(x), size=1.0)
    close(found.absolute.gradient(absolute), found.gates(x) * found.signs, size=1.0)

    by_edge = found.edge_gradients(x)
    by_parameter = np.zeros(jacobian.shape)
    for edge, parameter in enumerate(found.dag.parameters):
        if parameter >= 0:
            by_parameter[:, parameter] += by_edge[:, edge]
    close(by_parameter, jacobian, np.abs(jacobian).max())


def test_paths_of_a_fully_connected_net():
    """52 nodes, 36 paths; h is the product of weights along each, by hand."""
    net = built("relu")
    found = lj.decompose(net)
    assert len(found.unrolled.parents) == 52
    assert lj.path_count(net) == 36 and found.paths.shape == (36, 3)
    w1, w2, w3 = (np.asarray(w) for w in net.weights)
    expected = {
        tuple(path): w1[path[1], path[0]] * w2[path[2], path[1]] * w3[0, path[2]]
        for path in itertools.product(range(3), range(4), range(3))
    }
    ones = np.ones((1, 3))
    edges = found.dag.edges
    for path, value in zip(found.paths, found.values(ones)[0], strict=True):
        (a, b), (_, c), _ = (edges[e] for e in path)
        np.testing.assert_allclose(value, expected.pop((a, b - 3, c - 7)), rtol=1e-14)
    assert not expected


def test_mu_depends_on_signs_alone():
    net = built("leaky")
    other = jax.tree.map(lambda w: jnp.sign(w) * jnp.abs(w) ** 1.7, net)
    one, two = lj.decompose(net), lj.decompose(other)
    np.testing.assert_array_equal(one.signed.weights, two.signed.weights)
    h = two.values(inputs(net))
    close(one.signed(h), other(jnp.asarray(inputs(net)))[:, 0], np.abs(h).sum())


def test_zero_weights_have_a_sign():
    net = gf.nets.MLP.from_weights(
        [np.array([[0.0, 1.0], [2.0, -1.0]]), np.array([[0.0, -3.0]])]
    )
    x = inputs(net)
    found = lj.decompose(net)
    close(found.signed(found.values(x)), net(jnp.asarray(x))[:, 0])


def test_each_output_has_its_decomposition():
    net = randomised(gf.nets.MLP([2, 3, 2], key=KEY))
    x = inputs(net)
    for output in (0, 1):
        found = lj.decompose(net, output)
        close(found.signed(found.values(x)), net(jnp.asarray(x))[:, output])
    with pytest.raises(ValueError, match=re.escape("output=2 must lie in 0..1.")):
        lj.decompose(net, 2)


def test_float32_stays():
    net = jax.tree.map(lambda w: w.astype(jnp.float32), built("relu"))
    x = inputs(net).astype(np.float32)
    found = lj.decompose(net)
    assert found.signed(found.values(x)).dtype == np.float32
    problem = gf.Problem(gf.Dataset(x, x[:, :1]), gf.losses.squared)
    assert lj.path_decomposition(problem, net).verdict == "HOLDS"


def test_too_many_paths_are_counted_and_not_built():
    """Two to the sixtieth through sixty pairs of neurons."""
    pairs = [(2 * i, 2 * i + 1) for i in range(61)]
    edges = [(u, v) for one, two in itertools.pairwise(pairs) for u in one for v in two]
    deep = gf.nets.Dag([*edges, (120, 122), (121, 122)], np.ones(242), 2)
    assert lj.path_count(deep) == 2**61
    message = f"the graph has {2**61} paths to vertex 122, above limit=100000; take a"
    with pytest.raises(ValueError, match=re.escape(message)):
        lj.decompose(deep)
    with pytest.raises(ValueError, match="the graph has 36 paths .* above limit=35"):
        lj.decompose(built("relu"), limit=35)


@pytest.mark.usefixtures("unhooked")
def test_what_has_no_paths():
    with pytest.raises(
        TypeError, match="net must be a gf.nets.MLP or LayeredNet, got Problem"
    ):
        lj.decompose(problem_on(np.ones((1, 2))))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="net is traced; paths are enumerated outside"):
        jax.jit(lambda net: lj.decompose(net).moduli)(built("relu"))
    found = lj.decompose(built("relu"))
    with pytest.raises(ValueError, match="inputs has 4 columns, but the tree 36 leaves"):
        found.signed(np.ones((2, 4)))
    with pytest.raises(
        ValueError, match=re.escape("x has shape (2, 4); it must be (N, 3)")
    ):
        found.values(np.ones((2, 4)))


def test_path_decomposition():
    net = built("leaky")
    problem = problem_on(inputs(net))
    result = lj.path_decomposition(problem, net)
    assert result.lhs.shape == (3, 6) and result.verdict == "HOLDS"
    close(result.lhs, np.asarray(net(problem.data.x)).T.repeat(3, axis=0), 100)


# --- Paths on kinks --------------------------------------------------------------------


def at_a_kink(sigma="relu"):
    """The second neuron, and the first of the next layer, are on their kinks at x_1."""
    w1 = np.array([[1.0, 0.5], [0.0, 1.0], [-1.0, 0.2], [2.0, -1.0]])
    w2 = np.array([[2.0, 1.0, 2.0, -1.0], [-0.5, 1.0, 1.0, 2.0]])
    net = gf.nets.MLP.from_weights([w1, w2, np.array([[1.0, -2.0]])], sigma)
    return net, np.array([[1.0, 0.0], [0.4, 0.7]])


@pytest.mark.parametrize("sigma", ["relu", "leaky_relu(0.2)"])
def test_subdifferentials_in_a_path(sigma):
    """The ends are the least and the largest derivative of μ near h."""
    net, x = at_a_kink(sigma)
    found = lj.decompose(net)
    ends = lj.path_subdifferentials(found, x)
    assert ends.shape == (2, 2, 16)
    h, rng = found.values(x), np.random.default_rng(0)
    shape = (4000, *h.shape)
    near = h + 1e-9 * rng.normal(size=shape) * 10.0 ** rng.uniform(-4, 0, size=shape)
    slopes = np.stack([found.signed.gradient(row) for row in near])
    close(ends[0], slopes.min(axis=0))
    close(ends[1], slopes.max(axis=0))
    assert np.any(ends[1, 0] > ends[0, 0] + 0.5)
    close(ends[:, 1], found.gates(x)[[1, 1]])


def test_equal_path_subdifferentials():
    """As printed, a neuron on its kink is like an active one; its paths are not."""
    net, x = at_a_kink()
    problem = problem_on(x)
    found = {v: lj.equal_path_subdifferentials(problem, net, version=v) for v in VERSIONS}
    assert found["corrected"].lhs.shape == (2, 2, 120)
    assert found["corrected"].verdict == "HOLDS"
    assert found["second"].verdict == found["first"].verdict == "VIOLATED"
    assert found["corrected"].applies.sum() < found["second"].applies.sum()
    away = lj.equal_path_subdifferentials(problem_on(x[1:]), net, version="second")
    assert away.verdict == "HOLDS"


# --- Jagged paths ----------------------------------------------------------------------


@pytest.mark.parametrize("u, v", [(3, 5), (6, 4), (7, 8)])
def test_jagged_paths(u, v):
    """Their sums are Σ w ∂ν/∂w of autodiff, and differ where the gates do."""
    net = built("leaky")
    x = inputs(net)
    jagged = lj.jagged_paths(net, x, u, v)
    jacobians = jax.jit(jax.jacrev(lambda net: net(jnp.asarray(x))[:, 0]))(net)
    layer, first = (0, 3) if u < 7 else (1, 7)
    into, out = net.weights[layer], net.weights[layer + 1]
    d_into, d_out = jacobians.weights[layer], jacobians.weights[layer + 1]
    u, v = u - first, v - first
    size = np.abs(jagged.products).sum(axis=1).max()
    close(jagged.incoming, d_into[:, v] @ into[u], size)
    close(jagged.outgoing, d_out[:, :, u] @ out[:, v], size)
    apart = ~jagged.alike
    assert np.any(apart) and np.any(jagged.alike)
    gap = np.abs(jagged.incoming - jagged.outgoing)
    close(gap[jagged.alike], 0, size)
    assert np.all(gap[apart] > 1e-5)


def test_jagged_path_sums_by_version():
    net = built("leaky")
    problem = problem_on(inputs(net))
    assert lj.jagged_path_sums(problem, net, 3, 5).verdict == "HOLDS"
    first = lj.jagged_path_sums(problem, net, 3, 5, version="first")
    assert first.verdict == "VIOLATED"


@pytest.mark.parametrize(
    "u, v, message",
    [(2, 4, "u=2 is no hidden vertex; those are 3 to 9"), (3, 7, "have other neighbours")],
)
def test_vertices_without_jagged_paths(u, v, message):
    net = built("relu")
    with pytest.raises(ValueError, match=re.escape(message)):
        lj.jagged_paths(net, inputs(net), u, v)


# --- Assumptions and claims ------------------------------------------------------------


def path_of(entries):
    """Nets whose first weight takes these values, the others growing towards a limit."""
    t = np.arange(1.0, 1 + len(entries))
    first = np.stack([entries, 2 * t, 2 * t, t], axis=1).reshape(-1, 2, 2)
    last = np.stack([t, t], axis=1)[:, None, :]
    net = gf.nets.MLP.from_weights([first[0], last[0]])
    return eqx.tree_at(
        lambda n: list(n.matrices), net, [jnp.asarray(first), jnp.asarray(last)]
    )


def test_regime():
    """Signs change after the first and second save, the last time towards the third."""
    nets = path_of(np.array([1.0, -2.0, 3.0, 4.0, 5.0]))
    ts = jnp.asarray([0.0, 1.0, 3.0, 4.0, 7.0])
    problem = problem_on(np.array([[1.0, 0.0], [0.0, 1.0]]))
    seen = eqx.filter_jit(lj.regime)(problem, ts, nets)
    np.testing.assert_array_equal(seen.sign_changes, [0, 1, 1, 0, 0])
    np.testing.assert_array_equal(seen.gate_changes, [0, 1, 1, 0, 0])
    assert seen.stable_signs_from == 3 and seen.stable_gates_from == 3
    # Parameters (s, 2t, 2t, t, t, t)
    firsts = [1, -2, 3, 4, 5]
    theta = np.array([[s, 2 * t, 2 * t, t, t, t] for t, s in enumerate(firsts, start=1)])
    norms = np.linalg.norm(theta, axis=1)
    np.testing.assert_allclose(seen.norms, norms)
    unit = theta / norms[:, None]
    close(seen.distance, np.linalg.norm(unit - unit[-1], axis=1))
    np.testing.assert_allclose(seen.smallest_limit, 1 / np.sqrt(12))
    # The second is 2/√12 away, the others on the ray.
    assert seen.near_from == 3
    agree = lj.near_the_limit_signs_agree(nets)
    np.testing.assert_array_equal(agree.lhs, [0, 1, 0, 0, 0])
    np.testing.assert_array_equal(agree.applies, [True, False, True, True, True])
    assert agree.verdict == "HOLDS"


def test_a_given_limit():
    """With a zero in it nothing is ever near, and Assumption 2 fails."""
    nets = path_of(np.array([1.0, 1.0, 1.0]))
    limit = rows(path_of(np.array([0.0])), 0)
    problem = problem_on(np.array([[1.0, 0.0], [0.0, 1.0]]))
    seen = eqx.filter_jit(lj.regime)(problem, jnp.arange(3.0), nets, limit)
    assert seen.smallest_limit == 0 and seen.near_from == np.inf
    assert np.all(np.diff(seen.distance) < 0) and seen.distance[-1] > 0.05
    agree = lj.near_the_limit_signs_agree(nets, limit)
    assert agree.verdict == "ASSUMPTIONS NOT MET"
    with pytest.raises(ValueError, match=re.escape("ts has shape (2,) for 3 nets")):
        lj.regime(problem, jnp.arange(2.0), nets)


def test_rescaling():
    """Claim 2's curve switches gates only through biases above the first layer."""
    rescaled = eqx.filter_jit(lj.rescaling_keeps_patterns)
    ts = np.linspace(0.1, 20, 100)
    homogeneous = built("leaky")
    biased = built("bias")
    for net, verdict in ((homogeneous, "HOLDS"), (biased, "ASSUMPTIONS NOT MET")):
        result = rescaled(problem_on(inputs(net)), net, ts)
        assert result.verdict == verdict
        assert (result.lhs > 3) == (net is biased)


def test_which_risk_separates():
    """R < ℓ(0) of a mean leaves a margin negative."""
    net = gf.nets.MLP.from_weights([np.array([[1.0, 0.0], [0.0, 1.0]]), np.ones((1, 2))])
    x = np.array([[10.0, 0.0], [0.1, 0.0]])
    problem = gf.Problem(gf.Dataset(x, np.array([[1.0], [-1.0]])), gf.losses.logistic)
    first = lj.small_risk_separates(problem, net, "first")
    assert first.verdict == "VIOLATED" and first.lhs == 0.1
    assert lj.small_risk_separates(problem, net).verdict == "ASSUMPTIONS NOT MET"
    right = gf.Problem(gf.Dataset(x, np.ones((2, 1))), gf.losses.exponential)
    stronger = jax.tree.map(lambda w: 5 * w, net)
    result = lj.small_risk_separates(right, stronger)
    assert result.verdict == "HOLDS"
    np.testing.assert_allclose(result.lhs, -2.5)
