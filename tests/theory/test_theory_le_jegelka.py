"""Le & Jegelka: the decomposition, and the invariances as each version states them.

Against autodiff, sums over paths by hand, closed forms and SciPy. The first version's
claims fail where it says they hold; the correction's last gap shows while a neuron slides.
"""

import itertools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import gfdyn as gf
from gfdyn.nets import conv, dense, resnet_free, resnet_identity, sequential
from gfdyn.theory import le_jegelka as lj


def randomised(net, seed=0):
    """The same net with normal weights, biases too."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape)), net)


def random_graph(seed, sigma="leaky_relu(0.3)"):
    """Two inputs, the constant 1, six hidden vertices, shared weights, a constant one."""
    rng = np.random.default_rng(seed)
    edges = [
        (int(u), v)
        for v in range(3, 9)
        for u in rng.choice(v, size=min(v, 3), replace=False)
    ]
    idle = set(range(3, 9)) - {u for u, _ in edges}
    edges += [(v, 9) for v in sorted(idle | {7, 8})]
    fixed = edges.pop(4)
    parameters = [*range(len(edges) - 1), 0]
    values = rng.normal(size=len(edges) - 1)
    return gf.nets.Dag(
        edges,
        values,
        2,
        activation=sigma,
        parameters=parameters,
        constants={fixed: -0.7},
        constant=2,
    )


VERSIONS = ("corrected", "second", "first")
KEY = jr.key(0)
BUILDERS = {
    "relu": lambda: gf.nets.MLP([3, 4, 3, 1], key=KEY),
    "leaky": lambda: gf.nets.MLP([3, 4, 3, 1], key=KEY, activation="leaky_relu(0.2)"),
    "identity block": lambda: sequential(
        (3,), [resnet_identity(2), dense(1, "identity")], key=KEY
    ),
    "free block": lambda: sequential(
        (3,), [resnet_free(2, 3), dense(1, "identity")], key=KEY
    ),
    "conv": lambda: sequential(
        (4, 1), [conv(2, 2), conv(2, 2), dense(1, "identity")], key=KEY
    ),
    "bias": lambda: sequential(
        (3,), [dense(3, bias=True), dense(2, bias=True), dense(1, "identity")], key=KEY
    ),
    "graph 0": lambda: random_graph(0),
    "graph 1": lambda: random_graph(1),
    "graph 2": lambda: random_graph(2, "relu"),
}


def built(name):
    net = BUILDERS[name]()
    return net if name.startswith("graph") else randomised(net)


def inputs(net, samples=6, seed=1):
    return np.random.default_rng(seed).normal(size=(samples, net.in_size))


def problem_on(x, loss=gf.losses.logistic, seed=2):
    signs = np.sign(np.random.default_rng(seed).normal(size=(len(x), 1)))
    return gf.Problem(gf.Dataset(x, signs), loss)


def close(actual, expected, size=1.0, tolerance=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * size)


# --- Decomposition --------------------------------------------------------------------


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
    with pytest.raises(TypeError, match="net is a Problem, which has no graph"):
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


# --- Paths on kinks -------------------------------------------------------------------


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


# --- Jagged paths ---------------------------------------------------------------------


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


# --- Where the flow stands ------------------------------------------------------------


@eqx.filter_jit
def statements(problem, net, gates=None):
    """All of them in one program."""
    found = {
        "vertices": lj.vertex_wise(problem, net, gates),
        "lemma 4": lj.noninvariance(problem, net, gates),
        "ranks": lj.gram_velocity_ranks(problem, net, gates),
    }
    for version in VERSIONS:
        found[f"pairs {version}"] = lj.pairwise(problem, net, gates, version)
        found[f"matrix {version}"] = lj.matrix_wise(problem, net, gates, version)
    return found


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


# --- Edges ----------------------------------------------------------------------------


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


# --- Two opposed neurons: the first version is false ----------------------------------


ANGLE, SQUARE = 2 * np.pi / 3, 0.25
TIMES = np.array([0.0, 1.0, 10.0, 100.0, 1000.0])


@pytest.fixture(scope="module")
def opposed():
    """The problem, and the nets at the times in closed form."""
    problem, net = lj.counterexample()
    ratio = jnp.sqrt(lj.counterexample_square(TIMES) / SQUARE)
    return problem, jax.vmap(lambda c: jax.tree.map(lambda w: c * w, net))(ratio)


@eqx.filter_jit
def flowed(problem, net, steps=100, length=0.01):
    """The nets at ten times each of so many Runge–Kutta steps, the start among them."""

    def moved(net, velocity, length):
        return jax.tree.map(lambda w, v: w - length * v, net, velocity)

    def step(net, _):
        g1 = jax.grad(problem.risk)(net)
        g2 = jax.grad(problem.risk)(moved(net, g1, length / 2))
        g3 = jax.grad(problem.risk)(moved(net, g2, length / 2))
        g4 = jax.grad(problem.risk)(moved(net, g3, length))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, g1, g2, g3, g4)
        return moved(net, mean, length), net

    last, nets = jax.lax.scan(step, net, length=steps)
    return jax.tree.map(lambda w, end: jnp.append(w[::10], end[None], axis=0), nets, last)


def test_the_closed_form_of_the_counterexample(opposed):
    """The spec's numbers, SciPy's integrator, and the flow."""
    q = np.asarray(lj.counterexample_square(TIMES))
    np.testing.assert_allclose(
        q, [0.25, q[1], 2.5153195279, 6.1437070338, 8.9523576650], rtol=1e-10
    )
    solution = solve_ivp(
        lambda t, q: q / (1 + np.exp(q)), (0, 10), [1.0], "DOP853", rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(
        lj.counterexample_square(np.array([10.0]), 1.0)[0], solution.y[0, -1], rtol=1e-10
    )
    problem, nets = opposed
    x = np.asarray(problem.data.x)
    np.testing.assert_allclose(x[1], [-0.834512, 0.550990], atol=1e-6)
    flow = flowed(problem, rows(nets, 0))
    for end, closed in zip(flow.weights, nets.weights, strict=True):
        close(end[-1], closed[1], tolerance=1e-9)
    s = np.linalg.svd(nets.weights[0], compute_uv=False)
    close(s[:, 0] ** 2 / np.sum(s**2, axis=1), 0.75)
    close(s[:, 1] ** 2, q * (1 - abs(np.cos(ANGLE))))


def test_the_first_version_fails_on_it(opposed):
    """All that it assumes holds; M₁₂ = −q(1 + cos θ) moves, at a point and on the way."""
    problem, nets = opposed
    found = statements(problem, rows(nets, 0))
    assert found["matrix first"].verdict == found["pairs first"].verdict == "VIOLATED"
    drift = lj.matrix_wise_drift(problem, nets, version="first", tolerance=1e-9)
    assert drift.verdict == "VIOLATED"
    q = np.asarray(lj.counterexample_square(TIMES))
    close(drift.lhs[:, 1], -q * (1 + np.cos(ANGLE)))
    close(drift.lhs[:, [0, 3]], 0)
    seen = eqx.filter_jit(lj.regime)(problem, jnp.asarray(TIMES), nets)
    assert not np.any(seen.sign_changes) and not np.any(seen.gate_changes)
    assert seen.stable_signs_from == 0 and seen.smallest_limit > 0.2
    # θ stays on a ray, and R < ℓ(0)/N after some time.
    close(seen.distance, 0)
    assert lj.small_risk_separates(problem, rows(nets, -1)).verdict == "HOLDS"


def test_the_correction_holds_on_it(opposed):
    problem, nets = opposed
    found = statements(problem, rows(nets, 0))
    for version in ("corrected", "second"):
        assert found[f"pairs {version}"].verdict == "ASSUMPTIONS NOT MET"
        assert found[f"matrix {version}"].verdict == "HOLDS"
        drift = lj.matrix_wise_drift(problem, nets, version=version, tolerance=1e-9)
        assert drift.verdict == "HOLDS"
        np.testing.assert_array_equal(drift.applies, [[True, False, False, True]] * 5)
    assert found["vertices"].verdict == "HOLDS"
    assert lj.vertex_wise_drift(nets, tolerance=1e-9).verdict == "HOLDS"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: lj.counterexample(np.pi / 2), "angle=1.57"),
        (lambda: lj.counterexample(square=0.0), "square=0.0 must be positive"),
        (lambda: lj.counterexample_square(np.array([-1.0])), "the times ts 0 or more"),
    ],
)
def test_no_counterexample(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# --- Sliding neurons: the gap that the correction leaves ------------------------------


def nearly_sliding(seed):
    """Neuron 0 leaves x_2 for x_1 and is held at its kink; 1 sees both; 2 sees nothing."""
    x = np.array([[1.0, 0.0], [0.6, 0.8]])
    w1 = np.array([[0.8, -0.6], [1.2, 1.0], [-1.0, -1.0]])
    w1[0] += 0.005 * x[1]
    noise = 1 + 0.1 * np.random.default_rng(seed).uniform(-1, 1, size=4)
    w1[:2] *= noise[:2, None]
    net = gf.nets.MLP.from_weights([w1, np.array([[0.5, 0.5, 0.3]]) * noise[2]])
    problem = gf.Problem(
        gf.Dataset(x, np.array([[3.0], [-1.0]]) * noise[3]), gf.losses.squared
    )
    return problem, net


END, SAVES = 0.2, 13


@eqx.filter_jit
def slid(problem, net, ts):
    """The nets at the saves, and what happened at kinks."""
    traj = gf.solve(
        gf.GradientFlow(problem),
        net,
        ts=ts,
        kinks=8,
        solver=gf.solvers.ExactKinks(rtol=1e-10),
    )
    assert traj.kinks is not None
    return traj.net, traj.kinks


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_gap_of_the_correction(seed):
    """As printed it counts z = 0 as active: neurons 0 and 1 are alike while 0 slides, and
    the pair moves. With its gate counted all that is claimed holds."""
    problem, start = nearly_sliding(seed)
    nets, kinks = slid(problem, start, jnp.linspace(0, END, SAVES))
    assert not np.any(kinks.sliding[0][0])
    np.testing.assert_array_equal(
        np.argwhere(kinks.sliding[0][-1]), [[1, 0]], "neuron 0, on the second point"
    )
    before, after = (
        (rows(nets, i), tuple(gate[i] for gate in kinks.gates)) for i in (0, -1)
    )

    second = statements(problem, *before)["pairs second"]
    assert second.verdict == "HOLDS"
    np.testing.assert_array_equal(second.applies, [True, False, False])
    close(second.lhs[0], second.rhs[0], float(abs(second.lhs[0])))

    net, gates = after
    found = statements(problem, net, gates)
    second = found["pairs second"]
    assert second.applies[0] and second.verdict == "VIOLATED"
    # The gate, and the drift, by hand: z₀ at x₂ does not move
    w1, w2 = (np.asarray(w) for w in net.weights)
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)[:, 0]
    z = np.maximum(x @ w1.T, 0)
    r = (z @ w2[0] - y) / 2
    gate = -r[0] * (x[0] @ x[1]) / r[1]
    assert 0.1 < gate < 0.9
    close(gates[0][1], [gate, 1, 0], tolerance=1e-8)
    gap = (1 - gate) * r[1] * w2[0, 0] * z[1, 1]
    assert abs(gap) > 1e-2
    close(second.lhs[0] - second.rhs[0], -gap, tolerance=1e-8)

    assert not np.any(found["pairs corrected"].applies)
    assert found["matrix corrected"].verdict == "HOLDS"
    assert found["vertices"].verdict == "HOLDS"
    # Without gates, a neuron at a kink is alone.
    assert not np.any(statements(problem, net)["pairs corrected"].applies)


def test_the_gap_along_the_way():
    problem, net = nearly_sliding(0)
    nets, kinks = slid(problem, net, jnp.linspace(0, END, SAVES))
    drift = None
    for version in ("first", "second", "corrected"):
        drift = lj.matrix_wise_drift(problem, nets, kinks.gates, version, tolerance=1e-8)
        expected = "HOLDS" if version == "corrected" else "VIOLATED"
        assert drift.verdict == expected, version
    assert drift is not None
    # From where the two differ on, nothing is claimed of them.
    sliding = np.asarray(kinks.sliding[0][:, 1, 0])
    np.testing.assert_array_equal(drift.applies[:, 1], np.cumsum(sliding) == 0)
    vertices = lj.vertex_wise_drift(nets, tolerance=1e-8)
    assert vertices.lhs.shape == (SAVES, 3) and vertices.verdict == "HOLDS"
    # A step of gradient descent is no flow.
    step = jax.tree.map(
        lambda w, g: jnp.stack([w, w - g]), net, jax.grad(problem.risk)(net)
    )
    assert lj.vertex_wise_drift(step).verdict == "VIOLATED"


def test_the_drift_law_integrated():
    """By Gauss's rule before and after the neuron is caught, where the law jumps."""
    problem, net = nearly_sliding(0)
    _, kinks = slid(problem, net, jnp.linspace(0, END, SAVES))
    ends = np.array([0.0, float(kinks.time[0]), END])
    assert 0 < ends[1] < END
    points, weights = np.polynomial.legendre.leggauss(SAVES // 2)
    half, middle = np.diff(ends)[:, None] / 2, (ends[1:] + ends[:-1])[:, None] / 2
    ts = np.append(middle + half * points, END)
    nets, kinks = slid(problem, net, jnp.asarray(ts))

    @jax.jit
    @jax.vmap
    def law(net, gates):
        return gf.diagnostics.gram_drift(problem, net, gates)["layer 1"]

    rates = np.asarray(law(nets, kinks.gates))[:-1]
    integral = np.einsum("t,tuv->uv", (half * weights).ravel(), rates)
    moved = rows(nets, -1).conserved()[0].matrix - net.conserved()[0].matrix
    close(integral, moved, tolerance=1e-8)
    assert abs(moved[0, 1]) > 1e-3


def rows(net, i):
    return jax.tree.map(lambda leaf: leaf[i], net)


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


# --- Assumptions and claims -----------------------------------------------------------


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
