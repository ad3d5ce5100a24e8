"""Galanti & Poggio: laws of decay, step by step and in continuous time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import distance, rows
from galanti_cases import (
    DECAY,
    ETA,
    by_hand,
    flow,
    low_rank_distance,
    random_net,
    regression,
    sgd,
    switched,
)

import gfdyn as gf
from gfdyn.theory import galanti


null_space_law = jax.jit(galanti.null_space_law, static_argnums=4)
column_sum_law = jax.jit(galanti.column_sum_law)
balance_step = jax.jit(galanti.balance_step)


# --- Laws of decay ---------------------------------------------------------------------


def test_what_decay_alone_moves():
    """Of SGD: off the span of the inputs, and the head's column sums."""
    widths = (6, 5, 5, 3)
    problem = regression(widths, n=4, loss=gf.losses.cross_entropy)
    net = random_net(widths)
    end = sgd(problem, net, 20, size=2).final
    survival = galanti.survival(jnp.full(20, ETA), DECAY)
    np.testing.assert_allclose(survival, (1 - 2 * ETA * DECAY) ** 20, rtol=1e-13)
    laws = [
        null_space_law(problem, net, end, survival),
        column_sum_law(net, end, survival),
    ]
    for law in laws:
        assert law.verdict == "HOLDS" and float(law.lhs) <= 1e-12
    assert column_sum_law(net, end, 0.9 * survival).verdict == "VIOLATED"
    assert null_space_law(problem, net, end, 0.9).verdict == "VIOLATED"


def test_balance_of_layers_step_by_step():
    problem, net = regression(), random_net()
    end = gf.descend(problem, net, ETA, 1, weight_decay=DECAY).final
    law = balance_step(problem, net, end, ETA, DECAY)
    assert law.lhs.shape == (2,) and law.verdict == "HOLDS"
    gap = np.abs(np.asarray(law.lhs - law.rhs)).max()
    assert gap <= 1e-12 * float(gf.nets.norm(net)) ** 2
    assert balance_step(problem, net, end, ETA, 0.0).verdict == "VIOLATED"


# --- Continuous time -------------------------------------------------------------------


def two_samples(height=1.0):
    """The problem of seven in four dimensions, and that of the first two of them."""
    data, pair = regression().data, jnp.arange(2)
    data = gf.Dataset(data.x, height * data.y)
    return [gf.Problem(d, gf.losses.squared) for d in (data, data.subset(pair))]


def test_the_flow_decays_what_it_conserves():
    """dW/dt = −∇R − 2λW: e^(−4λt) of the balance, e^(−2λt) off the span of the data."""
    (whole, problem), net, decay, t1 = two_samples(), random_net(), 0.05, 4.0
    end = flow(whole, net, decay, t1)
    survival = math.exp(-2 * decay * t1)
    x = np.asarray(problem.data.x)
    off = np.eye(4) - np.linalg.pinv(x) @ x
    first = [np.asarray(n.weights[0]) @ off for n in (net, end)]
    np.testing.assert_allclose(first[1], survival * first[0], atol=1e-7)
    law = null_space_law(problem, net, end, survival, 1e-7)
    assert law.verdict == "HOLDS" and float(law.lhs) > 0
    assert null_space_law(problem, net, end, 0.9, 1e-7).verdict == "VIOLATED"
    for layer in (0, 1):
        balances = [
            np.sum(np.asarray(n.weights[layer + 1]) ** 2, 0)
            - np.sum(np.asarray(n.weights[layer]) ** 2, 1)
            for n in (net, end)
        ]
        np.testing.assert_allclose(balances[1], survival**2 * balances[0], atol=1e-6)
    law = galanti.balance_decay(net, end, survival, tolerance=1e-6)
    assert law.verdict == "HOLDS"
    assert galanti.balance_decay(net, end, 1.0, tolerance=1e-6).verdict == "VIOLATED"
    # Its derivative at the start, by hand.
    velocity = gf.GradientFlow(problem, decay).velocity(net).position
    mean = [g.mean(axis=0) for g in by_hand(problem, net)]
    for v, g, w in zip(velocity.weights, mean, net.weights, strict=True):
        np.testing.assert_allclose(v, -g - 2 * decay * np.asarray(w), rtol=1e-12)


def test_decay_beyond_the_threshold_collapses():
    """From near the origin the norm grows at 0.9 λ_c and decays at 1.1 λ_c, at the rates
    s* − 2λ along the fastest direction; of gradient descent, whose steps multiply it."""
    rng = np.random.default_rng(3)
    # Of positive targets: then the fastest direction is on no kink.
    x, y = rng.normal(size=(6, 2)), np.abs(rng.normal(size=(6, 1)))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    best = gf.escape.planar_optimum(problem, width=5)
    s = float(best.speed)
    # By a fine grid of directions.
    angles = np.linspace(0, 2 * np.pi, 200_001)
    w = np.stack([np.cos(angles), np.sin(angles)])
    speeds = np.abs((y.T / len(y)) @ np.maximum(x @ w, 0))
    assert speeds.max() <= s * (1 + 1e-12)
    np.testing.assert_allclose(s, speeds.max(), rtol=1e-5)
    threshold = float(galanti.collapse_threshold(s))
    np.testing.assert_allclose(threshold, s / 2, rtol=1e-15)
    step, steps = 0.01 / s, 12_000

    def norms(net, scale):
        """At 0.9 and 1.1 λ_c, after a sixth of the steps and at the end."""

        def of(decay):
            found = gf.descend(
                problem, start, step, steps, weight_decay=decay, save_every=steps // 6
            )
            return jax.vmap(gf.nets.norm)(found.net)

        start = gf.nets.scaled_to_norm(net, scale)
        both = jax.vmap(of)(threshold * jnp.asarray([0.9, 1.1]))
        return np.asarray(both)[:, [1, -1]]

    for factor, (early, _) in zip((0.9, 1.1), norms(best.net, 1e-6), strict=True):
        grown = math.log(early / 1e-6) / (steps // 6)
        np.testing.assert_allclose(grown, math.log1p(0.01 * (1 - factor)), rtol=1e-5)
    # Beyond, whatever the direction; a generic one finds the way out below.
    (_, below), (_, beyond) = norms(random_net((2, 5, 1), 4), 1e-3)
    assert below > 1e-2 and beyond < 1e-4
    with pytest.raises(ValueError, match="optimal_speed=-1.0 must be 0 or more"):
        galanti.collapse_threshold(-1.0)


def test_with_three_layers_the_origin_attracts():
    """For any decay, at the rate 2λ."""
    start, decay = gf.nets.scaled_to_norm(random_net(), 1e-3), 0.05
    end = flow(two_samples()[0], start, decay, 20.0)
    shrunk = math.log(float(gf.nets.norm(end)) / 1e-3)
    np.testing.assert_allclose(shrunk, -2 * decay * 20.0, rtol=1e-2)


def test_at_rest_under_decay_the_rank_is_that_of_the_samples():
    """Full batches: every matrix is a sum of m of rank one, and f is not 0."""
    # Targets so large that f = 0 does not attract.
    (whole, problem), decay = two_samples(3.0), 0.02
    end = flow(whole, random_net(), decay, 12.5 / decay)
    assert float(jnp.abs(problem.outputs(end)).max()) > 0.1
    for w in end.weights[:2]:
        s = np.linalg.svd(np.asarray(w), compute_uv=False)
        assert s[2:].max() < 1e-9 * np.linalg.norm(s)
    law = low_rank_distance(problem, end, decay, galanti.all_batches(2, 2))
    assert law.verdict == "HOLDS"


def test_the_switched_flow():
    """Window after window; the first layer gains rank B, others more."""
    problem, net, decay, eta = regression(), random_net(), 0.1, 0.5

    def of(net, batches, duration):
        return switched(problem, net, batches, duration, jnp.asarray(decay))

    batches = jnp.asarray([[0, 1], [4, 2], [3, 6]])
    nets = of(net, batches, eta)
    again = of(rows(nets, 0), jnp.roll(batches, -1, axis=0), eta)
    assert distance(rows(again, 0), rows(nets, 1)) < 1e-12
    survival = math.exp(-2 * decay * eta)
    for before, after in ((net, rows(nets, 0)), (rows(nets, 1), rows(nets, 2))):
        check = galanti.low_rank_window(before, after, 2, survival, 1e-6)
        assert check.applies.tolist() == [True, False, False] and check.verdict == "HOLDS"
        assert float(check.lhs[0]) < 1e-6 < 1e-4 < float(check.lhs[1])
    # Short windows are steps of SGD.
    short = of(net, batches, 1e-4)
    moved = jax.tree.map(lambda a, b: (b[0] - a) / 1e-4, net, short)
    for v, w, g in zip(moved.weights, net.weights, by_hand(problem, net), strict=True):
        expected = -g[:2].mean(axis=0) - 2 * decay * np.asarray(w)
        np.testing.assert_allclose(v, expected, atol=2e-3)
