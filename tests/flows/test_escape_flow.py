"""Escape coordinates against closed forms and against physical time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import (
    all_active,
    all_active_speed,
    biased_net,
    distance,
    float_dtypes,
    linear_escape,
    linear_problem,
    rows,
    tight,
)

import gfdyn as gf


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_linear_net_reaches_the_largest_singular_value(depth):
    problem, a = linear_problem()
    net = gf.nets.MLP(
        [4, *[5] * (depth - 1), 2], key=jax.random.key(0), activation="identity"
    )
    net = gf.nets.scaled_to_norm(net, 1.0)
    flow = gf.EscapeFlow(problem, localized=True)
    traj = gf.solve(flow, net, t1=400.0, ts=[400.0], solver=tight())
    speed = gf.diagnostics.escape_speed(problem, traj.final_direction)
    assert abs(speed - np.linalg.svd(a)[1][0]) <= 1e-8


def test_alignment_rate_of_a_two_layer_linear_net():
    """Misalignment decays as e^{−(σ₁−σ₂)τ} at L = 2."""
    problem, a = linear_problem()
    sigma = np.linalg.svd(a)[1]
    net = gf.nets.MLP([4, 5, 2], key=jax.random.key(0), activation="identity")
    times = jnp.linspace(0, 28, 29)
    flow = gf.EscapeFlow(problem, localized=True)
    traj = gf.solve(flow, net, ts=times, solver=tight())
    _, _, vt = np.linalg.svd(a)
    first = np.asarray(traj.direction.weights[0])
    off = np.linalg.norm(first - first @ np.outer(vt[0], vt[0]), axis=(1, 2))
    late = slice(22, 28)  # the next correction decays as fast again
    rate = -np.polyfit(np.asarray(times)[late], np.log(off[late]), 1)[0]
    assert abs(rate - (sigma[0] - sigma[1])) <= 1e-3 * sigma[0]


@pytest.mark.parametrize("depth", [2, 3, 6])
def test_explosion_law(depth):
    """r^{2−L} = r₀^{2−L} − (L−2) s (t−t₀); L = 2: r = r₀ e^{s t}."""
    problem, a = linear_problem()
    s, r0 = np.linalg.svd(a)[1][0], 0.3
    net = gf.nets.scaled_to_norm(linear_escape(a, depth), r0 * depth**0.5)
    flow = gf.EscapeFlow(problem, localized=True)
    traj = gf.solve(flow, net, t1=10.0, solver=tight())
    r, t = np.exp(np.asarray(traj.log_radius)), np.exp(np.asarray(traj.log_time))
    if depth == 2:
        law = np.log(r / r0) / s
    else:
        law = (r0 ** (2.0 - depth) - r ** (2.0 - depth)) / ((depth - 2) * s)
    np.testing.assert_allclose(t, law, rtol=1e-8, atol=1e-8 * law.max())


@pytest.mark.parametrize("depth", [3, 6])
def test_blow_up_time(depth):
    """The localized flow in physical time ends at r₀^{2−L}/((L−2)s), by name."""
    squared, a = linear_problem()
    problem = gf.Problem(squared.data, gf.losses.linear)
    s, r0 = np.linalg.svd(a)[1][0], 0.3
    net = gf.nets.scaled_to_norm(linear_escape(a, depth), r0 * depth**0.5)
    expected = r0 ** (2.0 - depth) / ((depth - 2) * s)
    flow = gf.GradientFlow(problem)
    traj = gf.solve(flow, net, t1=2 * expected, solver=tight(), throw=False)
    assert traj.result == gf.RESULTS.blew_up
    assert abs(traj.final_time / expected - 1) <= 1e-8


@pytest.mark.parametrize(
    "kind, depth",
    [("linear", 2), ("linear", 4), ("all-active", 2), ("all-active", 3)],
)
def test_equals_gradient_flow(kind, depth):
    """The same trajectory in both coordinates, matched by physical time."""
    if kind == "linear":
        problem, _ = linear_problem()
        net = gf.nets.MLP(
            [4, *[3] * (depth - 1), 2], key=jax.random.key(2), activation="identity"
        )
    else:
        problem, net = all_active(depth, noise=0.1)
    net = gf.nets.scaled_to_norm(net, 0.8)
    escape = gf.solve(gf.EscapeFlow(problem), net, ts=jnp.linspace(0, 8, 9), solver=tight())
    times = jnp.exp(escape.log_time)
    physical = gf.solve(gf.GradientFlow(problem), net, ts=times, solver=tight())
    for i in range(9):
        assert distance(rows(escape.net, i), rows(physical.net, i)) <= 1e-7


def test_localized_direction_does_not_depend_on_scale():
    problem, net = all_active(3, noise=0.3)
    flow = gf.EscapeFlow(problem, localized=True)
    one = gf.solve(flow, gf.nets.scaled_to_norm(net, 1e-3), t1=5.0, solver=tight())
    two = gf.solve(flow, gf.nets.scaled_to_norm(net, 1e-9), t1=5.0, solver=tight())
    assert distance(one.final_direction, two.final_direction) <= 1e-9
    shift = np.asarray(one.log_radius - two.log_radius)
    np.testing.assert_allclose(shift, np.log(1e6), rtol=1e-9)
    # t(α θ₀) = α^{2−L} t(θ₀), exactly for the localized loss.
    later = np.asarray(two.log_time - one.log_time)[1:]
    np.testing.assert_allclose(later, np.log(1e6), rtol=1e-9)


def test_speed_is_monotone_at_the_rate_of_the_tangential_gradient():
    problem, _ = linear_problem()
    net = gf.nets.MLP([4, 5, 2], key=jax.random.key(1), activation="identity")
    flow = gf.EscapeFlow(problem, localized=True)
    times = jnp.linspace(0, 20, 401)
    traj = gf.solve(flow, net, ts=times, solver=tight())
    speed = np.asarray(traj.measure(gf.diagnostics.escape_speed))
    assert np.all(np.diff(speed) >= -1e-10)
    rates = [
        flow.velocity(jax.tree.map(lambda a, i=i: a[i], traj.positions)) for i in (100, 200)
    ]
    for i, rate in zip((100, 200), rates, strict=True):
        h = float(times[1] - times[0])
        slope = (
            (-speed[i + 2] + 8 * speed[i + 1] - 8 * speed[i - 1] + speed[i - 2]) / 12 / h
        )
        assert abs(slope - rate.dissipated) <= 1e-5 * np.abs(slope)


def test_direction_stays_on_its_sphere():
    problem, net = all_active(3, noise=0.3)
    traj = gf.solve(gf.EscapeFlow(problem), net, t1=8.0)
    squares = sum(jnp.sum(w**2, axis=(1, 2)) for w in traj.direction.weights)
    np.testing.assert_allclose(np.asarray(squares), 3.0, rtol=1e-13)


@pytest.mark.parametrize("depth", [3, 4])
def test_scale_free(depth):
    """From e^-1 to e^-200: like steps, and physical time in proportion to ε^{2−L}."""
    problem, net = all_active(depth)
    stop = gf.stopping.RiskBelow(1e-8)
    steps, log_times = [], []
    for exponent in (-1, -30, -100, -200):
        start = gf.nets.scaled_to_norm(net, float(np.exp(exponent)))
        traj = gf.solve(
            gf.EscapeFlow(problem), start, t1=jnp.inf, stop=stop, solver=tight(1e-9)
        )
        assert traj.stopped_by == "RiskBelow"
        steps.append(int(traj.stats["num_steps"]))
        log_times.append(float(traj.final_log_time))
    assert max(steps) <= 1.3 * min(steps), steps
    # The law holds up to a relative correction of the order of ε^(L−2).
    for (e1, t1), (e2, t2) in zip(
        [(-30, log_times[1]), (-100, log_times[2])],
        [(-100, log_times[2]), (-200, log_times[3])],
        strict=True,
    ):
        assert abs((t2 - t1) - (2 - depth) * (e2 - e1)) <= 1e-7


def test_escape_time_of_the_all_active_fixture():
    """While r is small it grows at the speed ‖Gv‖‖u‖ per unit of the clock."""
    problem, net = all_active(3)
    s = all_active_speed(problem)
    net = gf.nets.scaled_to_norm(net, 1e-12)
    traj = gf.solve(gf.EscapeFlow(problem), net, ts=[0.0, 1.0, 5.0], solver=tight())
    growth = np.asarray(traj.log_radius - traj.log_radius[0])
    np.testing.assert_allclose(growth, s * np.array([0.0, 1.0, 5.0]), rtol=1e-9, atol=1e-12)


def test_float32_escape_from_a_tiny_scale():
    """L = 4 from 1e-5, where physical time is lost below one ulp."""
    problem, net = all_active(4, noise=0.1)
    problem = gf.Problem(problem.data.astype(jnp.float32), gf.losses.squared)
    net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
    net = gf.nets.scaled_to_norm(net, 1e-5)
    traj = gf.solve(
        gf.EscapeFlow(problem),
        net,
        t1=jnp.inf,
        stop=gf.stopping.RiskBelow(1e-3),
        solver=gf.solvers.Adaptive(rtol=1e-4),
    )
    assert traj.stopped_by == "RiskBelow"
    assert float_dtypes(traj) == {jnp.dtype(jnp.float32)}
    assert traj.certificate.energy_residual <= 100 * 1e-4
    assert traj.certificate.balance_drift <= 10 * 1e-4


def test_refuses_a_net_without_a_degree():
    problem, _ = all_active(3)
    with pytest.raises(ValueError, match="not positively homogeneous.*gf.GradientFlow"):
        gf.solve(gf.EscapeFlow(problem), biased_net((4, 3, 1)), t1=1.0)
