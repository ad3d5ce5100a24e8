"""Closed forms and certificates of escape directions: against NumPy, scipy and grids."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.optimize
from fixtures import all_active, all_active_speed, biased_net, float_dtypes, linear_problem

import gfdyn as gf
from gfdyn import escape


residual = escape.clarke_residual
ROOT2 = np.sqrt(2)


def problem_of(x, g, dtype: type = np.float64):
    """The problem with these inputs (N, d) and this cost gradient at zero (N, k)."""
    data = gf.Dataset(np.asarray(x, dtype), -np.asarray(g, dtype))
    return gf.Problem(data, gf.losses.linear, reduction="sum")


def example_one(num_samples: int = 8):
    return gf.Problem(gf.data.circle(num_samples), gf.losses.squared, reduction="sum")


def arrays(problem):
    return np.asarray(problem.data.x), np.asarray(problem.cost_gradient_at_zero)


def matrices(net):
    return [np.asarray(w, float) for w in net.weights]


def slopes(net):
    return [sigma.slope for sigma in net.activations]


def speed_of(problem, net):
    """−⟨G, f(X)⟩, in plain NumPy; the net must be on its sphere."""
    x, g = arrays(problem)
    weights = matrices(net)
    assert sum(np.sum(w**2) for w in weights) == pytest.approx(len(weights), rel=1e-12)
    return -np.sum(g * reference.forward(weights, slopes(net), x)[0])


def gradient(weights, gates, x, cotangent):
    """∇⟨cotangent, f⟩ by backpropagation through gates (N, n_l)."""
    entering = [x]
    for w, gate in zip(weights[:-1], gates, strict=True):
        entering.append(gate * (entering[-1] @ w.T))
    signal, gradients = cotangent, []
    for layer in reversed(range(len(weights))):
        gradients.insert(0, signal.T @ entering[layer])
        if layer:
            signal = gates[layer - 1] * (signal @ weights[layer])
    return reference.flatten(gradients)


def least_residual(problem, net, speed, above=None):
    """min ‖g_λ + sρ‖ over the gates λ of the first layer at kinks, by bounded least
    squares; those of further layers follow the sign of z, unless given as `above`."""
    x, g = arrays(problem)
    weights = matrices(net)
    zs = reference.forward(weights, slopes(net), x)[1]
    gates = [np.where(z > 1e-9, 1.0, a) for z, a in zip(zs, slopes(net), strict=True)]
    if above is not None:
        gates[1:] = above
    base = gradient(weights, gates, x, g) + speed * reference.flatten(weights)
    columns = []
    for i, j in np.argwhere(np.abs(zs[0]) <= 1e-9) if zs else []:
        opened = gates[0].copy()
        opened[i, j] = 1.0
        changed = gradient(weights, [opened, *gates[1:]], x, g)
        columns.append(changed + speed * reference.flatten(weights) - base)
    columns = [c for c in columns if np.linalg.norm(c) > 1e-12]
    if not columns:
        return np.linalg.norm(base)
    matrix = np.stack(columns, axis=1)
    found = scipy.optimize.lsq_linear(matrix, -base, (0, 1), method="bvls", tol=1e-15)
    return np.linalg.norm(base + matrix @ found.x)


def assert_random_nets_slower(x, g, speed):
    """Thousand random nets of three layers, each layer of norm 1."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        shapes = (4, x.shape[1]), (2, 4), (g.shape[1], 2)
        weights = [rng.normal(size=shape) for shape in shapes]
        scale = np.prod([np.linalg.norm(w) for w in weights])
        a = np.maximum(np.maximum(x @ weights[0].T, 0) @ weights[1].T, 0)
        assert abs(np.sum(g * (a @ weights[2].T))) <= speed * scale


def layer_sizes(net):
    return [np.linalg.norm(w) for w in matrices(net)]


# --- Example 1 of Bantzis et al. --------------------------------------------------------


def test_example_one_is_blind_to_linear_nets():
    x, g = arrays(example_one())
    j = np.arange(1, 9)
    np.testing.assert_array_equal(g[:, 0], (-1.0) ** j)
    assert x[0] == pytest.approx([1 / ROOT2, 1 / ROOT2])
    assert np.abs(escape.linear_map(example_one())).max() <= 1e-15
    for problem in (example_one(), problem_of(np.eye(2), np.zeros((2, 1)))):
        for depth in (1, 3):
            with pytest.raises(ValueError, match="0 up to rounding: linear nets see"):
                escape.linear_optimum(problem, depth)


def test_rank_one_family():
    """Equation 6, in both forms, against the definition."""
    problem = example_one()
    angles = np.linspace(-1.0, 7.0, 41)
    speeds = np.asarray(escape.rank_one_speed_at(angles))
    for angle, speed in zip(angles, speeds, strict=True):
        net = escape.circle_rank_one(angle)
        xi = angle % (np.pi / 4)
        printed = np.cos(xi + np.pi / 4) - np.cos(xi) + np.cos(xi - np.pi / 4)
        assert abs(speed - abs(printed - np.cos(xi - np.pi / 2))) <= 1e-12
        assert abs(speed_of(problem, net) - speed) <= 1e-12
        first = [[np.cos(angle), np.sin(angle)]]
        np.testing.assert_allclose(net.weights[0], first, atol=1e-15)
        assert float(net.weights[1][0, 0]) == 1
    cusps = escape.rank_one_speed_at(np.arange(8) * np.pi / 4 + 1e-16)
    np.testing.assert_allclose(cusps, ROOT2 - 1, rtol=1e-14)
    assert np.max(speeds) <= ROOT2 - 1
    np.testing.assert_allclose(escape.rank_one_speed_at(np.pi / 8), 0, atol=1e-15)
    for k in range(3):
        at, beside = (escape.circle_rank_one(k * np.pi / 4 + d) for d in (0, 0.05))
        assert residual(problem, widened(at)) <= 1e-12
        speed = float(escape.rank_one_speed_at(0.05))
        expected = least_residual(problem, beside, speed)
        assert residual(problem, widened(beside)) == pytest.approx(expected, rel=1e-9)
        assert expected >= 1


def widened(net):
    """With zero neurons, to the shape of the rank-two direction: compiled once."""
    first, second, last = net.weights
    first, second = jnp.pad(first, [(0, 3), (0, 0)]), jnp.pad(second, [(0, 0), (0, 3)])
    return gf.nets.MLP.from_weights([first, second, last])


def test_rank_two_direction():
    problem, net = example_one(), escape.circle_rank_two()
    assert speed_of(problem, net) == pytest.approx(0.5, abs=1e-15)
    assert layer_sizes(net) == pytest.approx([1, 1, 1], abs=1e-15)
    assert [np.linalg.matrix_rank(w) for w in matrices(net)] == [2, 1, 1]
    spectrum = np.linalg.svd(matrices(net)[0])[1]
    np.testing.assert_allclose(spectrum, [1 / ROOT2, 1 / ROOT2], rtol=1e-14)
    x, _ = arrays(problem)
    outputs, (first, second) = reference.forward(matrices(net), [0, 0], x)
    lengths = np.abs(x)
    f = -np.maximum(lengths[:, 0] - lengths[:, 1], 0) / 4
    np.testing.assert_allclose(outputs[:, 0], f, atol=1e-16)
    np.testing.assert_array_equal(np.flatnonzero(np.abs(f) > 1e-15) + 1, [2, 6])
    hidden = np.linalg.svd(np.maximum(first, 0))[1]
    np.testing.assert_allclose(hidden, [np.sqrt(0.75), *[0.5**0.5] * 2, 0.5], rtol=1e-14)
    assert np.linalg.matrix_rank(np.maximum(second, 0), tol=1e-14) == 1
    printed = gf.nets.MLP.from_weights([*net.weights[:2], -net.weights[2]])
    assert speed_of(problem, printed) == pytest.approx(-0.5, abs=1e-15)


def on_kinks(weights, x):
    """The net with pre-activations that rounding has left beside 0 exactly there: the sites
    (layer, sample, unit) of |z| < 1e-14 in a plain forward pass."""
    zs = reference.forward(weights, [0.0] * (len(weights) - 1), x)[1]
    return [
        (layer, i, j)
        for layer, z in enumerate(zs)
        for i, j in np.argwhere(np.abs(z) < 1e-14)
    ]


def test_residuals_of_examples():
    """The naive one (σ'(0) = 0) is √2/2 at the fastest direction; some gates in [0, 1] make
    it vanish, by bounded least squares over all at kinks."""
    for net, speed, depth in (
        (escape.circle_rank_two(), 0.5, 3),
        (escape.circle_depth_four(), ROOT2 / 3, 4),
    ):
        problem = example_one()
        x, g = arrays(problem)
        weights = matrices(net)
        sites = on_kinks(weights, x)
        signs = reference.forward(weights, [0.0] * (depth - 1), x)[1]

        def value(gates, x=x, g=g, signs=signs, sites=sites, weights=weights, speed=speed):
            opened = [(z > 0).astype(float) for z in signs]
            for (layer, i, j), gate in zip(sites, gates, strict=True):
                opened[layer][i, j] = gate
            return gradient(weights, opened, x, g) + speed * reference.flatten(weights)

        naive = np.linalg.norm(value(np.zeros(len(sites))))
        start = np.full(len(sites), 0.3)
        tight: Any = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
        best = scipy.optimize.least_squares(value, start, bounds=(0, 1), **tight)
        assert np.sqrt(2 * best.cost) <= 1e-8
        assert residual(problem, net) <= 1e-14
        if depth == 3:
            assert naive == pytest.approx(ROOT2 / 2, rel=1e-12)


def test_depth_four_direction():
    problem, net = example_one(), escape.circle_depth_four()
    assert speed_of(problem, net) == pytest.approx(ROOT2 / 3, abs=1e-15)
    assert layer_sizes(net) == pytest.approx([1, 1, 1, 1], abs=1e-15)
    assert [np.linalg.matrix_rank(w) for w in matrices(net)] == [2, 2, 1, 1]
    spectrum = np.linalg.svd(matrices(net)[1])[1]
    np.testing.assert_allclose(spectrum, [np.sqrt(2 / 3), np.sqrt(1 / 3), 0], atol=1e-15)
    x, _ = arrays(problem)
    outputs = reference.forward(matrices(net), [0, 0, 0], x)[0][:, 0]
    least = np.minimum(np.abs(x[:, 0] + x[:, 1]), np.abs(x[:, 0] - x[:, 1]))
    np.testing.assert_allclose(outputs, outputs[1] * least / least[1], atol=1e-16)
    assert outputs[1] < 0


def test_mean_reduction_gives_an_eighth():
    problem = gf.Problem(gf.data.circle(8), gf.losses.squared)
    assert speed_of(problem, escape.circle_rank_two()) == pytest.approx(1 / 16, rel=1e-14)
    found = escape.depth_three_optimum(problem)
    assert found.speed == pytest.approx(1 / 16, rel=1e-13)
    assert escape.planar_optimum(problem).speed == pytest.approx((ROOT2 - 1) / 8, rel=1e-13)


# --- The residual -----------------------------------------------------------------------


def test_residual_against_bounded_least_squares():
    """Two layers, units on kinks of samples: also away from escape directions."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, g = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
        weights = [rng.normal(size=(4, 3)), rng.normal(size=(2, 4))]
        for j in range(3):
            weights[0][j] -= (weights[0][j] @ x[j]) * x[j] / (x[j] @ x[j])
        weights = [3.0 * w for w in weights]
        problem, net = problem_of(x, g), gf.nets.MLP.from_weights(weights)
        size = np.sqrt(2 / sum(np.sum(w**2) for w in weights))
        rho = [size * w for w in weights]
        gates = (x @ rho[0].T > 0).astype(float)
        gates[range(3), range(3)] = 0
        base = gradient(rho, [gates], x, g)
        speed = -np.sum(g * ((gates * (x @ rho[0].T)) @ rho[1].T))
        columns = []
        for j in range(3):
            opened = gates.copy()
            opened[j, j] = 1
            columns.append(gradient(rho, [opened], x, g) - base)
        plain, base = base, base + speed * reference.flatten(rho)
        found = scipy.optimize.lsq_linear(np.stack(columns, 1), -base, (0, 1), tol=1e-15)
        expected = np.sqrt(2 * found.cost)
        value = residual(problem, net)
        assert value == pytest.approx(expected, rel=1e-9)
        # Euler: the least g is the one with the least part along the sphere.
        least = scipy.optimize.lsq_linear(np.stack(columns, 1), -plain, (0, 1), tol=1e-15)
        assert value**2 == pytest.approx(2 * least.cost - 2 * speed**2, rel=1e-9)


def test_residual_errors():
    problem = problem_of(np.eye(3), np.ones((3, 2)))
    with pytest.raises(ValueError, match="without a degree"):
        residual(problem, biased_net((3, 4, 2)))
    net = gf.nets.MLP([3, 4, 2], key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"tolerance=2.* must be"):
        residual(problem, net, tolerance=2.0)


# --- Linear nets ------------------------------------------------------------------------


def checked(problem, found, depth, expected):
    """An escape direction of this speed, in plain NumPy."""
    assert len(found.net.weights) == depth
    assert float(found.speed) == pytest.approx(expected, rel=1e-12)
    assert speed_of(problem, found.net) == pytest.approx(expected, rel=1e-12)
    assert layer_sizes(found.net) == pytest.approx([1] * depth, rel=1e-12)
    assert least_residual(problem, found.net, expected) <= 1e-12


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_linear_optimum(depth):
    problem, a = linear_problem(num_outputs=3)
    sigma = np.linalg.svd(a)[1]
    found = escape.linear_optimum(problem, depth, width=1 if depth == 2 else 4)
    checked(problem, found, depth, np.linalg.norm(a) if depth == 1 else sigma[0])
    if depth > 2:
        assert found.net.weights[1].shape == (4, 4)
        sizes = [np.linalg.matrix_rank(w) for w in matrices(found.net)]
        assert sizes == [1] * depth
    rng = np.random.default_rng(depth)
    for _ in range(500):
        shapes = [(2, 4), *[(2, 2)] * (depth - 2), (3, 2)] if depth > 1 else [(3, 4)]
        weights = [rng.normal(size=s) for s in shapes]
        product = np.linalg.multi_dot(weights[::-1]) if depth > 1 else weights[0]
        scale = np.prod([np.linalg.norm(w) for w in weights])
        assert abs(np.sum(a * product)) <= found.speed * scale


def test_linear_critical_points():
    """Harmonic sums of singular values, for every subset."""
    problem, a = linear_problem(num_outputs=3)
    sigma = np.linalg.svd(a)[1]
    for depth in (3, 4, 6):
        for subset in ([1], [2], [0, 1], [0, 2], [2, 1], [0, 1, 2]):
            found = escape.linear_critical_point(problem, depth, subset)
            powers = sum(sigma[k] ** (-2 / (depth - 2)) for k in subset)
            expected = powers ** (-(depth - 2) / 2)
            checked(problem, found, depth, expected)
            for w in matrices(found.net):
                assert np.linalg.matrix_rank(w, tol=1e-9) == len(subset)
            speed = escape.linear_speed(jnp.asarray(sigma[subset]), depth)
            assert speed == pytest.approx(expected, rel=1e-13)
    wide = escape.linear_critical_point(problem, 3, [0, 1], width=4)
    assert wide.net.weights[1].shape == (4, 4)
    checked(problem, wide, 3, 1 / (1 / sigma[0] ** 2 + 1 / sigma[1] ** 2) ** 0.5)
    four = escape.linear_speed(jnp.asarray([3.0, 3.0]), 4)
    assert four == pytest.approx(3 / 2, rel=1e-14)


def test_linear_nets_of_two_layers_join_equal_directions():
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(4, 3)))[0] for _ in range(2))
    a = u @ np.diag([2.0, 0.7, 0.7]) @ v.T
    problem = problem_of(np.eye(4), a.T)
    for subset, speed in ([0], 2.0), ([1], 0.7), ([1, 2], 0.7):
        checked(problem, escape.linear_critical_point(problem, 2, subset), 2, speed)
    with pytest.raises(ValueError, match=r"differ: .* depth=2 join only equal ones"):
        escape.linear_critical_point(problem, 2, [0, 1])
    checked(problem, escape.linear_optimum(problem, 1), 1, 4.98**0.5)
    speed = escape.linear_speed(jnp.asarray([2.0, 0.7, 0.7]), 1)
    assert speed == pytest.approx(4.98**0.5, rel=1e-14)
    with pytest.raises(ValueError, match=r"singular values .* along subset=\[0, 3\], 0 up"):
        escape.linear_critical_point(problem, 3, [0, 3])
    with pytest.raises(ValueError, match="depth=1 must be an integer of at least 2"):
        escape.linear_critical_point(problem, 1, [0])
    for values in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match=r"singular_values=.* must all be positive"):
            escape.linear_speed(jnp.asarray(values), 3)
    for subset in ([], [0, 0], [4], [-1]):
        with pytest.raises(ValueError, match=r"subset=.* different integers in 0\.\.3"):
            escape.linear_critical_point(problem, 3, subset)
    with pytest.raises(ValueError, match="width=1 must be an integer of at least 2"):
        escape.linear_critical_point(problem, 3, [0, 1], width=1)
    with pytest.raises(ValueError, match="depth=0 must be an integer of at least 1"):
        escape.linear_optimum(problem, 0)


def test_integers_are_asked_for(unhooked):
    problem, _ = linear_problem()
    with pytest.raises(ValueError, match=r"subset=\[0.5\] must be different integers"):
        escape.linear_critical_point(problem, 3, [0.5])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="depth=2.5 must be an integer of at least 1"):
        escape.linear_optimum(problem, 2.5)  # pyright: ignore[reportArgumentType]


def test_linear_oracles_in_jit():
    problem, a = linear_problem()
    calls = []

    @jax.jit
    def speed(problem):
        calls.append(0)
        return escape.linear_optimum(problem, 3).speed, escape.speed_bounds(problem)

    doubled = gf.Problem(gf.Dataset(problem.data.x, 2 * problem.data.y), problem.loss)
    sigma = np.linalg.svd(a)[1][0]
    for scale, each in ((1, problem), (2, doubled)):
        found, bounds = speed(each)
        assert found == pytest.approx(scale * sigma, rel=1e-13)
        assert bounds.lower == pytest.approx(scale * sigma / 2, rel=1e-13)
    assert len(calls) == 1


# --- Curvature --------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "width", "index"), [(2, 3, 0), (3, 3, 0), (3, 3, 1)])
def test_linear_hessian_spectrum(depth, width, index):
    problem, a = linear_problem()
    sigma = np.linalg.svd(a)[1]
    s, other = float(sigma[index]), float(sigma[1 - index])
    net = escape.linear_critical_point(problem, depth, [index], width=width).net
    found = escape.sphere_hessian(problem, net)
    predicted = escape.linear_hessian_spectrum(problem, depth, index, width)
    size = sum(w.size for w in net.weights)
    assert found.eigenvalues.shape == predicted.shape == (size - 1,)
    np.testing.assert_allclose(found.eigenvalues, predicted, atol=1e-12)
    values, counts = np.unique(np.round(found.eigenvalues, 8) + 0.0, return_counts=True)
    pairs = 3 if depth == 2 else 1
    expected = {
        0.0: (depth - 1) * (width - 1),
        2 * s: (depth - 1) * width,
        s - other: pairs,
        s + other: pairs,
        s: size - 1 - (depth - 1) * (2 * width - 1) - 2 * pairs,
    }
    table = dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert table == {round(k, 8): n for k, n in expected.items()}
    assert (values[0] < 0) == (index > 0)


def test_spectrum_of_a_non_square_map():
    """Singular vectors that A does not see belong to the bulk."""
    rng = np.random.default_rng(1)
    problem = problem_of(rng.normal(size=(6, 4)), rng.normal(size=(6, 2)))
    for depth, width in ((2, 1), (4, 2)):
        net = escape.linear_optimum(problem, depth, width).net
        found = escape.sphere_hessian(problem, net).eigenvalues
        predicted = escape.linear_hessian_spectrum(problem, depth, 0, width)
        np.testing.assert_allclose(found, predicted, atol=1e-12)
    with pytest.raises(ValueError, match="depth=1 must be an integer of at least 2"):
        escape.linear_hessian_spectrum(problem, 1)
    with pytest.raises(ValueError, match=r"subset=\[2\] must be different integers in 0"):
        escape.linear_hessian_spectrum(problem, 3, 2)


def test_sphere_hessian_of_a_relu_net():
    """All gates open: {0, 1, 2} s, 4, 13 and 6 times; and against differences of the plain
    gradient at a point that is no escape direction."""
    problem, net = all_active(3)
    s = all_active_speed(problem)
    found = escape.sphere_hessian(problem, jax.tree.map(lambda w: 2 * w, net))
    ratios, counts = np.unique(np.round(found.eigenvalues / s, 8) + 0.0, return_counts=True)
    assert ratios.tolist() == [0, 1, 2]
    assert counts.tolist()[0] == 4 and counts.tolist()[2] == 6
    problem, net = all_active(3, noise=0.2)
    found = escape.sphere_hessian(problem, net)
    rho = [
        w * np.sqrt(3) / np.sqrt(sum(np.sum(v**2) for v in matrices(net)))
        for w in matrices(net)
    ]
    x, g = arrays(problem)

    def slope(theta):
        weights = reference.unflatten(theta, rho)
        return reference.flatten(reference.backprop(weights, [0, 0], x, g))

    flat = reference.flatten(rho)
    hessian = reference.central_differences(slope, flat, 1e-5)
    s = -np.sum(g * reference.forward(rho, [0, 0], x)[0])
    projector = np.eye(len(flat)) - np.outer(flat, flat) / 3
    full = projector @ (hessian + s * np.eye(len(flat))) @ projector
    vectors = np.concatenate(
        [np.asarray(w).reshape(len(flat) - 1, -1) for w in found.eigenvectors.weights], 1
    )
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(flat) - 1), atol=1e-13)
    np.testing.assert_allclose(vectors @ flat, 0, atol=1e-13)
    images = vectors @ full
    np.testing.assert_allclose(images, found.eigenvalues[:, None] * vectors, atol=1e-9)
    assert np.all(np.diff(found.eigenvalues) >= 0)


# --- Data without interaction -----------------------------------------------------------


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_rank_one_data(depth):
    for outputs in (1, 3):
        data = gf.data.rank_one(5, 4, outputs, key=jax.random.key(outputs))
        problem = gf.Problem(data, gf.losses.squared)
        x, g = arrays(problem)
        v = np.linalg.norm(x, axis=1)
        expected = np.linalg.norm(g.T @ v)
        assert float(escape.rank_one_speed(problem)) == pytest.approx(expected, rel=1e-13)
        found = escape.rank_one_optimum(problem, depth, width=2)
        checked(problem, found, depth, expected)
        assert found.net.weights[0].shape == (2, 4)


def test_rank_one_errors():
    x, g = np.outer([1.0, 2.0, 0.0], [3.0, 4.0]), np.ones((3, 1))
    assert float(escape.rank_one_speed(problem_of(x, g))) == pytest.approx(15, rel=1e-14)
    x[1] *= -1
    for wrong in (x, np.eye(3), np.zeros((3, 2))):
        with pytest.raises(ValueError, match=r"data\.x is not on one ray .* sample"):
            escape.rank_one_speed(problem_of(wrong, g))
    x, g = np.ones((2, 2)), np.array([[1.0], [-1.0]])
    with pytest.raises(ValueError, match="cost_gradient_at_zero is 0, or cancels out"):
        escape.rank_one_speed(problem_of(x, g))
    with pytest.raises(ValueError, match="depth=1 must be an integer of at least 2"):
        escape.rank_one_optimum(problem_of(x, g), 1)
    with pytest.raises(ValueError, match="width=0 must be an integer of at least 1"):
        escape.rank_one_optimum(problem_of(x, g), 2, width=0)


def orthogonal(outputs, seed=0, num_samples=5):
    lengths = np.random.default_rng(seed).uniform(0.5, 2, num_samples)
    key = jax.random.key(seed)
    data = gf.data.orthogonal(num_samples, 6, outputs, key=key, scales=lengths)
    return gf.Problem(data, gf.losses.squared), lengths


def strongest(b, seed=0):
    """max ‖σ(−bu)‖ over unit u, by power iteration from many starts."""
    u = np.random.default_rng(seed).normal(size=(3000, b.shape[1]))
    for _ in range(500):
        u /= np.linalg.norm(u, axis=1, keepdims=True) + 1e-300
        u = -np.maximum(-u @ b.T, 0) @ b
    u /= np.linalg.norm(u, axis=1, keepdims=True) + 1e-300
    return np.max(np.linalg.norm(np.maximum(-u @ b.T, 0), axis=1))


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_orthogonal_data(outputs):
    for seed in range(3):
        problem, lengths = orthogonal(outputs, seed)
        x, g = arrays(problem)
        b = lengths[:, None] * g
        if outputs == 1:
            parts = np.maximum(b, 0), np.maximum(-b, 0)
            expected = max(np.linalg.norm(part) for part in parts)
        else:
            expected = strongest(b)
        speed = float(escape.orthogonal_speed(problem))
        assert speed == pytest.approx(expected, rel=1e-12)
        for depth in (2, 3, 4, 5):
            found = escape.orthogonal_optimum(problem, depth)
            assert speed_of(problem, found.net) == pytest.approx(expected, rel=1e-12)
            assert layer_sizes(found.net) == pytest.approx([1] * depth, rel=1e-12)
            assert least_residual(problem, found.net, expected) <= 1e-12
        assert_random_nets_slower(x, g, speed)


def test_orthogonal_data_with_equal_blocks():
    """All subsets have leading eigenvalues of higher multiplicity."""
    problem = problem_of(np.eye(4), np.concatenate([np.eye(2), -np.eye(2)]))
    assert float(escape.orthogonal_speed(problem)) == pytest.approx(1, rel=1e-14)
    assert least_residual(problem, escape.orthogonal_optimum(problem, 3).net, 1) <= 1e-12


def test_orthogonal_errors():
    with pytest.raises(
        ValueError, match=r"is not orthogonal: the cosine of samples 0 and 1"
    ):
        escape.orthogonal_speed(problem_of(np.ones((2, 2)), np.ones((2, 1))))
    with pytest.raises(ValueError, match="15 samples and 2 outputs: .* at most 14"):
        escape.orthogonal_speed(problem_of(np.eye(15), np.ones((15, 2))))
    g = np.arange(15.0)[:, None]
    speed = escape.orthogonal_speed(problem_of(np.eye(15), g))
    assert float(speed) == pytest.approx(np.linalg.norm(g), rel=1e-14)
    with pytest.raises(ValueError, match="cost_gradient_at_zero is 0"):
        escape.orthogonal_speed(problem_of(np.eye(2), np.zeros((2, 1))))


# --- Two layers in the plane ------------------------------------------------------------


def psi(x, g, angles):
    w = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return np.linalg.norm(np.maximum(w @ x.T, 0) @ g, axis=-1)


def planar_cases():
    """Gaussian data, one and three outputs; lattice points: collinear, antipodal, zero."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x, g = rng.normal(size=(8, 2)), rng.normal(size=(8, 1 + 2 * (seed % 2)))
        yield (np.round(x), np.round(2 * g)) if seed > 3 else (x, g)


def test_planar_optima_against_a_grid():
    """Every local optimum, on a grid refined by scipy."""
    angles = np.linspace(0, 2 * np.pi, 20001)[:-1] + 1e-4
    for x, g in planar_cases():
        found = escape.planar_optimum(problem_of(x, g))
        values = psi(x, g, angles)
        peaks = (values > np.roll(values, 1)) & (values >= np.roll(values, -1))
        peaks &= values > 1e-9
        refined = [
            scipy.optimize.minimize_scalar(
                lambda t, x=x, g=g: -psi(x, g, t),
                bounds=(t - 4e-4, t + 4e-4),
                method="bounded",
                options={"xatol": 1e-13},
            ).x
            for t in angles[peaks]
        ]
        ours = np.sort(np.asarray(found.angles))
        apart = np.angle(np.exp(1j * (ours[:, None] - np.array(refined)[None, :])))
        assert len(ours) == len(refined)
        assert np.max(np.min(np.abs(apart), axis=1)) <= 1e-6
        np.testing.assert_allclose(found.speeds, psi(x, g, found.angles), rtol=1e-12)
        assert np.all(np.diff(found.speeds) <= 0) and found.speed == found.speeds[0]
        best = max(psi(x, g, np.array(refined)))
        assert best * (1 - 1e-14) <= found.speed <= best * (1 + 1e-7)


def test_planar_net():
    for x, g in planar_cases():
        problem = problem_of(x, g)
        found = escape.planar_optimum(problem)
        assert speed_of(problem, found.net) == pytest.approx(float(found.speed), rel=1e-13)
        deeper = escape.planar_optimum(problem, depth=4, width=2).net
        assert [w.shape[0] for w in deeper.weights] == [2, 2, 2, g.shape[1]]
        assert speed_of(problem, deeper) == pytest.approx(float(found.speed), rel=1e-13)
        for angle, u in zip(found.angles, found.outputs, strict=True):
            w = np.array([[np.cos(angle), np.sin(angle)]])
            net = gf.nets.MLP.from_weights([w, np.asarray(u)[:, None]])
            speed = speed_of(problem, net)
            assert speed > 0
            assert least_residual(problem, net, speed) <= 1e-12


def test_planar_optima_of_example_one():
    found = escape.planar_optimum(example_one())
    np.testing.assert_allclose(found.speeds, [ROOT2 - 1] * 8, rtol=1e-14)
    steps = np.asarray(found.angles) / (np.pi / 4)
    np.testing.assert_allclose(np.sort(np.round(steps) % 8), np.arange(8))
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-14)
    np.testing.assert_array_equal(found.outputs[:, 0], (-1.0) ** np.round(steps))


def test_planar_errors():
    with pytest.raises(ValueError, match=r"data\.x has 3 features: .* for 2"):
        escape.planar_optimum(problem_of(np.eye(3), np.ones((3, 1))))
    # Two layers are blind to six alternating points, three are not.
    with pytest.raises(ValueError, match="all planar speeds are 0"):
        escape.planar_optimum(example_one(6))
    assert escape.depth_three_optimum(example_one(6)).speed >= 0.46
    with pytest.raises(ValueError, match="problem is traced"):
        jax.jit(lambda p: escape.planar_optimum(p).speed)(example_one())


# --- Three layers in the plane ----------------------------------------------------------


def test_programs_of_example_one():
    problem = example_one()
    found = escape.depth_three_optimum(problem, every_set=True)
    assert abs(float(found.speed) - 0.5) <= 1e-14
    assert 0 <= float(found.bound) - 0.5 <= 1e-12
    assert len(found.signs) == 30 and np.sum(np.asarray(found.signs) == -1) == 15
    for active, value, bound in zip(
        np.asarray(found.active), found.attained, found.bounds, strict=True
    ):
        chosen = np.flatnonzero(active)
        opposite = len(chosen) == 2 and chosen[1] - chosen[0] == 4
        expected = {1: 1 / 3}.get(len(chosen), 0.5 if opposite else ROOT2 - 1)
        assert abs(value - expected) <= 1e-13
        assert abs(bound - expected) <= 1e-12


def test_multipliers_of_example_one():
    """Optimal ones of the sets for which they are unique, by hand."""
    found = escape.depth_three_optimum(example_one(), every_set=True)
    known = {
        (2,): [ROOT2 / 3, ROOT2 / 3, 0, 0],
        (2, 6): [ROOT2 / 4] * 4,
        (2, 4): [1 - 1 / ROOT2, 1, 1 - 1 / ROOT2, 0],
        (2, 4, 6, 8): [1, 1, 1, 1],
    }
    table = {}
    for sign, active, mu in zip(found.signs, found.active, found.multipliers, strict=True):
        if sign < 0:
            assert np.all(np.asarray(mu)[1::2] == 0)
            table[tuple(int(i) + 1 for i in np.flatnonzero(active))] = mu[::2]
    for samples, mu in known.items():
        np.testing.assert_allclose(table[samples], mu, atol=1e-10, err_msg=str(samples))


def alternating(num_samples, seed, noise=0.15):
    """A circle of alternating signs, bent: three layers are faster than two."""
    rng = np.random.default_rng(seed)
    j = np.arange(1, num_samples + 1)
    t = 2 * np.pi * j / num_samples + noise * rng.normal(size=num_samples)
    x = np.stack([np.sin(t), np.cos(t)], axis=1) * rng.uniform(0.9, 1.1, (num_samples, 1))
    return x, ((-1.0) ** j * rng.uniform(0.9, 1.1, num_samples))[:, None]


def largest_on_a_grid(x, g, num=721):
    """s*(3) for neurons at these angles and kinks only: a linear program for each set."""
    kinks = np.arctan2(x[:, 0], -x[:, 1])
    t = np.concatenate([np.linspace(0, 2 * np.pi, num)[:-1], kinks, kinks + np.pi])
    columns = np.maximum(np.stack([np.cos(t), np.sin(t)], 1) @ x.T, 0)
    columns = np.concatenate([columns, -columns])
    best = 0.0
    for sign in (-1, 1):
        falls, rises = np.flatnonzero(sign * g < 0), np.flatnonzero(sign * g > 0)
        for bits in range(1, 2 ** len(falls)):
            chosen = falls[(bits >> np.arange(len(falls))) & 1 == 1]
            # max |g|·h on S minus |g|·t, t ≥ h, t ≥ 0, over a ≥ 0 with Σ a ≤ 1
            c = -np.append(np.abs(g[chosen]) @ columns[:, chosen].T, -np.abs(g[rises]))
            upper = np.concatenate([columns[:, rises].T, -np.eye(len(rises))], axis=1)
            total = np.append(np.ones(len(columns)), np.zeros(len(rises)))
            limits = np.append(np.zeros(len(rises)), 1.0)
            found = scipy.optimize.linprog(c, np.vstack([upper, total]), limits)
            best = max(best, -found.fun)
    return best


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_depth_three_against_linear_programs_on_a_grid(seed):
    x, g = alternating(6, seed)
    problem = problem_of(x, g)
    found = escape.depth_three_optimum(problem)
    two = escape.planar_optimum(problem).speed
    assert found.speed >= 1.05 * two
    on_grid = largest_on_a_grid(x, g[:, 0])
    assert on_grid - 1e-9 <= found.speed <= on_grid * (1 + 1e-4)
    assert abs(found.bound - found.speed) <= 1e-12
    assert speed_of(problem, found.net) == pytest.approx(float(found.speed), rel=1e-12)
    assert layer_sizes(found.net) == pytest.approx([1, 1, 1], rel=1e-12)
    # The multipliers are Clarke gates of layer 2.
    row = int(np.argmax(found.attained))
    z = reference.forward(matrices(found.net), [0, 0], x)[1][1]
    kinks = np.abs(z[:, 0]) <= 1e-9
    gates = np.where(kinks, found.multipliers[row] / np.abs(g[:, 0]), z[:, 0] > 0)
    value = least_residual(problem, found.net, float(found.speed), [gates[:, None]])
    assert np.sum(kinks) >= 1 and value <= 1e-12


def test_certificates_hold():
    """max_w |Σ ν_i σ(w·x_i)| of the multipliers, on a grid of angles and by the planar
    oracle; the bounds cover every set, solved or not."""
    for seed in range(3):
        x, g = alternating(8, seed)
        problem = problem_of(x, g)
        found = escape.depth_three_optimum(problem)
        angles = np.linspace(0, 2 * np.pi, 20001)
        sizes = np.abs(g[:, 0])
        assert len(found.signs) == 30
        solved = np.asarray(found.attained) > 0
        assert 1 <= np.sum(solved) < 30
        assert float(found.bound) == np.max(found.bounds)
        assert found.bound - found.speed <= 2e-12
        for sign, active, bound, mu in zip(
            found.signs,
            np.asarray(found.active),
            found.bounds,
            found.multipliers,
            strict=True,
        ):
            rises = sign * g[:, 0] > 0
            assert not np.any(active & rises)
            assert np.all((mu >= 0) & (mu <= np.where(rises, sizes, 0) + 1e-15))
            nu = np.where(active, sizes, 0) - np.asarray(mu)
            values = psi(x, nu[:, None], angles)
            assert np.max(values) <= bound + 1e-14
            assert np.max(values) >= bound * (1 - 1e-3)
            planar = escape.planar_optimum(problem_of(x, nu[:, None])).speed
            assert planar == pytest.approx(float(bound), rel=1e-13)
        assert_random_nets_slower(x, g, float(found.bound))


def test_every_set_agrees():
    x, g = alternating(8, 0)
    some = escape.depth_three_optimum(problem_of(x, g))
    every = escape.depth_three_optimum(problem_of(x, g), every_set=True)
    assert some.speed == pytest.approx(float(every.speed), rel=1e-12)
    assert np.all(every.attained <= some.bounds + 1e-12)
    assert np.max(np.abs(every.attained - every.bounds)) <= 2e-12


def test_depth_three_is_covariant():
    """Of degree one in G and in X; rotations, reflections and −G change nothing."""
    x, g = alternating(8, 2)
    speed = float(escape.depth_three_optimum(problem_of(x, g)).speed)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    for other in (problem_of(x @ turn, g), problem_of(x[:, ::-1], g[::1])):
        assert escape.depth_three_optimum(other).speed == pytest.approx(speed, rel=1e-11)
    scaled = escape.depth_three_optimum(problem_of(1e3 * x, -1e-8 * g))
    assert scaled.speed == pytest.approx(1e-5 * speed, rel=1e-11)
    assert scaled.bound == pytest.approx(1e-5 * speed, rel=1e-11)


def test_depth_three_errors():
    with pytest.raises(
        ValueError, match=r"data\.y has 2 outputs: certificates are for one"
    ):
        escape.depth_three_optimum(problem_of(np.eye(2), np.ones((2, 2))))
    with pytest.raises(ValueError, match=r"4 and 4 entries .* 30 linear .* max_sets=29"):
        escape.depth_three_optimum(example_one(), max_sets=29)
    with pytest.raises(ValueError, match=r"data\.x or cost_gradient_at_zero is 0"):
        escape.depth_three_optimum(problem_of(np.eye(2), np.zeros((2, 1))))
    x, g = np.ones((2, 2)), np.array([[1.0], [-1.0]])
    with pytest.raises(ValueError, match="no net of three layers lowers the risk"):
        escape.depth_three_optimum(problem_of(x, g))


# --- Together ---------------------------------------------------------------------------


def test_speed_bounds():
    for x, g in planar_cases():
        problem = problem_of(x, g)
        bounds = escape.speed_bounds(problem)
        top = np.linalg.svd(g.T @ x)[1][0]
        assert bounds.lower == pytest.approx(top / 2, rel=1e-13)
        upper = np.linalg.svd(x)[1][0] * np.sqrt(np.sum(g**2))
        assert bounds.upper == pytest.approx(upper, rel=1e-13)
        two = escape.planar_optimum(problem).speed
        assert bounds.lower <= two * (1 + 1e-14)
        if g.shape[1] == 1:
            three = escape.depth_three_optimum(problem).speed
            assert two <= three * (1 + 1e-12) and three <= bounds.upper
    # Attained: one sample above, the two sides of a line below
    one = problem_of([[3.0, 4.0]], [[2.0]])
    assert escape.planar_optimum(one).speed == escape.speed_bounds(one).upper == 10
    line = problem_of([[1.0, 0.0], [-1.0, 0.0]], [[1.0], [-1.0]])
    assert escape.planar_optimum(line).speed == escape.speed_bounds(line).lower == 1


def test_float32():
    x, g = alternating(8, 0)
    single, double = problem_of(x, g, np.float32), problem_of(x, g)
    ray = problem_of(np.outer([1, 2, 3], [3, 4]), np.ones((3, 1)), np.float32)
    axes = problem_of(np.eye(4), np.arange(8.0).reshape(4, 2) - 3, np.float32)
    three = escape.depth_three_optimum(single)
    speed = float(escape.depth_three_optimum(double).speed)
    assert three.speed == pytest.approx(speed, rel=1e-6)
    everything = [
        three,
        escape.planar_optimum(single),
        escape.linear_optimum(single, 3),
        escape.linear_hessian_spectrum(single, 3),
        escape.rank_one_optimum(ray, 2),
        escape.orthogonal_optimum(axes, 2),
        escape.speed_bounds(single),
        escape.sphere_hessian(single, escape.circle_rank_two(np.float32)),
        escape.clarke_residual(single, escape.planar_optimum(single).net, 1e-4),
        escape.circle_rank_one(0.3, np.float32),
        escape.circle_depth_four(np.float32),
        escape.rank_one_speed_at(jnp.asarray([0.3], np.float32)),
    ]
    assert [float_dtypes(each) for each in everything] == [{np.dtype(np.float32)}] * 12
    assert everything[8] <= 1e-4
