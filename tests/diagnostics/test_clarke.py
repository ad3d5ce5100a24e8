"""The least Clarke subgradient: against bounded least squares, closed forms, the flow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.optimize
from fixtures import biased_net
from golden_files import GOLDEN, read_golden

import gfdyn as gf
from gfdyn.diagnostics import minimum_norm_subgradient, subgradient_norm


# One program a shape
least = jax.jit(minimum_norm_subgradient, static_argnames="tolerance")
gradient_norm = jax.jit(gf.diagnostics.gradient_norm)
plain_gradient = jax.jit(lambda problem, net: jax.grad(problem.risk)(net))


def flat(net):
    return np.concatenate([np.ravel(w) for w in net.weights]).astype(float)


def problem_of(x, y, dtype: type = np.float64, loss: Any = gf.losses.squared):
    return gf.Problem(gf.Dataset(x.astype(dtype), y.astype(dtype)), loss)


def net_of(weights, activation="relu", dtype: type = np.float64):
    return gf.nets.MLP.from_weights([w.astype(dtype) for w in weights], activation)


def gradient(weights, gates, x, y):
    """Of the mean squared loss, by backpropagation through gates (N, n_l)."""
    entering = [x]
    for w, gate in zip(weights[:-1], gates, strict=True):
        entering.append(gate * (entering[-1] @ w.T))
    signal = (entering[-1] @ weights[-1].T - y) / len(x)
    gradients = []
    for layer in reversed(range(len(weights))):
        gradients.insert(0, signal.T @ entering[layer])
        if layer:
            signal = gates[layer - 1] * (signal @ weights[layer])
    return np.concatenate([g.ravel() for g in gradients])


def onto_kinks(w, x, samples):
    """The unit's weights, moved to z = 0 at these samples."""
    q, r = np.linalg.qr(x[samples].T)
    q = q[:, np.abs(np.diag(r)) > 1e-9] if len(samples) <= x.shape[1] else q
    for _ in range(2):
        w = w - q @ (q.T @ w)
    return w


# --- Two layers: bounded least squares on the explicit matrix ---------------------------


def draw(case, seed):
    """Data and weights of the one shape used here, with kinks."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(12, 4)), rng.normal(size=(12, 2))
    first, last = rng.normal(size=(5, 4)), rng.normal(size=(2, 5))
    if case == "collinear":
        x[6:9] = np.array([[2.5], [-0.7], [-1.0]]) * x[:3]
        x[9] = -3.0 * x[0]
    elif case == "duplicates":
        x[6:9], x[9] = x[:3], x[0]
    elif case == "nearly-collinear":
        x[6:9] = x[:3] + 1e-4 * x[6:9]
    if case == "no-kinks":
        return x, y, [first, last]
    for j in range(5):
        samples = rng.choice(12, size=rng.integers(1, 4), replace=False)
        if case in ("collinear", "duplicates", "nearly-collinear"):
            # One of each line would be enough, two are at their kinks.
            samples = np.array([j % 3, 6 + j % 3])
        if case in ("collinear", "duplicates"):
            samples = samples[:1]
        first[j] = onto_kinks(first[j], x, samples)
    if case == "zero-unit":
        first[0] = 0.0
    elif case == "dead-neuron":
        first[1], last[:, 1] = 0.0, 0.0
        last[:, 2] = 0.0
    return x, y, [first, last]


def explicit(x, y, weights, slope):
    """The least gradient over the gates of a net with one hidden layer, and the gates."""
    first, last = weights
    z = x @ first.T
    near = np.abs(z) <= 1e-9 * np.linalg.norm(first, axis=1) * np.linalg.norm(
        x, axis=1, keepdims=True
    )
    plain = np.where(z > 0, 1.0, slope)
    groups = {}
    for i, j in np.argwhere(near):
        known = [k for k, other in groups if other == j]
        line = next((k for k in known if np.linalg.matrix_rank(x[[k, i]], 1e-9) == 1), i)
        groups.setdefault((line, j), []).append(i)

    def gates(opened):
        values = plain.copy()
        for (line, j), o in zip(groups, opened, strict=True):
            for i in groups[line, j]:
                values[i, j] = slope + (1 - slope) * (o if x[i] @ x[line] > 0 else 1 - o)
        return [values]

    base = gradient(weights, gates(np.zeros(len(groups))), x, y)
    if not groups:
        return base, plain
    columns = [gradient(weights, gates(e), x, y) - base for e in np.eye(len(groups))]
    matrix = np.stack(columns, axis=1)
    found = scipy.optimize.lsq_linear(
        matrix, -base, (0, 1), method="bvls", tol=1e-15, max_iter=1000
    )
    return base + matrix @ found.x, gates(found.x)[0]


CASES = ["generic", "collinear", "duplicates", "zero-unit", "dead-neuron", "no-kinks"]


@pytest.mark.parametrize("slope", [0.0, 0.2], ids=["relu", "leaky"])
@pytest.mark.parametrize("case", [*CASES, "nearly-collinear"])
def test_against_bounded_least_squares(case, slope):
    name, inner = "relu" if slope == 0 else f"leaky_relu({slope})", 0
    for seed in range(10):
        x, y, weights = draw(case, seed)
        problem, net = problem_of(x, y), net_of(weights, name)
        found = least(problem, net)
        expected, gates = explicit(x, y, weights, slope)
        size = np.linalg.norm(flat(plain_gradient(problem, net)))
        assert bool(found.converged)
        assert np.linalg.norm(flat(found.gradient) - expected) <= 1e-12 * size
        assert abs(found.norm - np.linalg.norm(expected)) <= 1e-12 * size
        assert (
            found.norm <= gradient_norm(problem, net) * (1 + 1e-12) or case == "collinear"
        )
        if case in ("generic", "collinear"):
            np.testing.assert_allclose(found.gates[0], gates, atol=1e-10)
        inner += np.sum((gates > slope + 0.01) & (gates < 0.99))
    assert case == "no-kinks" or inner >= 2


def test_no_kinks_is_the_plain_gradient():
    x, y, weights = draw("no-kinks", 0)
    problem = problem_of(x, y)
    for net in (net_of(weights), net_of([weights[1][:, :4]])):
        found = least(problem, net)
        plain = plain_gradient(problem, net)
        assert flat(found.gradient) == pytest.approx(flat(plain), rel=1e-13)
        assert found.norm == pytest.approx(float(gradient_norm(problem, net)), rel=1e-13)
        assert bool(found.converged)
    assert subgradient_norm(problem, net) == pytest.approx(float(found.norm), rel=1e-13)
    found = least(problem, net_of(weights, "identity"))
    assert np.all(found.gates[0] == 1)


def test_float32():
    for seed in range(4):
        x, y, weights = draw("generic", seed)
        found = least(
            problem_of(x, y, np.float32), net_of(weights, dtype=np.float32), tolerance=1e-5
        )
        expected, _ = explicit(x, y, weights, 0.0)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {
            np.dtype(np.float32),
            np.dtype(bool),
        }
        assert bool(found.converged)
        gap = np.linalg.norm(flat(found.gradient) - expected)
        assert gap <= 1e-5 * np.linalg.norm(expected)


def test_many_kinks_at_once():
    """Most gates free, more of them than independent gradients."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)), rng.normal(size=(12, 2))
    weights = [rng.normal(size=(5, 4)), rng.normal(size=(2, 5))]
    found = least(problem_of(x, y), net_of(weights), tolerance=0.999)
    # The values of the activations stay as they are.
    first, last = weights
    a = np.maximum(x @ first.T, 0)
    signal = (a @ last.T - y) / 12
    arriving = signal @ last
    rows = []
    for j in range(5):
        found_j = scipy.optimize.lsq_linear(
            (arriving[:, [j]] * x).T, np.zeros(4), (0, 1), tol=1e-15
        )
        rows.append(found_j.cost)
    assert np.linalg.norm(found.gradient.weights[0]) <= 1e-12
    assert np.max(rows) <= 1e-12
    np.testing.assert_allclose(found.gradient.weights[1], signal.T @ a, rtol=1e-12)


def test_biased_units_share_kinks_of_duplicates_only():
    """With a bias, a multiple of a sample has a kink of its own."""
    net = biased_net((4, 5, 2))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)), rng.normal(size=(12, 2))
    x[4], x[5], x[6] = x[0], 2 * x[1], -x[2]
    first = np.array(net.first)
    for i in range(3):
        first[i] -= (first[i] @ x[i] + net.bias[i]) * x[i] / (x[i] @ x[i])
    net = type(net)(jnp.asarray(first), net.bias, net.last)
    gates = np.asarray(least(problem_of(x, y), net).gates[0])
    z = x @ first.T + np.asarray(net.bias)
    near = np.abs(z) < 1e-12
    assert np.argwhere(near).tolist() == [[0, 0], [1, 1], [2, 2], [4, 0]]
    assert gates[0, 0] == gates[4, 0]
    assert np.array_equal(gates[~near], (z > 0)[~near])


# --- Sliding ----------------------------------------------------------------------------


@pytest.mark.slow
def test_two_sliding_neurons_in_closed_form():
    """The setting of Le & Jegelka's two-neuron counterexample, at an angle φ below 90°.

    Each neuron meets the kink of the other's sample and slides there, at λ = cos φ, with
    q = sin φ ‖w‖² growing as dq/dt = sin φ q/(1 + e^q).
    """
    for degrees in (60.0, 75.0):
        angle = np.deg2rad(degrees)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        first = np.array([2.0, 1.0]) / np.sqrt(5)
        x = np.stack([first, turn @ first])
        problem = problem_of(x, np.array([[1.0], [-1.0]]), loss=gf.losses.logistic)
        net = net_of([0.5 * x, 0.5 * np.array([[1.0, -1.0]])])
        times = [0.1, 10.0, 12.0, 20.0, 50.0]
        solver = gf.solvers.ExactKinks(rtol=1e-10)
        record = {"least": minimum_norm_subgradient}
        flow = gf.GradientFlow(problem)
        traj = gf.solve(flow, net, ts=times, solver=solver, record=record)
        nets, found = traj.net, traj.records["least"]
        assert np.all(found.converged)
        gates = np.asarray(found.gates[0])
        np.testing.assert_array_equal(gates[0], np.ones((2, 2)))
        sliding = np.array([[1.0, np.cos(angle)], [np.cos(angle), 1.0]])
        np.testing.assert_allclose(
            gates[1:], np.broadcast_to(sliding, (4, 2, 2)), atol=1e-12
        )
        w = np.asarray(nets.weights[0])[1:]
        square = np.sum(w[:, 0] ** 2, axis=1)
        q = np.sin(angle) * square
        rate = np.sin(angle) / (1 + np.exp(q)) / 2
        velocity = -np.asarray(found.gradient.weights[0])[1:]
        np.testing.assert_allclose(velocity, rate[:, None, None] * w, rtol=1e-8, atol=1e-12)


def golden(name):
    return next(path for path in GOLDEN if path.stem == name)


def test_is_minus_the_velocity_of_the_oracle():
    """At the end of its run, where it slides along fourteen kinks."""
    file = np.load(golden("flow_2layer"))
    theirs = oracle.Problem(file["dims"], file["X"], file["Y"])
    x, y, weights = file["X"].T, file["Y"].T, theirs.weights(file["y1"])
    found = least(problem_of(x, y), net_of(weights))
    expected, gates = explicit(x, y, weights, 0.0)
    np.testing.assert_allclose(found.gates[0], gates, atol=1e-10)
    inner = [(0, int(j), int(i)) for i, j in np.argwhere((gates > 0) & (gates < 1))]
    on = [(x @ weights[0].T > 1e-12).T]
    for _, j, i in inner:
        on[0][j, i] = False
    velocity, opened = oracle.field(theirs, file["y1"], on, inner, np.full(14, 0.5))
    size = np.linalg.norm(velocity)
    assert np.linalg.norm(flat(found.gradient) - expected) <= 1e-12 * size
    assert np.linalg.norm(flat(found.gradient) + velocity) <= 1e-9 * size
    np.testing.assert_allclose([gates[i, j] for _, j, i in inner], opened, atol=1e-8)


@pytest.mark.slow
def test_is_minus_the_velocity_of_the_exact_flow():
    """Differences of its trajectory, while several gates slide in both layers."""
    flow, net, t1, _ = read_golden(golden("flow_3layer"), 1e-10)
    h, times = 1e-3, np.linspace(0, t1, 8)[1:] - 2e-3
    ts = np.sort(np.concatenate([times - h, times, times + h]))
    solver = gf.solvers.ExactKinks(rtol=1e-10)
    record = {"least": minimum_norm_subgradient}
    traj = gf.solve(flow, net, ts=ts, solver=solver, record=record)
    before, at, after = (jax.tree.map(lambda w, i=i: w[i::3], traj.net) for i in range(3))
    found = jax.tree.map(lambda leaf: leaf[1::3], traj.records["least"])
    assert np.all(found.converged)
    sliding = [0, 0]
    for i in range(len(times)):

        def one(tree, i=i):
            return flat(jax.tree.map(lambda w: w[i], tree))

        velocity = (one(after) - one(before)) / (2 * h)
        size = np.linalg.norm(velocity)
        assert np.linalg.norm(velocity + one(found.gradient)) <= 1e-6 * size, times[i]
        plain = plain_gradient(flow.problem, jax.tree.map(lambda w, i=i: w[i], at))
        assert np.linalg.norm(velocity + flat(plain)) >= 1e-3 * size
        for layer, gates in enumerate(found.gates):
            sliding[layer] += int(jnp.sum((gates[i] > 0) & (gates[i] < 1)))
    assert min(sliding) >= 5, sliding


# --- More layers ------------------------------------------------------------------------


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


# --- Stationarity -----------------------------------------------------------------------


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
