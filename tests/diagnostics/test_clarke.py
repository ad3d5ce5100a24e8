"""The least Clarke subgradient of two layers, and while neurons slide."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.optimize
from clarke_cases import (
    draw,
    flat,
    gradient,
    gradient_norm,
    least,
    net_of,
    plain_gradient,
    problem_of,
)
from fixtures import biased_net
from golden_files import GOLDEN, read_golden

import gfdyn as gf
from gfdyn.diagnostics import minimum_norm_subgradient, subgradient_norm


# --- Two layers: bounded least squares on the explicit matrix --------------------------


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


# --- Sliding ---------------------------------------------------------------------------


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
