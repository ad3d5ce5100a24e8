"""The closed forms and identities again in float32, to float32's tolerances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import (
    all_active,
    distance,
    float_dtypes,
    linear_escape,
    linear_problem,
    rows,
)

import gfdyn as gf


SINGLE = {jnp.dtype(jnp.float32)}


def to_single(problem, net):
    """Problem and net in float32."""
    data = problem.data.astype(jnp.float32)
    net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
    return gf.Problem(data, problem.loss, problem.reduction), net


def solver(rtol=1e-5):
    return gf.solvers.Adaptive(rtol=rtol)


def test_linear_net_reaches_the_largest_singular_value():
    problem, a = linear_problem()
    net = gf.nets.MLP([4, 5, 5, 2], key=jax.random.key(0), activation="identity")
    problem, net = to_single(problem, gf.nets.scaled_to_norm(net, 1.0))
    flow = gf.EscapeFlow(problem, localized=True)
    traj = gf.solve(flow, net, t1=200.0, ts=[200.0], solver=solver())
    assert float_dtypes(traj) == SINGLE
    speed = float(gf.diagnostics.escape_speed(problem, traj.final_direction))
    assert abs(speed - np.linalg.svd(a)[1][0]) <= 1e-5


@pytest.mark.parametrize("depth", [2, 4])
def test_explosion_law(depth):
    problem, a = linear_problem()
    s, r0 = np.linalg.svd(a)[1][0], 0.3
    net = gf.nets.scaled_to_norm(linear_escape(a, depth), r0 * depth**0.5)
    problem, net = to_single(problem, net)
    flow = gf.EscapeFlow(problem, localized=True)
    traj = gf.solve(flow, net, ts=np.linspace(0, 10, 11, dtype=np.float32), solver=solver())
    r = np.exp(np.asarray(traj.log_radius, float))
    t = np.exp(np.asarray(traj.log_time, float))
    if depth == 2:
        law = np.log(r / r0) / s
    else:
        law = (r0 ** (2.0 - depth) - r ** (2.0 - depth)) / ((depth - 2) * s)
    np.testing.assert_allclose(t, law, rtol=1e-4, atol=1e-4 * law.max())


@pytest.mark.parametrize("kind", ["linear", "all-active"])
def test_escape_flow_equals_gradient_flow(kind):
    if kind == "linear":
        problem, _ = linear_problem()
        net = gf.nets.MLP([4, 3, 3, 2], key=jax.random.key(2), activation="identity")
    else:
        problem, net = all_active(3, noise=0.1)
    problem, net = to_single(problem, gf.nets.scaled_to_norm(net, 0.8))
    times = np.linspace(0, 8, 5, dtype=np.float32)
    escape = gf.solve(gf.EscapeFlow(problem), net, ts=times, solver=solver())
    physical = gf.solve(
        gf.GradientFlow(problem), net, ts=jnp.exp(escape.log_time), solver=solver()
    )
    for i in range(5):
        assert distance(rows(escape.net, i), rows(physical.net, i)) <= 1e-3
    for traj in (escape, physical):
        assert float_dtypes(traj) == SINGLE
        assert traj.certificate.balance_drift <= 10 * 1e-5
        assert traj.certificate.energy_residual <= 100 * 1e-5


def test_scale_free_as_far_as_float32_reaches():
    """From e^-1 to e^-80, where r^L is far below the smallest float."""
    problem, net = all_active(3)
    stop = gf.stopping.RiskBelow(1e-4)
    log_times = []
    for exponent in (-20, -80):
        start = gf.nets.scaled_to_norm(net, float(np.exp(exponent)))
        single, start = to_single(problem, start)
        flow = gf.EscapeFlow(single)
        traj = gf.solve(flow, start, t1=jnp.inf, stop=stop, solver=solver())
        assert traj.stopped_by == "RiskBelow"
        log_times.append(float(traj.final_log_time))
    assert abs((log_times[1] - log_times[0]) - 60) <= 1e-3


def test_weight_decay_and_descent():
    problem, net = to_single(*all_active(2, noise=0.3))
    flow = gf.GradientFlow(problem, weight_decay=0.1)
    exact = gf.solve(flow, net, ts=np.asarray([0.5, 1.0], np.float32), solver=solver(1e-6))
    assert exact.certificate.balance_drift <= 10 * 1e-5
    gaps = []
    for steps in (50, 500):
        descent = gf.descend(
            problem, net, 1.0 / steps, steps, weight_decay=0.1, save_every=steps // 2
        )
        assert float_dtypes(descent) == SINGLE
        gaps.append(distance(descent.final, exact.final))
    assert 8 <= gaps[0] / gaps[1] <= 12
