"""Example 1 of Bantzis, Simon & Jacot, and the residual of directions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.optimize
from direction_cases import (
    ROOT2,
    arrays,
    layer_sizes,
    least_residual,
    matrices,
    problem_of,
    speed_of,
)
from fixtures import biased_net, example_one

import gfdyn as gf
from gfdyn import escape


residual = escape.clarke_residual


# --- Example 1 of Bantzis et al. -------------------------------------------------------


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
            changed = reference.gated_backprop(weights, opened, x, g)
            return changed + speed * reference.flatten(weights)

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


# --- The residual ----------------------------------------------------------------------


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
        base = reference.gated_backprop(rho, [gates], x, g)
        speed = -np.sum(g * ((gates * (x @ rho[0].T)) @ rho[1].T))
        columns = []
        for j in range(3):
            opened = gates.copy()
            opened[j, j] = 1
            columns.append(reference.gated_backprop(rho, [opened], x, g) - base)
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
