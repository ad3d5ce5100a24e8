"""Gradient descent: its limit, its time axis, its batches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fixtures import all_active, distance, float_dtypes, tight

import gfdyn as gf


def by_hand(problem, net, rates, decay=0.0):
    """Two layers of plain NumPy gradient descent on the mean squared loss."""
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    w1, w2 = (np.array(w) for w in net.weights)
    for rate in rates:
        z = x @ w1.T
        a = np.maximum(z, 0)
        residual = (a @ w2.T - y) / len(x)
        g2 = residual.T @ a + 2 * decay * w2
        g1 = ((residual @ w2) * (z > 0)).T @ x + 2 * decay * w1
        w1, w2 = w1 - rate * g1, w2 - rate * g2
    return w1, w2


@pytest.mark.parametrize(
    "optimizer",
    [0.05, optax.sgd(0.05), lambda step: jnp.asarray(0.05)],
    ids=["rate", "optax", "schedule"],
)
def test_equals_numpy(teacher, optimizer):
    net = gf.nets.MLP([4, 5, 2], key=jax.random.key(0), scale=0.5)
    traj = gf.descend(teacher, net, optimizer, 50, weight_decay=0.01)
    for ours, theirs in zip(
        traj.final.weights, by_hand(teacher, net, [0.05] * 50, 0.01), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(traj.final_time, 2.5, rtol=1e-12)
    np.testing.assert_allclose(traj.ts, 0.05 * np.arange(51), rtol=1e-12, atol=1e-14)


def test_schedules_add_up_to_the_time(teacher):
    net = gf.nets.MLP([4, 5, 2], key=jax.random.key(0), scale=0.5)
    rates = [0.1 / (1 + k) for k in range(20)]
    schedule = lambda step: 0.1 / (1.0 + jnp.asarray(step, float))  # noqa: E731
    ours = gf.descend(teacher, net, schedule, 20)
    optaxs = gf.descend(teacher, net, optax.sgd(schedule), 20)
    for traj in (ours, optaxs):
        np.testing.assert_allclose(traj.final_time, sum(rates), rtol=1e-12)
        np.testing.assert_allclose(
            traj.final.weights[0], by_hand(teacher, net, rates)[0], rtol=1e-12
        )


def test_norm_scaled_rate():
    """lr = c/‖θ‖^(L−2): Δτ = c L^(1−L/2) a step."""
    problem, net = all_active(4, noise=0.2)
    c = 0.03
    traj = gf.descend(problem, net, gf.NormScaledRate(c), 10, save_every=1)
    norms = np.sqrt(sum((np.asarray(w) ** 2).sum(axis=(1, 2)) for w in traj.net.weights))
    np.testing.assert_allclose(np.diff(traj.ts), c / norms[:-1] ** 2, rtol=1e-12)
    rho = gf.EscapeFlow(problem).start(net)
    rate = np.exp(float(gf.EscapeFlow(problem).log_time_rate(rho)))
    np.testing.assert_allclose(np.diff(traj.ts)[0] / rate, c * 4 ** (1 - 4 / 2), rtol=1e-12)


def test_converges_to_the_flow_at_first_order():
    problem, net = all_active(2, noise=0.3)
    times = jnp.linspace(0, 2, 5)
    flow = gf.solve(gf.GradientFlow(problem), net, ts=times, solver=tight())
    gaps = []
    for steps in (100, 1000, 10000):
        descent = gf.descend(problem, net, 2.0 / steps, steps, save_every=steps // 4)
        gap = gf.distance(descent, flow)
        np.testing.assert_allclose(gap.ts, times, atol=1e-12)
        gaps.append(float(gap.total.max()))
    ratios = np.array(gaps[:-1]) / np.array(gaps[1:])
    np.testing.assert_allclose(ratios, 10.0, rtol=0.05)


def test_a_flow_brings_its_decay():
    problem, net = all_active(2, noise=0.3)
    mask = jax.tree.map(lambda _: True, net)
    flow = gf.GradientFlow(problem, 0.01, decay_mask=mask)
    by_flow = gf.descend(flow, net, 0.1, 20)
    by_name = gf.descend(problem, net, 0.1, 20, weight_decay=0.01, decay_mask=mask)
    assert eqx.tree_equal(by_flow.final, by_name.final)


def test_flows_without_descents_are_refused():
    problem, net = all_active(2)
    for flow, text in (
        (gf.EscapeFlow(problem), "NormScaledRate"),
        (gf.flows.MomentumFlow(problem, 1.0), "heavy_ball"),
        (gf.GradientFlow(problem, clock="arc"), "leave clock out"),
    ):
        with pytest.raises(ValueError, match=text):
            gf.descend(flow, net, 0.1, 5)
    with pytest.raises(ValueError, match="weight_decay=0.1 beside a flow"):
        gf.descend(gf.GradientFlow(problem), net, 0.1, 5, weight_decay=0.1)


def test_the_key_seeds_the_batches(teacher):
    """Also with an optax optimizer; which batches these are is in test_sgd.py."""
    net = gf.nets.MLP([4, 3, 2], key=jax.random.key(0), scale=0.5)

    def last(seed):
        key = jax.random.key(seed)
        traj = gf.descend(teacher, net, optax.sgd(0.05), 6, batch_size=2, key=key)
        return np.asarray(traj.final.weights[0])

    np.testing.assert_array_equal(last(3), last(3))
    assert np.abs(last(3) - last(4)).max() > 1e-6


def test_momentum_moves_on_its_effective_time(teacher):
    """Heavy ball at rest in its stationary regime moves like lr/(1−β)."""
    net = gf.nets.MLP([4, 5, 2], key=jax.random.key(0), scale=0.5)
    traj = gf.descend(teacher, net, optax.sgd(1e-4, momentum=0.9), 2000)
    np.testing.assert_allclose(traj.final_time, 2000 * 1e-3, rtol=2e-2)


def test_divergence_has_a_name(teacher):
    net = gf.nets.MLP([4, 5, 2], key=jax.random.key(0))
    traj = gf.descend(teacher, net, 1e6, 50, throw=False)
    assert traj.result == gf.RESULTS.diverged
    with pytest.raises(gf.SolveError, match="became NaN or infinite"):
        gf.descend(teacher, net, 1e6, 50)


def test_float32(teacher):
    problem = gf.Problem(teacher.data.astype(jnp.float32), gf.losses.squared)
    net = gf.nets.MLP([4, 5, 2], key=jax.random.key(0), dtype=jnp.float32, scale=0.5)
    for optimizer in (0.05, optax.sgd(0.05, momentum=0.9), gf.NormScaledRate(0.05)):
        traj = gf.descend(problem, net, optimizer, 5)
        assert float_dtypes(traj) == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(steps=0), "steps=0 must be 1 or more"),
        (dict(batch_size=13), "batch_size=13 must lie between 1 and the 12 samples"),
        (dict(batch_size=3), "key is missing"),
        (dict(save_every=20), "save_every=20 must lie between 1 and steps=10"),
        (dict(optimizer=-0.1), "optimizer=-0.1 is no learning rate"),
    ],
    ids=str,
)
def test_arguments(teacher, kwargs, message):
    net = gf.nets.MLP([4, 3, 2], key=jax.random.key(0))
    given = dict(optimizer=0.1, steps=10) | kwargs
    with pytest.raises(ValueError, match=message):
        gf.descend(teacher, net, **given)


def test_distance_of_single_saves():
    problem, net = all_active(2, noise=0.3)
    ends = [
        gf.solve(gf.GradientFlow(problem), net, 1.0, ts=[1.0], solver=tight(rtol))
        for rtol in (1e-3, 1e-9)
    ]
    gap = gf.distance(*ends)
    wanted = distance(ends[0].final, ends[1].final) * float(gf.nets.norm(ends[1].final))
    np.testing.assert_allclose(gap.total, [wanted], rtol=1e-9)


def test_distance_refuses_what_cannot_be_compared():
    problem, net = all_active(2, noise=0.3)
    physical = gf.descend(problem, net, 0.01, 100, save_every=1)
    escape = eqx.tree_at(lambda t: t.flow, physical, gf.EscapeFlow(problem))
    later = eqx.tree_at(lambda t: t.ts, physical, physical.ts + 2)
    with pytest.raises(ValueError, match="compare two trajectories of one flow"):
        gf.distance(physical, escape)
    with pytest.raises(ValueError, match="no common time"):
        gf.distance(physical, later)
    zero = gf.distance(physical, physical)
    assert zero.layers.shape == (101, 2) and float(zero.total.max()) <= 1e-15
