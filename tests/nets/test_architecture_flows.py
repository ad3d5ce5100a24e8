"""Kinks that coincide in networks of layers, their flows, and errors."""

import json
import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from architecture_cases import build, flat, nets
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


# --- Kinks that coincide ---------------------------------------------------------------


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


# --- Flows -----------------------------------------------------------------------------


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


# --- Errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, blocks, message",
    [
        (3, [], "blocks is empty; give at least dense(OUTPUTS, 'identity')"),
        (3, [dense(2)], "the last layer has activation='relu', but outputs are linear"),
        (3, [conv(2, 2)], "conv comes from a layer of shape (3,); it needs one to three"),
        ((3, 1), [conv(2, 4)], "a window (4,) does not fit into the grid (3,)"),
        ((3, 1), [conv(2, 2, padding="FULL")], "padding='FULL'; use 'VALID', 'SAME'"),
        ((3, 1), [conv(2, (2, 2))], "window=(2, 2) must be one positive whole number"),
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


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_sizes_of_blocks_are_whole_numbers(size):
    """As they are given, and before there is a network."""
    said = f"={size} must be an integer of at least 1."
    blocks = {
        "width": [dense, lambda size: resnet_free(2, size)],
        "hidden": [resnet_branch, resnet_identity, resnet_diagonal],
        "channels": [lambda size: conv(size, 2)],
        r"widths\[1\]": [lambda size: densely_connected([2, size])],
    }
    blocks["hidden"].append(lambda size: resnet_free(size, 2))
    for name, makers in blocks.items():
        for make in makers:
            with pytest.raises(ValueError, match=name + said):
                make(size)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("option", ["window", "strides"])
def test_windows_are_whole_numbers(option):
    for size in (0, 1.5, (1.5,)):
        block = conv(2, **{"window": 2, option: size})
        message = re.escape(f"{option}={size} must be one positive whole number, or 1")
        with pytest.raises(ValueError, match=message):
            sequential((3, 1), [block], key=jr.key(0))


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
    with pytest.raises(
        TypeError, match="net is a LayeredNet, whose layers are not one matrix"
    ):
        gf.diagnostics.kink_count(problem, net)
