"""Losses of one's own: functions of one sample, and weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import distance

import gfdyn as gf
from gfdyn.losses._standard import log_softplus


# Some are called with what they refuse.
from_function: Any = gf.losses.from_function
weighted: Any = gf.losses.weighted


def half_square(outputs, targets):
    return 0.5 * jnp.sum((outputs - targets) ** 2)


def soft_margin(outputs, targets):
    return jnp.sum(jax.nn.softplus(-outputs * targets))


def log_soft_margin(outputs, targets):
    return jax.nn.logsumexp(log_softplus(-outputs * targets))


def huber(outputs, targets):
    u = jnp.abs(outputs - targets)
    return jnp.sum(jnp.where(u < 1, 0.5 * u**2, u - 0.5))


def hinge(outputs, targets):
    return jnp.sum(jax.nn.relu(1 - outputs * targets))


def absolute(outputs, targets):
    return jnp.sum(jnp.abs(outputs - targets))


def teacher(outputs=2):
    data = gf.data.teacher(12, [3, 3, outputs], key=jax.random.key(0))
    return data, gf.nets.MLP([3, 6, outputs], key=jax.random.key(1))


def signs(data):
    return gf.Dataset(data.x, jnp.where(data.y > 0, 1.0, -1.0))


@pytest.mark.parametrize(
    "kind", [gf.GradientFlow, pytest.param(gf.EscapeFlow, marks=pytest.mark.slow)]
)
def test_flows_are_those_of_the_loss_that_it_writes_out(kind):
    data, net = teacher()
    ends = [
        gf.solve(kind(gf.Problem(data, loss)), net, t1=1.0).final
        for loss in (gf.losses.squared, from_function(half_square))
    ]
    assert distance(*ends) <= 1e-11


@pytest.mark.slow
def test_log_domain_where_it_is_given():
    data, net = teacher(1)
    data = signs(data)
    own = from_function(soft_margin, log_cost=log_soft_margin)
    ends = [
        gf.solve(gf.GradientFlow(gf.Problem(data, loss), clock="loss"), net, t1=5.0).final
        for loss in (gf.losses.logistic, own)
    ]
    assert distance(*ends) <= 1e-10
    flow = gf.GradientFlow(gf.Problem(data, from_function(soft_margin)), clock="loss")
    with pytest.raises(ValueError, match="soft_margin has no logarithm.*log_cost="):
        gf.solve(flow, net, t1=5.0)
    with pytest.raises(ValueError, match="soft_margin has no margin"):
        own.margins(jnp.ones((1, 1)), jnp.ones((1, 1)))


def test_huber_loss_in_closed_form():
    """dw/dt = −1 from w = 3 down to 1, then −w."""
    data = gf.Dataset(jnp.ones((1, 1)), jnp.zeros((1, 1)))
    net = gf.nets.MLP.from_weights([jnp.full((1, 1), 3.0)])
    flow = gf.GradientFlow(gf.Problem(data, from_function(huber)))
    solver = gf.solvers.ExactKinks(rtol=1e-10)
    traj = gf.solve(flow, net, ts=[0.5, 1.5, 3.0, 5.0], solver=solver)
    expected = [2.5, 1.5, np.exp(-1), np.exp(-3)]
    np.testing.assert_allclose(traj.net.weights[0].ravel(), expected, rtol=1e-8)


@pytest.mark.parametrize("cost", [hinge, absolute])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kinks_of_a_loss_are_refused_by_name(cost, dtype):
    data, _ = teacher()
    with pytest.raises(ValueError, match=rf"loss {cost.__name__} has a kink.*softplus"):
        gf.Problem(signs(data).astype(dtype), from_function(cost))


def test_steep_is_no_kink():
    def steep(outputs, targets):
        return jnp.sum(jax.nn.softplus(200 * (1 - outputs * targets))) / 200

    data, net = teacher()
    loss = from_function(steep, name="steep hinge")
    assert jnp.isfinite(gf.Problem(signs(data), loss).risk(net))
    assert loss.name == "steep hinge"


def per_output(outputs, targets):
    return (outputs - targets) ** 2


def root(outputs, targets):
    return jnp.sum(jnp.sqrt(outputs - targets))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: from_function(3), TypeError, "cost must be a function.*got 3"),
        (lambda: from_function(huber, log_cost="log"), TypeError, "log_cost.*got 'log'"),
        (lambda: from_function(per_output), TypeError, "cost of per_output must be one"),
        (lambda: from_function(root), ValueError, "root is not finite at outputs"),
        (lambda: weighted(huber), TypeError, "loss must be one of gf.losses"),
        (
            lambda: weighted(gf.losses.squared, samples=[1.0] * 5),
            ValueError,
            "samples has 5 weights, but there are 12 samples",
        ),
        (
            lambda: weighted(gf.losses.squared, classes=[1.0, 2.0]),
            ValueError,
            "classes weighs one-hot targets",
        ),
        (
            lambda: weighted(gf.losses.squared, samples=[1.0] * 11 + [0.0]),
            ValueError,
            "must be positive weights",
        ),
    ],
)
def test_arguments(build, error, message, unhooked):
    data, _ = teacher()
    with pytest.raises(error, match=message):
        gf.Problem(data, build())


def test_weights_are_repetitions():
    """To rounding: sample i as often as its weight, in the sum."""
    data, net = teacher()
    times = np.arange(12) % 3 + 1
    repeated = gf.Dataset(*(jnp.repeat(a, times, axis=0) for a in (data.x, data.y)))
    problems = [
        gf.Problem(repeated, gf.losses.squared, "sum"),
        gf.Problem(data, weighted(gf.losses.squared, samples=times), "sum"),
    ]
    one, other = (jax.grad(p.risk)(net) for p in problems)
    assert distance(one, other) <= 1e-13
    logs = [float(p.log_risk(net)) for p in problems]
    assert logs[0] == pytest.approx(logs[1], abs=1e-13)
    with pytest.raises(ValueError, match="12 weights, but the loss is of 4 samples"):
        gf.descend(problems[1], net, 0.1, 2, batch_size=4, key=jax.random.key(0))


def test_class_weights_are_those_of_their_samples():
    rng = np.random.default_rng(0)
    labels, by_class = rng.integers(0, 3, 10), np.array([1.0, 0.25, 4.0])
    data = gf.Dataset(rng.normal(size=(10, 4)), labels)
    net = gf.nets.MLP([4, 5, 3], key=jax.random.key(0))
    losses = [
        weighted(gf.losses.cross_entropy, classes=by_class),
        weighted(gf.losses.cross_entropy, samples=by_class[labels]),
        weighted(gf.losses.cross_entropy, samples=2 * np.ones(10), classes=by_class / 2),
    ]
    risks = [float(gf.Problem(data, loss).risk(net)) for loss in losses]
    assert risks[0] == pytest.approx(risks[1], rel=1e-14) == pytest.approx(risks[2])
    margins = [gf.diagnostics.margin(gf.Problem(data, loss), net) for loss in losses[:1]]
    plain = gf.diagnostics.margin(gf.Problem(data, gf.losses.cross_entropy), net)
    np.testing.assert_array_equal(margins[0], plain)
