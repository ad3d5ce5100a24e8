"""The least Clarke subgradient of more layers, and stationarity."""

from typing import Any

import numpy as np
import pytest
import scipy.optimize
from clarke_cases import (
    draw,
    flat,
    gradient,
    gradient_norm,
    least,
    net_of,
    onto_kinks,
    plain_gradient,
    problem_of,
)

import gfdyn as gf
from gfdyn.diagnostics import minimum_norm_subgradient, subgradient_norm


# --- More layers -----------------------------------------------------------------------


def deep(seed):
    """A net with three layers on kinks in both hidden ones, and where they are."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(6, 1))
    weights = [rng.normal(size=s) for s in ((4, 3), (4, 4), (1, 4))]
    # Two units that let every sample through, or gates above follow those at kinks.
    weights[0][2:], x[:, 0] = [[1, 0, 0], [1, 0.1, 0]], 1 + np.abs(x[:, 0])
    weights[0][0] = onto_kinks(weights[0][0], x, [0])
    weights[0][1] = onto_kinks(weights[0][1], x, [1, 2])
    a = np.maximum(x @ weights[0].T, 0)
    a[0, 0] = a[1, 1] = a[2, 1] = 0.0
    for i in (0, 1):
        weights[1][i] -= (weights[1][i] @ a[i]) * a[i] / (a[i] @ a[i])
    return x, y, weights, [(0, 0, 0), (0, 1, 1), (0, 2, 1), (1, 0, 0), (1, 1, 1)]


def plain_gates(x, weights, sites):
    """The gates by the sign of z, those of the sites off."""
    gates, a = [], x
    for layer, w in enumerate(weights[:-1]):
        z = a @ w.T
        gates.append((z > 0).astype(float))
        for where, i, j in sites:
            if where == layer:
                assert abs(z[i, j]) < 1e-12
                gates[layer][i, j] = 0.0
        a = gates[layer] * z
    return gates


def test_three_layers_against_many_starts():
    """And no grid point of the gates has a smaller gradient."""
    interior = 0
    for seed in range(6):
        x, y, weights, sites = deep(seed)
        plain = plain_gates(x, weights, sites)

        def value(opened, x=x, y=y, weights=weights, sites=sites, plain=plain):
            gates = [g.copy() for g in plain]
            for (layer, i, j), o in zip(sites, opened, strict=True):
                gates[layer][i, j] = o
            return gradient(weights, gates, x, y)

        found = least(problem_of(x, y), net_of(weights))
        size = np.linalg.norm(value(np.zeros(len(sites))))
        gates = np.array([found.gates[layer][i, j] for layer, i, j in sites])
        assert bool(found.converged)
        assert np.linalg.norm(flat(found.gradient) - value(gates)) <= 1e-12 * size
        rng = np.random.default_rng(seed)
        starts = rng.uniform(0.1, 0.9, size=(10, len(sites)))
        tight: Any = {"bounds": (0, 1), "xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
        costs = [scipy.optimize.least_squares(value, s, **tight).cost for s in starts]
        assert abs(found.norm - np.sqrt(2 * np.min(costs))) <= 1e-9 * size, seed
        grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 4)] * len(sites)), axis=-1)
        for point in grid.reshape(-1, len(sites)):
            assert found.norm <= np.linalg.norm(value(point)) + 1e-12 * size
        interior += np.sum((gates > 0.01) & (gates < 0.99))
    assert interior >= 3


def test_dead_samples_have_no_kinks_above():
    x, y, weights, _ = deep(0)
    weights[0] = np.abs(weights[0])
    x = np.abs(x)
    x[0] = -x[0]
    found = least(problem_of(x, y), net_of(weights))
    assert np.all(found.gates[0][0] == 0)
    assert np.all(found.gates[1][0] == 0)
    plain = gradient(weights, plain_gates(x, weights, []), x, y)
    np.testing.assert_allclose(flat(found.gradient), plain, rtol=1e-12, atol=1e-14)


def test_gates_above_a_kink_alone_follow_it():
    """A sample that passes through one unit, at its kink: above it the sign of z is known
    as soon as the unit opens, and the subdifferential is a segment."""
    steps = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x, y, weights, _ = deep(seed)
        x[0] = [-2, 0, 0.5]
        weights[0][:2] = [[1, 0.3, 4], [0.5, -0.2, -0.3]]
        weights[1] = rng.normal(size=(4, 4))
        gates = plain_gates(x, weights, [(0, 0, 0)])
        assert np.sum(gates[0][0]) == 0
        off = gradient(weights, gates, x, y)
        gates[0][0, 0] = 1.0
        gates[1][0] = weights[1][:, 0] > 0
        on = gradient(weights, gates, x, y)
        step = np.clip(off @ (off - on) / ((off - on) @ (off - on)), 0, 1)
        found = least(problem_of(x, y), net_of(weights))
        expected = off + step * (on - off)
        np.testing.assert_allclose(flat(found.gradient), expected, atol=1e-13)
        np.testing.assert_array_equal(found.gates[1][0], gates[1][0])
        np.testing.assert_allclose(found.gates[0][0, 0], step, atol=1e-10)
        steps.append(step)
    assert any(0.01 < step < 0.99 for step in steps), steps


def example_one():
    """Bantzis et al., Example 1 (with W_L = −1), made deeper by a layer 1."""
    corners = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    second = np.zeros((3, 4))
    second[0] = [0.5, -0.5, 0.5, -0.5]
    return [corners / 2, second, np.eye(3)[:1], -np.ones((1, 1))], 0.5


def at_depth_four():
    """A sub-optimal escape direction on the same data."""
    corners = np.array([[1.0, 1], [1, -1], [-1, -1], [-1, 1]])
    middle = np.array([[1.0, 1, 1, 1], [1, -1, 1, -1], [-1, 1, -1, 1]])
    a = 1 / np.sqrt(12)
    weights = [corners / np.sqrt(8), a * middle, a * np.array([[2.0, -2, -2]])]
    return [*weights, -np.ones((1, 1))], np.sqrt(2) / 3


@pytest.mark.parametrize("residual, opened", [(1.0, 0.5), (-0.4, 0.0)])
def test_samples_that_pass_one_unit_alone_have_one_gate_above_it(residual, opened):
    """Near θ the gates of both open together, and not one by one."""
    rng = np.random.default_rng(0)
    # Samples 0 and 1 pass unit 0 alone, 2 unit 1, 3 none, and 4 both
    x = np.array([[1.0, 0.0], [2.0, 1.0], [-0.5, 1.0], [-1.0, -1.0], [1.0, 3.0]])
    first = np.array([[1.0, 0.0], [-1.0, 1.5]])
    second, last = rng.normal(size=(3, 2)), rng.normal(size=(1, 3))
    second[0] = [0.0, 1.0]
    weights = [first, second, last]
    below = x @ first.T
    above = np.maximum(below, 0) @ second.T
    # Through unit 0 above, only the weight 0 is moved: by −1 of sample 0, 1.5 · 2 of sample
    # 1, and −residual of sample 4, in units of what sample 0 sends down.
    y = np.maximum(above, 0) @ last.T + np.array([[1.0], [-1.5], [0.3], [0.2], [residual]])

    def at(*gates):
        plain = (above > 0) * 1.0
        plain[:2, 0] = gates
        return gradient(weights, [(below > 0) * 1.0, plain], x, y)

    found = least(problem_of(x, y), net_of(weights))
    assert found.converged
    np.testing.assert_allclose(found.gates[1][:2, 0], opened, atol=1e-10)
    np.testing.assert_allclose(found.norm, np.linalg.norm(at(opened, opened)), rtol=1e-10)
    # Sample 0 alone would make up for sample 4 where both together cannot.
    alone = np.linalg.norm(at(0.4, 0.0))
    assert (alone < 0.999 * found.norm) == (residual < 0)


@pytest.mark.parametrize("example", [example_one, at_depth_four])
def test_escape_directions_on_kinks(example):
    """∇L₀(ρ) = −sρ holds with gates between 0 and 1. By Euler ⟨ρ, g⟩ is the same for every
    selection g, so that −sρ, along ρ, is the least."""
    angles = 2 * np.pi * np.arange(1, 9) / 8
    x = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    y = -((-1.0) ** np.arange(1, 9))[:, None]
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.linear, reduction="sum")
    weights, speed = example()
    net = net_of(weights)
    found = least(problem, net)
    assert bool(found.converged)
    np.testing.assert_allclose(flat(found.gradient), -speed * flat(net), atol=1e-13)
    assert found.norm == pytest.approx(speed * np.sqrt(len(weights)), rel=1e-13)
    assert gradient_norm(problem, net) >= 1.5 * found.norm
    if example is example_one:
        diagonal = np.asarray(found.gates[1])[::2, 0]
        np.testing.assert_allclose(diagonal, np.sqrt(2) / 4, rtol=1e-12)


# --- Stationarity ----------------------------------------------------------------------


def test_a_limit_on_a_kink_is_stationary():
    """One unit at w = (1, 0): the second sample, on its kink, takes up what the third
    leaves, λ · 2 = 1. With σ'(0) = 0 the gradient is (0, −1)/N in w."""
    x, y = np.zeros((12, 4)), np.zeros((12, 2))
    x[:3, :2], y[:3, 0] = [[1, 0], [0, 1], [1, -1]], [2, -2, 0]
    first, last = np.zeros((5, 4)), np.zeros((2, 5))
    first[0, 0] = last[0, 0] = 1.0
    problem, net = problem_of(x, y), net_of([first, last])
    found = least(problem, net)
    np.testing.assert_allclose(found.gates[0][:3, 0], [1, 0.5, 1], rtol=1e-14)
    assert found.norm <= 1e-15
    assert bool(found.converged)
    assert gradient_norm(problem, net) == pytest.approx(1 / 12)
    # Where even the open gate does too little
    y[1, 0] = -0.5
    found = least(problem_of(x, y), net)
    assert found.gates[0][1, 0] == 1
    assert found.norm == pytest.approx(1 / 24)


def test_classifiers_at_a_kkt_point():
    """XOR: each neuron of the largest margin is orthogonal to the other class (Timor et
    al.). Just beside the kinks ∇R is not along θ, the least subgradient is."""
    x = gf.data.xor().x
    y = np.array([1.0, -1, 1, -1])[:, None]
    rng = np.random.default_rng(0)
    weights = [np.asarray(x) * 1.5 + 5e-5 * rng.normal(size=(4, 2)), 1.5 * y.T]
    problem, net = problem_of(np.asarray(x), y, loss=gf.losses.exponential), net_of(weights)

    def residual(g):
        theta = flat(net) / np.linalg.norm(flat(net))
        return np.linalg.norm(g - (g @ theta) * theta) / np.linalg.norm(g)

    found = least(problem, net, tolerance=1e-3)
    assert residual(flat(plain_gradient(problem, net))) >= 0.4
    assert residual(flat(found.gradient)) <= 2e-4


@pytest.mark.parametrize("tolerance", [-1e-6, 1.0, float("nan"), float("inf")])
def test_tolerance_is_checked(tolerance):
    x, y, weights = draw("generic", 0)
    for function in (minimum_norm_subgradient, subgradient_norm):
        with pytest.raises(ValueError, match=r"tolerance=.* such as 1e-6"):
            function(problem_of(x, y), net_of(weights), tolerance)


def test_net_is_checked(unhooked):
    x, y, weights = draw("generic", 0)
    with pytest.raises(ValueError, match="inputs"):
        minimum_norm_subgradient(problem_of(x[:, :3], y), net_of(weights))
    with pytest.raises(TypeError, match="net must be"):
        minimum_norm_subgradient(problem_of(x, y), weights)  # pyright: ignore[reportArgumentType]


def test_a_narrow_deep_net_off_its_kinks_opens_no_gate():
    # Antipodal samples share the kinks of the first hidden layer, not those above it, where
    # a single unit sees them alike at a good part of all random places.
    problem = gf.Problem(gf.data.circle(8), gf.losses.linear)
    net = gf.escape.circle_rank_one(np.pi / 2 + 0.05)
    z = net.preactivations(problem.data.x)
    found = least(problem, net)
    for gates, zl in zip(found.gates, z, strict=True):
        np.testing.assert_array_equal(gates, zl > 0)
