"""Theorems 4 and 5 of Timor, Vardi & Shamir: witnesses, bounds, certificates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from timor_deep_cases import absolute, line, outputs, relu_net, same_sign, sizes, square

import gfdyn as gf
from gfdyn.theory import timor


def widened(net, width):
    """The net with zeros added in hidden layers: of ranks that its shape does not tell."""
    grown = [n + (width - n) * (0 < i < net.degree) for i, n in enumerate(_widths(net))]
    return gf.nets.MLP.from_weights(
        [
            np.pad(w, [(0, after - w.shape[0]), (0, before - w.shape[1])])
            for w, before, after in zip(net.weights, grown[:-1], grown[1:], strict=True)
        ]
    )


def _widths(net):
    return [net.in_size, *(w.shape[0] for w in net.weights)]


# --- Witnesses -------------------------------------------------------------------------


@pytest.mark.parametrize("widths, depth", [((3, 5, 1), 3), ((3, 4, 6, 1), 7)])
def test_margin_witness(widths, depth):
    net, x = relu_net(widths), np.random.default_rng(1).normal(size=(40, widths[0]))
    witness = timor.maximum_margin_witness(net, depth)
    assert witness.degree == depth
    np.testing.assert_allclose(outputs(witness, x), outputs(net, x), rtol=0, atol=1e-12)
    largest, k = sizes(net).max(), len(widths) - 1
    bound = 2 * (2 / largest**2) ** (-k / depth) * (depth + 1)
    assert square(witness) <= bound * (1 + 1e-14)
    alpha = (math.sqrt(2) / largest) ** ((depth - k) / depth)
    beta = (math.sqrt(2) / largest) ** (-k / depth)
    np.testing.assert_allclose(witness.weights[0], alpha * net.weights[0], rtol=1e-14)
    np.testing.assert_allclose(witness.weights[k - 1][1], -witness.weights[k - 1][0])
    for w in witness.weights[k:-1]:
        np.testing.assert_allclose(w, beta * np.eye(2), rtol=1e-14)
    np.testing.assert_allclose(witness.weights[-1], [[beta, -beta]], rtol=1e-14)


def test_interpolating_witness_keeps_what_is_nonnegative():
    net, x = relu_net((3, 4, 6, 1), 3), np.random.default_rng(1).normal(size=(40, 3))
    witness = timor.minimum_norm_witness(net, 6)
    expected = outputs(net, x)
    assert expected.min() < -0.1 and expected.max() > 0.1
    positive = np.maximum(expected, 0)
    np.testing.assert_allclose(outputs(witness, x), positive, rtol=0, atol=1e-12)
    assert square(witness) <= 6 * sizes(net).max() ** (2 * 3 / 6) * (1 + 1e-14)
    assert [w.shape for w in witness.weights[3:]] == [(1, 1)] * 3


def test_equal_layers():
    """The same outputs; of the witnesses it gives the sharp norms."""
    net, x = relu_net((3, 5, 1)), np.random.default_rng(1).normal(size=(10, 3))
    product = np.prod(sizes(net))
    for make, factor in (
        (timor.minimum_norm_witness, 1.0),
        (timor.maximum_margin_witness, 2 ** (4 / 5)),
    ):
        witness = make(net, 5)
        equal = timor.equal_layers(witness)
        np.testing.assert_allclose(sizes(equal), sizes(equal)[0], rtol=1e-14)
        np.testing.assert_allclose(outputs(equal, x), outputs(witness, x), atol=1e-13)
        assert square(equal) == pytest.approx(5 * product ** (2 / 5) * factor, rel=1e-13)
        assert square(equal) < square(witness)
    zero = jax.tree.map(jnp.zeros_like, net)
    assert square(timor.equal_layers(zero)) == 0


@pytest.mark.parametrize("make", [timor.minimum_norm_witness, timor.maximum_margin_witness])
def test_witnesses_that_are_none(make, unhooked):
    with pytest.raises(ValueError, match="depth=2 must exceed the depth of the net, k=2"):
        make(relu_net((3, 4, 1)), 2)
    with pytest.raises(ValueError, match="net has 2 outputs; the theorems are for one"):
        make(relu_net((3, 4, 2)), 4)
    with pytest.raises(ValueError, match="of at least two layers"):
        make(relu_net((3, 1)), 4)
    with pytest.raises(ValueError, match="activations \\['identity'\\]"):
        make(gf.nets.MLP.from_weights(relu_net((3, 4, 1)).weights, "identity"), 4)
    with pytest.raises(TypeError, match="depth=3.0 must be an integer"):
        make(relu_net((3, 4, 1)), 3.0)
    with pytest.raises(TypeError, match="gf.nets.MLP only"):
        make("net", 4)


# --- Theorems --------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [3, 4, 8])
def test_bounds(depth):
    net = relu_net((3, 4, 6, 1))
    size, product = sizes(net).max(), np.prod(sizes(net))
    if depth == 3:
        with pytest.raises(ValueError, match="depth=3 must exceed"):
            timor.minimum_norm_bound(net, depth)
        with pytest.raises(ValueError, match="depth=3 must exceed"):
            timor.maximum_margin_bound(net, depth)
        return
    ratio = 3 / depth
    assert timor.minimum_norm_bound(net, depth) == pytest.approx(size**ratio, rel=1e-14)
    sharp = timor.minimum_norm_bound(net, depth, sharp=True)
    assert sharp == pytest.approx(product ** (1 / depth), rel=1e-14)
    paper = math.sqrt(2) * (size / math.sqrt(2)) ** ratio * math.sqrt((depth + 1) / depth)
    assert timor.maximum_margin_bound(net, depth) == pytest.approx(paper, rel=1e-14)
    sharp = timor.maximum_margin_bound(net, depth, sharp=True)
    expected = product ** (1 / depth) * 2 ** ((depth - 3 + 1) / (2 * depth))
    assert sharp == pytest.approx(expected, rel=1e-14)
    assert expected <= paper


def test_bounds_of_the_table():
    """B = √2: 1/b as the specification has them, for k' = 3 and 8."""
    for depth, low, high, sharp in (
        (3, 0.79370, 0.61237, 0.62996),
        (8, 0.91700, 0.66667, 0.67713),
    ):
        assert 1 / timor.minimum_norm_bound(absolute(), depth) == pytest.approx(
            low, abs=6e-6
        )
        found = 1 / timor.maximum_margin_bound(same_sign(), depth)
        assert found == pytest.approx(high, abs=6e-6)
        found = 1 / timor.maximum_margin_bound(same_sign(), depth, sharp=True)
        assert found == pytest.approx(sharp, abs=6e-6)


def test_theorem_4():
    problem = line([1.0, 1.0])
    net = widened(timor.minimum_norm_witness(absolute(), 4), 3)
    for sharp in (False, True):
        check = timor.minimum_norm_ratios(problem, net, absolute(), sharp=sharp)
        assert check.verdict == "HOLDS"
        np.testing.assert_allclose(check.lhs, [2**-0.25, 1], rtol=1e-14)
        np.testing.assert_allclose(check.rhs, [1, 2**0.25], rtol=1e-14)
    # Equations 3 and 4 are one statement.
    np.testing.assert_allclose(check.lhs * check.rhs[::-1], 1, rtol=1e-14)
    norms = timor.optimal_layer_norms(problem, net, absolute())
    assert norms.verdict == "HOLDS" and norms.lhs.shape == (4,)
    np.testing.assert_allclose(norms.lhs, norms.rhs, rtol=1e-14)


def test_theorem_5():
    """The best net known, [1; −1], I, [1, −1]; the witness has rank one and more norm."""
    problem = line([1, -1], gf.losses.logistic)
    first, last = same_sign().weights
    net = gf.nets.MLP.from_weights([first, np.eye(2), last])
    check = timor.maximum_margin_ratios(problem, net, same_sign())
    # Of width 2 the mean is at least (1 + 1/√2 + 1)/3 whatever the net.
    assert check.verdict == "VACUOUS" and check.applies.all() and check.holds.all()
    mean = (1 + math.sqrt(0.5) + 1) / 3
    assert timor.norm_ratio_floor(net) == pytest.approx(mean, rel=1e-15)
    np.testing.assert_allclose(check.lhs, [math.sqrt(3 / 8), 1 / mean], rtol=1e-13)
    np.testing.assert_allclose(check.rhs, [mean, math.sqrt(8 / 3)], rtol=1e-13)
    sharp = timor.maximum_margin_ratios(problem, net, same_sign(), sharp=True)
    assert sharp.holds.all() and (sharp.lhs > check.lhs)[0]
    assert timor.optimal_layer_norms(problem, net, same_sign()).verdict == "HOLDS"
    witness = timor.equal_layers(timor.maximum_margin_witness(same_sign(), 3))
    np.testing.assert_allclose(gf.diagnostics.norm_ratio(problem, witness), 1, rtol=1e-14)
    norms = timor.optimal_layer_norms(problem, witness, same_sign(), sharp=True)
    np.testing.assert_allclose(norms.lhs, norms.rhs, rtol=1e-14)
    assert square(witness) == pytest.approx(3 * 2 ** (4 / 3), rel=1e-14)
    assert square(net) == pytest.approx(6, rel=1e-14)


def test_assumptions_are_told():
    problem = line([1.0, 1.0])
    net = timor.minimum_norm_witness(absolute(), 3)

    def unmet(problem, net):
        check = timor.minimum_norm_ratios(problem, net, absolute())
        return {name for name, met in check.assumptions.items() if not met}

    assert unmet(problem, net) == set()
    assert unmet(line([2.0, 2.0]), net) == {"feasible", "reference"}
    assert unmet(line([1.0, -1.0]), net) == {"feasible", "reference", "nonnegative"}
    first, second, third = net.weights
    longer = gf.nets.MLP.from_weights([2 * first, second, third / 2])
    assert unmet(problem, longer) == {"small"}
    far = gf.Problem(gf.Dataset(1.1 * problem.data.x, problem.data.y), gf.losses.squared)
    assert {"feasible", "sample"} <= unmet(far, net)
    margins = line([1, -1], gf.losses.exponential)
    deeper = timor.maximum_margin_witness(same_sign(), 3)
    half = jax.tree.map(lambda w: 0.5 * w, deeper)
    check = timor.maximum_margin_ratios(margins, half, same_sign())
    assert check.verdict == "ASSUMPTIONS NOT MET" and "not feasible" in str(check)


def test_layers_of_an_optimum():
    problem = line([1.0, 1.0])
    net = timor.minimum_norm_witness(absolute(), 3)
    assert timor.equal_layer_norms(problem, net).verdict == "HOLDS"
    first, second, third = net.weights
    longer = gf.nets.MLP.from_weights([2 * first, second, third / 2])
    assert timor.equal_layer_norms(problem, longer).verdict == "VIOLATED"
    check = timor.optimal_layer_norms(problem, longer, absolute())
    assert check.verdict == "VIOLATED"
    np.testing.assert_array_equal(check.holds, [False, True, True])


def test_statements_that_are_refused():
    squared, margins = line([1.0, 1.0]), line([1, -1], gf.losses.exponential)
    net = timor.minimum_norm_witness(absolute(), 3)
    with pytest.raises(ValueError, match="loss Exponential; this is about interpolation"):
        timor.minimum_norm_ratios(margins, net, absolute())
    with pytest.raises(ValueError, match="loss Squared; this is about a margin"):
        timor.maximum_margin_ratios(squared, net, absolute())
    with pytest.raises(ValueError, match="depth=2 must exceed"):
        timor.minimum_norm_ratios(squared, absolute(), absolute())
    with pytest.raises(ValueError, match="must be a ReLU network"):
        bent = gf.nets.MLP.from_weights(net.weights, "identity")
        timor.minimum_norm_ratios(squared, bent, absolute())
    linear = gf.Problem(squared.data, gf.losses.linear)
    with pytest.raises(ValueError, match="problem has the loss Linear; give it"):
        timor.kkt(linear, net)


# --- Certificate -----------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(1, 1, 1), (3, 5, 4, 2), (2, 7, 6, 5, 4, 3, 1)])
def test_certificate_of_random_nets(widths):
    """2000 of each: never violated, and its sides are the formulas."""
    rng = np.random.default_rng(0)
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    scales = np.exp(rng.normal(size=(2000, len(shapes))))
    stacks = [
        s[:, None, None] * rng.normal(size=(2000, *shape)) ** 3
        for s, shape in zip(scales.T, shapes, strict=True)
    ]
    nets = jax.vmap(lambda *w: gf.nets.MLP.from_weights(w))(*map(jnp.asarray, stacks))
    x = rng.normal(size=(6, widths[0]))
    problem = gf.Problem(gf.Dataset(x, np.ones((6, widths[-1]))), gf.losses.squared)
    check = jax.jit(jax.vmap(lambda net: timor.ratio_certificate(problem, net)))(nets)
    assert check.holds.all() and check.lhs.shape == (2000, 3)
    values = [np.linalg.svd(w, compute_uv=False) for w in stacks]
    norms = np.stack([np.linalg.norm(s, axis=1) for s in values])
    ratios = np.stack([s[:, 0] for s in values]) / norms
    f = x.T
    for i, w in enumerate(stacks):
        f = w @ f
        f = np.maximum(f, 0) if i < len(stacks) - 1 else f
    gain = np.max(np.linalg.norm(f, axis=1) / np.linalg.norm(x, axis=1), axis=1)
    depth = len(shapes)
    expected = [
        math.sqrt(depth) * gain ** (1 / depth) / np.linalg.norm(norms, axis=0),
        (gain / norms.prod(0)) ** (1 / depth),
        ratios.prod(0) ** (1 / depth),
        ratios.mean(0),
    ]
    np.testing.assert_allclose(check.lhs.T, expected[:3], rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(check.rhs.T, expected[1:], rtol=1e-10, atol=1e-300)
    floor = np.mean([1 / math.sqrt(min(shape)) for shape in shapes])
    assert timor.norm_ratio_floor(jax.tree.map(lambda w: w[0], nets)) == floor
    np.testing.assert_array_equal(check.vacuous, check.lhs <= floor)


def test_certificate_is_sharp_and_safe():
    problem, net = line([1.0, 1.0]), relu_net((1, 1, 1, 1))
    equal = timor.equal_layers(jax.tree.map(jnp.abs, net))
    check = timor.ratio_certificate(problem, equal)
    np.testing.assert_allclose(check.lhs, 1, rtol=1e-14)
    np.testing.assert_allclose(check.rhs, 1, rtol=1e-14)
    tiny = jax.tree.map(lambda w: 1e-200 * w, equal)
    np.testing.assert_allclose(timor.ratio_certificate(problem, tiny).lhs, 0, atol=1)
    zero = jax.tree.map(jnp.zeros_like, net)
    check = timor.ratio_certificate(problem, zero)
    assert check.verdict == "VACUOUS"
    np.testing.assert_array_equal(check.rhs, 0)
    enlarging = gf.nets.MLP.from_weights(net.weights, "leaky_relu(-1.5)")
    with pytest.raises(ValueError, match="needs |slope| ≤ 1"):
        timor.ratio_certificate(problem, enlarging)


def test_float32():
    """Statements keep the dtype, and hold up to its rounding."""
    data = line([1.0, 1.0]).data.astype("float32")
    problem = gf.Problem(data, gf.losses.squared)
    short = gf.nets.MLP.from_weights([w.astype("float32") for w in absolute().weights])
    net = widened(timor.minimum_norm_witness(short, 4), 3)
    checks = (
        timor.minimum_norm_ratios(problem, net, short),
        timor.equal_layer_norms(problem, net),
        timor.optimal_layer_norms(problem, net, short),
        timor.ratio_certificate(problem, net),
    )
    for check in checks:
        assert check.verdict == "HOLDS" and check.lhs.dtype == jnp.float32
    assert gf.diagnostics.mean_norm_ratio(problem, net).dtype == jnp.float32
