"""Networks of layers and of single neurons, against NumPy and against each other."""

import json
import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from fixtures import distance

import gfdyn as gf
from gfdyn.kinks import shared_kinks
from gfdyn.nets import (
    conv,
    dense,
    densely_connected,
    in_layers,
    resnet_branch,
    resnet_diagonal,
    resnet_free,
    resnet_identity,
    sequential,
)
from gfdyn.run._serialise import decode, encode


LEAKY = "leaky_relu(0.1)"
# input shape and blocks
NETS = {
    "dense": (3, [dense(4), dense(3, LEAKY), dense(2, "identity")]),
    "biased": (3, [dense(4, bias=True), dense(3, LEAKY, True), dense(1, "identity", True)]),
    "conv": ((5, 2), [conv(3, 3, 2, 1), conv(2, 2, 1, "SAME"), dense(1, "identity")]),
    "conv-2d": (
        (4, 5, 2),
        [
            conv(2, (3, 2), (1, 2), "SAME", bias=True),
            resnet_free(3, 4),
            dense(1, "identity"),
        ],
    ),
    "residual": (
        3,
        [
            dense(4),
            resnet_identity(3, LEAKY),
            resnet_diagonal(5),
            resnet_free(2, 3),
            dense(1, "identity"),
        ],
    ),
    "branches": (
        3,
        [
            dense(4, "identity"),
            resnet_branch(3),
            resnet_branch(2, LEAKY),
            dense(2, "identity"),
        ],
    ),
    "densely connected": (3, [dense(4), densely_connected([2, 3]), dense(2, "identity")]),
}
nets = pytest.mark.parametrize("name", NETS)


def build(name, seed=0):
    """The net, with biases that are not 0, and samples."""
    shape, blocks = NETS[name]
    net = jax.tree.map(
        lambda w: w + 0.2, sequential(shape, blocks, key=jr.key(seed), scale=0.6)
    )
    x = np.random.default_rng(seed).normal(size=(6, net.in_size))
    return net, jnp.asarray(x)


def flat(tree):
    return np.concatenate([np.ravel(w) for w in jax.tree.leaves(tree)])


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


# --- Forward, by hand -----------------------------------------------------------------


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


# --- Layers against vertices ----------------------------------------------------------


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


# --- Kinks that coincide --------------------------------------------------------------


def groups(net, x):
    """For each hidden layer the sets of sites (sample, unit) that share a kink."""
    found = []
    lines, sites = jax.jit(lambda net: (shared_kinks(net, x), net.preactivations(x)))(net)
    for firsts in in_layers(lines.now.first, sites):
        sets: dict[int, set] = {}
        for site, first in np.ndenumerate(firsts):
            sets.setdefault(int(first), set()).add(site)
        found.append([s for s in sets.values() if len(s) > 1])
    return found


def test_multiples_share_kinks_in_all_layers_and_antipodes_in_the_first():
    net = gf.nets.MLP([3, 1, 2, 1], key=jr.key(0))
    a, b = np.random.default_rng(0).normal(size=(2, 3))
    first, second = groups(net, jnp.asarray([a, b, 2 * a, -b]))
    assert first == [{(0, 0), (2, 0)}, {(1, 0), (3, 0)}]
    # Through one unit alone, all samples on a side of it see the same kinks; that is found
    # only where the ratio does not depend on θ.
    assert {(0, 0), (2, 0)} in second and {(0, 1), (2, 1)} in second
    assert not any({1, 3} <= {sample for sample, _ in s} for s in second)


def test_with_biases_only_equal_samples_share_kinks():
    net = sequential(3, [dense(1, bias=True), dense(1, "identity")], key=jr.key(0))
    a, b = np.random.default_rng(0).normal(size=(2, 3))
    assert groups(net, jnp.asarray([a, b, 2 * a, -b, b])) == [[{(1, 0), (4, 0)}]]


def test_equal_patches_share_kinks_and_empty_ones_have_none():
    net = sequential((6, 1), [conv(2, 2), dense(1, "identity")], key=jr.key(0))
    x = jnp.asarray([[1.0, 2.0, 4.0, 0.0, 0.0, 0.0], [-3.0, 5.0, 1.0, 0.5, -3.0, 5.0]])
    lines = jax.jit(shared_kinks)(net, x)
    # Patches (1, 2) and (2, 4); (1, 0.5) is none of theirs; (−3, 5) twice. Two channels.
    # Position p, channel c is unit 2p + c; (4, 0) of the first sample has no partner.
    expected = [{(0, c), (0, 2 + c)} for c in (0, 1)]
    expected += [{(1, c), (1, 8 + c)} for c in (0, 1)]
    assert groups(net, x) == [expected]
    ratio = np.asarray(lines.now.ratio).reshape(2, 10)
    np.testing.assert_allclose(ratio[0, 2:4], 2.0, rtol=1e-12)
    np.testing.assert_array_equal(ratio[0, 6:], 0.0)
    norms = net.gradient_norms(x, (jnp.ones((2, 10)),))[0]
    np.testing.assert_array_equal(np.asarray(norms[0] == 0), [False] * 6 + [True] * 4)


def test_neurons_with_one_input_share_their_kink_among_samples():
    net = gf.nets.Dag([(0, 2), (1, 3), (0, 3), (2, 4), (3, 4)], np.ones(5), 2)
    x = jnp.asarray([[1.0, 0.3], [-2.0, 0.4], [3.0, -0.7]])
    assert groups(net, x) == [[{(0, 0), (1, 0), (2, 0)}]]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_thousand_sharers_and_none_too_many(dtype):
    rng = np.random.default_rng(0)
    base = rng.normal(size=(100, 3))
    which = rng.integers(100, size=1000)
    x = (
        base[which]
        * rng.uniform(0.5, 2, 1000)[:, None]
        * rng.choice([-1, 1], 1000)[:, None]
    )
    net = gf.nets.MLP([3, 1, 1], key=jr.key(0), dtype=dtype)
    line = jax.jit(shared_kinks)(net, jnp.asarray(x, dtype)).now
    first = np.array([np.flatnonzero(which == w)[0] for w in which])
    np.testing.assert_array_equal(line.first, first)


# --- Flows ----------------------------------------------------------------------------

FLOWS = {
    "conv": ((4, 1), [conv(3, 2, padding=1), dense(1, "identity")], 12),
    "biased residual": (
        2,
        [dense(4, bias=True), resnet_identity(3, bias=True), dense(1, "identity", True)],
        12,
    ),
}


@pytest.mark.parametrize(
    "name", ["conv", pytest.param("biased residual", marks=pytest.mark.slow)]
)
def test_exact_flow_through_slides(name):
    """Gradient descent converges to it at first order; what is conserved stays."""
    shape, blocks, samples = FLOWS[name]
    net = sequential(shape, blocks, key=jr.key(0), scale=0.5)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(samples, net.in_size)), rng.normal(size=(samples, 1))
    if name == "conv":
        # Patches that are parallel, and that are empty
        x[:, 1] = np.where(np.arange(samples) % 3 == 0, 0, x[:, 1])
        x[0], x[1] = 0.0, [1.0, 2.0, 2.0, 4.0]
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    solver = gf.solvers.ExactKinks(rtol=1e-8)
    t1 = 20.0
    exact = gf.solve(gf.GradientFlow(problem), net, t1=t1, ts=[t1], solver=solver)
    assert int(exact.stats["num_slides"]) >= 3
    assert exact.certificate.balance_drift <= 100 * 1e-8
    assert exact.certificate.energy_residual <= 1000 * 1e-8
    gaps = []
    for step in (1e-2, 1e-3):
        descent = gf.descend(problem, net, step, round(t1 / step))
        gaps.append(np.linalg.norm(flat(descent.final) - flat(exact.final)))
    assert 5 < gaps[0] / gaps[1] < 20, gaps


def test_biased_nets_have_no_polar_coordinates():
    net, x = build("biased")
    problem = gf.Problem(gf.Dataset(np.asarray(x), np.ones((6, 1))), gf.losses.squared)
    with pytest.raises(ValueError, match="a LayeredNet that is not positively homogeneous"):
        gf.solve(gf.EscapeFlow(problem), net, t1=1.0)


def test_trajectories_are_labelled_and_stored(tmp_path):
    net, x = build("biased")
    problem = gf.Problem(gf.Dataset(np.asarray(x), np.ones((6, 1))), gf.losses.squared)
    record = {"norms": gf.diagnostics.layer_norms}
    traj = gf.descend(problem, net, 0.01, 2, save_every=1, record=record)
    assert np.shape(traj.records["norms"]) == (3, 3)
    traj.save(tmp_path / "run.nc")
    loaded = gf.load(tmp_path / "run.nc")
    assert jax.tree.structure(loaded.final) == jax.tree.structure(traj.final)
    assert distance(loaded.final, traj.final) == 0
    assert set(net.parameter_names) <= set(loaded.to_xarray())
    gap = gf.distance(loaded, traj)
    assert np.all(gap.total == 0) and gap.layers.shape == (3, 3)


@nets
def test_every_architecture_can_be_written_to_a_file(name):
    net, _ = build(name)
    for subject in (net, gf.nets.as_dag(net)):
        arrays = {}
        tree = json.loads(json.dumps(encode(subject, "net", arrays)))
        again = decode(tree, arrays, "net")
        assert jax.tree.structure(again) == jax.tree.structure(subject)
        np.testing.assert_array_equal(flat(again), flat(subject))


def test_least_subgradient_is_the_velocity_where_a_convolution_slides():
    shape, blocks, samples = FLOWS["conv"]
    net = sequential(shape, blocks, key=jr.key(0), scale=0.5)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(samples, 4)), rng.normal(size=(samples, 1))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    least = jax.jit(gf.diagnostics.minimum_norm_subgradient)(problem, net)
    plain = jax.jit(jax.grad(problem.risk))(net)
    np.testing.assert_allclose(flat(least.gradient), flat(plain), rtol=1e-9, atol=1e-12)
    assert bool(least.converged)


# --- Errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, blocks, message",
    [
        (3, [], "blocks is empty; give at least dense(OUTPUTS, 'identity')"),
        (3, [dense(2)], "the last layer has activation='relu', but outputs are linear"),
        (3, [conv(2, 2)], "conv comes from a layer of shape (3,); it needs one to three"),
        ((3, 1), [conv(2, 4)], "a window (4,) does not fit into the grid (3,)"),
        ((3, 1), [conv(2, 2, padding="FULL")], "padding='FULL'; use 'VALID', 'SAME'"),
        ((3, 1), [conv(2, (2, 2))], "window=(2, 2) must be one positive number, or 1"),
        (
            3,
            [densely_connected([2]), resnet_identity(2)],
            "resnet_identity cannot follow a concatenation; put a dense or conv layer",
        ),
    ],
    ids=[
        "empty",
        "relu-output",
        "no-grid",
        "window",
        "padding",
        "window-2d",
        "concatenated",
    ],
)
def test_blocks_that_do_not_fit(shape, blocks, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sequential(shape, blocks, key=jr.key(0))


def layer(width, *parts, bias=None):
    sources, connections = zip(*parts, strict=True)
    return gf.nets.Layer(connections, bias, sources, gf.nets.relu(), (width,))


W = gf.nets.Dense(jnp.ones((3, 3)))


@pytest.mark.parametrize(
    "layers, message",
    [
        ([], "layers is empty; give at least the output layer"),
        ([layer(3, (1, W))], "layer 1 has sources=(1,); they must be layers before it"),
        (
            [layer(3, (0, gf.nets.Identity()))],
            "layer 1 has no trained weights but activation='relu'; a sum is linear, join",
        ),
        ([layer(2, (0, W))], "layer 1 has 2 units, but the connection from 0 leads to 3"),
        (
            [layer(3, (0, W)), layer(3, (0, W))],
            "layer 1 leads nowhere; only the last one may",
        ),
        (
            [layer(3, (0, W), bias=jnp.ones(2))],
            "layer 1 has a bias of shape (2,); it has one for each of its 3 channels",
        ),
        (
            [layer(2, (0, gf.nets.Dense(jnp.ones((2, 4)))))],
            "Dense has weights (2, 4) but comes from 3 units; it must have 3 columns",
        ),
        (
            [layer(3, (0, gf.nets.Diagonal(jnp.ones(2))))],
            "Diagonal has 2 weights but comes from 3 units; it must have one for each",
        ),
    ],
)
def test_layers_that_do_not_fit(layers, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gf.nets.LayeredNet((3,), layers)


@pytest.mark.parametrize(
    "edges, values, options, message",
    [
        ([(0, 2), (0, 2)], [1.0, 2.0], {}, "edges has (0, 2) twice; give one edge with"),
        ([(0, 1)], [1.0], {}, "edges has (0, 1), which leads into an input"),
        ([(0, 2), (3, 4)], [1.0, 2.0], {}, "no edge leads to vertex 3, which is none of"),
        ([(0, 2), (2, 3), (3, 2), (3, 4)], [1.0] * 4, {}, "edges go around a circle"),
        ([(0, 2)], [1.0, 2.0], {}, "values has 2 weights, but the edges have the weights"),
        ([(0, 2)], [1.0], {"parameters": [0, 0]}, "parameters has 2 entries for 1 edges"),
        ([(0, 2), (2, 3)], [1.0, 2.0], {"activation": {}}, "activation has no entry for"),
        ([], np.zeros(0), {}, "edges is empty, or goes round in circles"),
    ],
)
def test_graphs_that_are_none(edges, values, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gf.nets.Dag(edges, values, 2, **options)


def test_kink_count_is_for_chains():
    net, x = build("conv")
    problem = gf.Problem(gf.Dataset(np.asarray(x), np.ones((6, 1))), gf.losses.squared)
    with pytest.raises(TypeError, match="net is a LayeredNet; kink_count is for"):
        gf.diagnostics.kink_count(problem, net)
