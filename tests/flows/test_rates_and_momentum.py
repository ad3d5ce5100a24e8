"""Rates of one's own, scaled outputs, normalised flow and momentum: closed forms, and
descents of the same kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from fixtures import distance

import gfdyn as gf


FRICTION = 0.8


def regression(seed=0):
    """A linear model and its risk ½ θᵀHθ − bᵀθ + const, in NumPy."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(9, 1))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    net = gf.nets.MLP.from_weights([rng.normal(size=(1, 3))])
    return problem, net, x.T @ x / 9, (x.T @ y / 9)[:, 0]


def relu(seed=4):
    """Two layers that cross a kink, and slide along one, on the way."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(8, 2)), rng.normal(size=(8, 1))
    net = gf.nets.MLP([2, 5, 1], key=jax.random.key(seed), scale=0.7)
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared), net


def gradients(problem, weights):
    """∇R of a two-layer ReLU net, in NumPy."""
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    w, v = weights
    z = x @ w.T
    a = np.maximum(z, 0)
    error = (a @ v.T - y) / len(x)
    return [((error @ v) * (z > 0)).T @ x, error.T @ a]


def parameters(net):
    """θ of a network in coordinates of its own."""
    assert isinstance(net, gf.nets.Rescaled)
    return net.net


def halving(errors):
    """That the errors of first order halve with the step."""
    ratios = np.asarray(errors[:-1]) / np.asarray(errors[1:])
    return np.all((1.7 < ratios) & (ratios < 2.3))


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_linear_models_of_scaled_outputs_at_a_rate(scale, rate):
    problem, net, hessian, b = regression()
    scaled = gf.nets.scaled_output(gf.nets.with_rates(net, [rate]), scale)
    solver = gf.solvers.Adaptive(rtol=1e-11)
    traj = gf.solve(gf.GradientFlow(problem), scaled, t1=2.0, solver=solver)
    start = np.asarray(net.weights[0])[0]
    rest = np.linalg.solve(hessian, b) / scale
    decay = scipy.linalg.expm(-2.0 * rate * scale**2 * hessian)
    exact = rest + decay @ (start - rest)
    np.testing.assert_allclose(traj.final.weights[0][0], exact, rtol=1e-8)
    assert traj.certificate.energy_residual < 1e-8


def test_rates_of_layers_through_kinks():
    problem, net = relu()
    rates = (0.2, 3.0)
    flow = gf.GradientFlow(problem)
    ts = jnp.linspace(0.0, 4.0, 9)
    solver = gf.solvers.ExactKinks(rtol=1e-9)
    traj = gf.solve(flow, gf.nets.with_rates(net, rates), ts=ts, solver=solver)
    assert traj.stats["num_crossings"] > 0 and traj.stats["num_slides"] > 0
    w, v = (np.asarray(w) for w in jax.vmap(parameters)(traj.net).weights)
    balance = v[:, 0] ** 2 / rates[1] - np.sum(w**2, axis=2) / rates[0]
    np.testing.assert_allclose(balance, balance[:1] + 0 * balance, atol=1e-8)
    errors = []
    for steps in (2000, 4000, 8000):
        weights = [np.asarray(w) for w in net.weights]
        for _ in range(steps):
            moves = zip(weights, rates, gradients(problem, weights), strict=True)
            weights = [w - 4.0 / steps * d * g for w, d, g in moves]
        errors.append(distance(gf.nets.MLP.from_weights(weights), parameters(traj.final)))
    assert halving(errors), errors
    descent = gf.descend(problem, gf.nets.with_rates(net, rates), 4.0 / 8000, 8000)
    assert distance(parameters(descent.final), gf.nets.MLP.from_weights(weights)) < 1e-12


def test_rates_of_biases_and_names():
    key = jax.random.key(1)
    dense = gf.nets.dense
    net = gf.nets.sequential(
        3, [dense(4, bias=True), dense(1, "identity", bias=True)], key=key
    )
    x = jnp.ones((5, 3))
    by_name = gf.nets.with_rates(net, {"b1": 0.25, "W2": 4.0})
    in_order = gf.nets.with_rates(net, (1.0, 0.25, 4.0, 1.0))
    assert jax.tree.structure(by_name) == jax.tree.structure(in_order)
    np.testing.assert_allclose(by_name(x), net(x), rtol=1e-14)
    twice = gf.nets.with_rates(by_name, {"W2": 0.25})
    assert twice.factors == (1.0, 0.5, 1.0, 1.0)
    np.testing.assert_allclose(twice(x), net(x), rtol=1e-14)


@pytest.mark.slow
def test_escape_at_rates_of_layers_is_physical_flow():
    problem, net = relu(1)
    net = gf.nets.with_rates(net, (0.5, 2.0))
    flow = gf.EscapeFlow(problem)
    solver = gf.solvers.ExactKinks(rtol=1e-9)
    escape = gf.solve(flow, net, t1=1.0, solver=solver)
    t1 = jnp.exp(escape.final_log_time)
    plain = gf.solve(gf.GradientFlow(problem), net, t1=t1, solver=solver)
    assert distance(escape.final, plain.final) < 1e-7


@pytest.mark.parametrize("friction", [0.3, 10.0])
def test_momentum_of_a_linear_model(friction):
    problem, net, hessian, b = regression()
    flow = gf.flows.MomentumFlow(problem, friction)
    traj = gf.solve(flow, net, t1=3.0, solver=gf.solvers.Adaptive(rtol=1e-11))
    start = np.asarray(net.weights[0])[0]
    rest = np.linalg.solve(hessian, b)
    eye, none = np.eye(3), np.zeros((3, 3))
    system = np.block([[none, eye], [-hessian, -friction * eye]])
    state = scipy.linalg.expm(3.0 * system) @ np.concatenate([start - rest, np.zeros(3)])
    np.testing.assert_allclose(traj.final.weights[0][0], rest + state[:3], rtol=1e-8)
    velocity = traj.final_position.velocity.weights[0][0]
    np.testing.assert_allclose(velocity, state[3:], rtol=1e-7)
    length = float(np.linalg.norm(state[3:]))
    np.testing.assert_allclose(velocity, state[3:], rtol=0, atol=1e-8 * length)
    assert traj.certificate.energy_residual < 1e-8


def test_heavy_ball_converges_to_momentum_through_kinks():
    problem, net = relu()
    flow = gf.flows.MomentumFlow(problem, FRICTION)
    traj = gf.solve(flow, net, t1=4.0, solver=gf.solvers.Adaptive(rtol=1e-9))
    (before,), (after,) = (n.preactivations(problem.data.x) for n in (net, traj.final))
    assert np.any((before > 0) != (after > 0))
    errors = []
    for steps in (500, 1000, 2000):
        h = 4.0 / steps
        last = weights = [np.asarray(w) for w in net.weights]
        for _ in range(steps):
            moved = [
                w + (1 - FRICTION * h) * (w - was) - h**2 * g
                for w, was, g in zip(
                    weights, last, gradients(problem, weights), strict=True
                )
            ]
            last, weights = weights, moved
        errors.append(distance(gf.nets.MLP.from_weights(weights), traj.final))
    assert halving(errors), errors
    rate, momentum = flow.heavy_ball(h)
    descent = gf.descend(problem, net, rate, steps, momentum=momentum)
    assert distance(descent.final, gf.nets.MLP.from_weights(weights)) < 1e-10


def test_momentum_with_large_friction_is_gradient_flow():
    problem, net, *_ = regression()
    plain = gf.solve(gf.GradientFlow(problem), net, t1=1.0)
    errors = []
    for friction in (50.0, 100.0):
        flow = gf.flows.MomentumFlow(problem, friction)
        traj = gf.solve(flow, net, t1=friction, solver=gf.solvers.Adaptive(rtol=1e-9))
        errors.append(distance(traj.final, plain.final))
    # Of second order in 1/γ
    assert errors[0] < 1e-3 and 3.5 < errors[0] / errors[1] < 4.5


def test_normalised_descent_converges_to_the_flow_of_arc_length():
    problem, net = relu(3)
    flow = gf.GradientFlow(problem, clock="arc")
    traj = gf.solve(flow, net, t1=0.6, solver=gf.solvers.ExactKinks(rtol=1e-9))
    assert traj.stats["num_crossings"] > 0
    errors = []
    for steps in (1000, 2000, 4000):
        weights = [np.asarray(w) for w in net.weights]
        for _ in range(steps):
            grads = gradients(problem, weights)
            length = np.sqrt(sum(np.sum(g**2) for g in grads))
            moves = zip(weights, grads, strict=True)
            weights = [w - 0.6 / steps * g / length for w, g in moves]
        errors.append(distance(gf.nets.MLP.from_weights(weights), traj.final))
    assert halving(errors), errors


@pytest.mark.slow
def test_saved_and_loaded(tmp_path):
    problem, net = relu()
    flow = gf.flows.MomentumFlow(problem, FRICTION)
    for traj in (
        gf.solve(flow, net, t1=1.0),
        gf.solve(gf.GradientFlow(problem), gf.nets.with_rates(net, (1.0, 2.0)), t1=1.0),
    ):
        traj.save(tmp_path / "run.nc")
        loaded = gf.load(tmp_path / "run.nc")
        assert jax.tree.structure(loaded) == jax.tree.structure(traj)
        same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), loaded, traj)
        assert all(jax.tree.leaves(same))
        assert "certificate" in loaded.summary()


def test_nothing_slides_with_momentum():
    problem, net = relu()
    flow = gf.flows.MomentumFlow(problem, FRICTION)
    with pytest.raises(ValueError, match="MomentumFlow slides along no kink.*Adaptive"):
        gf.solve(flow, net, t1=1.0, solver=gf.solvers.ExactKinks())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda net: gf.nets.with_rates(net, (1.0,)), "has 1 entries, but there are 2"),
        (lambda net: gf.nets.with_rates(net, {"W7": 1.0}), "the parameters are W1, W2"),
        (lambda net: gf.nets.with_rates(net, (1.0, 0.0)), r"rates\['W2'\]=0.0 must be pos"),
        (lambda net: gf.nets.scaled_output(net, 0.0), "scale=0.0 must be finite and not 0"),
    ],
)
def test_wrong_rates(call, text):
    with pytest.raises(ValueError, match=text):
        call(relu()[1])


def test_wrong_friction():
    problem, _ = relu()
    with pytest.raises(ValueError, match=r"friction=-1.0 must be positive.*GradientFlow"):
        gf.flows.MomentumFlow(problem, -1.0)
