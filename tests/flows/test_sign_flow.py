"""The sign flow: piecewise linear closed forms, max margins, sign descent through kinks."""

import jax
import numpy as np
import pytest
import scipy.optimize
from fixtures import distance
from test_rates_and_momentum import gradients, regression, relu

import gfdyn as gf


def piecewise_linear(hessian, b, theta, t1):
    """The sign flow of ½ θᵀHθ − bᵀθ, from corner to corner, in NumPy."""
    signs, t = np.sign(hessian @ theta - b), 0.0

    def velocity(signs):
        u, slides = -signs, signs == 0
        if slides.any():
            inside = hessian[np.ix_(slides, slides)]
            u[slides] = -np.linalg.solve(inside, (hessian @ u)[slides])
        return u

    corners = 0
    while t < t1:
        u, g = velocity(signs), hessian @ theta - b
        # What slides too fast lets go
        fast = (signs == 0) & (np.abs(u) > 1)
        if fast.any():
            i = np.argmax(fast)
            signs[i] = -np.sign(u[i])
            continue
        rates = hessian @ u
        reach = np.full(len(g), np.inf)
        towards = (signs != 0) & (rates * signs < 0)
        reach[towards] = np.maximum(-g[towards] / rates[towards], 0.0)
        i, step = int(np.argmin(reach)), min(reach.min(), t1 - t)
        theta, t = theta + step * u, t + step
        if t >= t1:
            break
        corners += 1
        flipped = signs.copy()
        flipped[i] = -signs[i]
        passes = (hessian @ velocity(flipped))[i] * signs[i] < 0
        signs[i] = -signs[i] if passes else 0.0
    return theta, corners


@pytest.mark.parametrize("seed", range(6))
def test_quadratics_are_piecewise_linear(seed):
    problem, net, hessian, b = regression(seed)
    start = np.asarray(net.weights[0])[0]
    exact, corners = piecewise_linear(hessian, b, start, 3.0)
    traj = gf.solve(gf.flows.SignFlow(problem), net, t1=3.0)
    assert corners >= 2
    np.testing.assert_allclose(traj.final.weights[0][0], exact, atol=1e-9)
    assert (
        traj.certificate.energy_residual < 1e-8 and traj.certificate.risk_increase < 1e-14
    )


def test_predictors_go_to_the_largest_margin_in_the_maximum_norm():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 3))
    y = np.sign(x @ np.asarray([[1.0], [-0.5], [0.2]]))
    rows = y * x
    # max m with y xᵀw ≥ m, |w| ≤ 1
    found = scipy.optimize.linprog(
        [0, 0, 0, -1],
        A_ub=np.hstack([-rows, np.ones((12, 1))]),
        b_ub=np.zeros(12),
        bounds=[(-1, 1)] * 3 + [(None, None)],
    )
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.exponential)
    net = gf.nets.MLP([3, 1], key=jax.random.key(0))
    traj = gf.solve(gf.flows.SignFlow(problem), net, t1=2000.0)
    w = np.asarray(traj.final.weights[0])[0]
    margin = float(np.min(rows @ w) / np.max(np.abs(w)))
    assert margin <= -found.fun + 1e-9
    assert margin > -found.fun * (1 - 5e-3)
    flow = gf.solve(gf.GradientFlow(problem, clock="loss"), net, t1=50.0)
    v = np.asarray(flow.final.weights[0])[0]
    assert np.min(rows @ v) / np.max(np.abs(v)) < margin


@pytest.mark.parametrize(("seed", "t1"), [(2, 0.24), (4, 0.15), (10, 0.4), (11, 0.4)])
def test_sign_descent_converges_to_it_through_kinks(seed, t1):
    problem, net = relu(seed)
    traj = gf.solve(gf.flows.SignFlow(problem), net, t1=t1)
    assert traj.certificate.energy_residual < 1e-6
    (before,), (after,) = (n.preactivations(problem.data.x) for n in (net, traj.final))
    assert np.any((before > 0) != (after > 0))
    for steps in (1000, 4000, 16000):
        weights = [np.asarray(w) for w in net.weights]
        for _ in range(steps):
            moves = zip(weights, gradients(problem, weights), strict=True)
            weights = [w - t1 / steps * np.sign(g) for w, g in moves]
        # Of first order: within a few steps' length at each of them
        error = distance(gf.nets.MLP.from_weights(weights), traj.final)
        assert error < 4 * t1 / steps


def test_descend_takes_its_steps():
    problem, net = relu(2)
    flow, steps, t1 = gf.flows.SignFlow(problem), 1000, 0.24
    traj = gf.descend(flow, net, t1 / steps, steps)
    weights = [np.asarray(w) for w in net.weights]
    dissipated = 0.0
    for _ in range(steps):
        found = gradients(problem, weights)
        dissipated += t1 / steps * sum(np.abs(g).sum() for g in found)
        moves = zip(weights, found, strict=True)
        weights = [w - t1 / steps * np.sign(g) for w, g in moves]
    for w, expected in zip(traj.final.weights, weights, strict=True):
        np.testing.assert_allclose(w, expected, atol=1e-12)
    np.testing.assert_allclose(traj.final_time, t1, rtol=1e-12)
    fall = float(traj.initial_risk - traj.final_risk)
    residual = abs(fall - dissipated) / float(traj.initial_risk)
    np.testing.assert_allclose(traj.certificate.energy_residual, residual, atol=1e-10)
    # On the clock of the flow: it ends where the flow is at that time
    assert distance(traj.final, gf.solve(flow, net, t1=t1).final) < 4 * t1 / steps
    assert "Sign descent" in traj.summary() and "Sign descent" in gf.plotting.caption(traj)


def test_a_neuron_that_would_slide_is_refused():
    problem, net = relu(0)
    with pytest.raises(gf.SolveError, match=r"No regime.*gf.descend\(flow, net"):
        gf.solve(gf.flows.SignFlow(problem), net, t1=0.4)


def test_refused_by_name():
    problem, net = relu()
    flow = gf.flows.SignFlow(problem)
    for solver, text in (
        (gf.solvers.ExactKinks(), "a SignFlow jumps elsewhere too.*SignSwitches"),
        (gf.solvers.Adaptive(), "would chatter.*SignSwitches"),
    ):
        with pytest.raises(ValueError, match=text):
            gf.solve(flow, net, t1=1.0, solver=solver)
    with pytest.raises(ValueError, match="GradientFlow does not switch signs"):
        gf.solve(gf.GradientFlow(problem), net, t1=1.0, solver=gf.solvers.SignSwitches())
    large = gf.nets.MLP([2, 700, 1], key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"up to 2000 parameters.*gf.descend\(flow, net"):
        gf.solve(flow, large, t1=1.0)
    with pytest.raises(Exception, match="differentia"):
        jax.grad(
            lambda s: gf.solve(flow, jax.tree.map(lambda w: s * w, net), t1=0.1).final_risk
        )(1.0)
