"""Derivatives through exact kinks: against central differences of the flow map, of which
two sizes are compared."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import sliding, tight

import gfdyn as gf


T1 = 3.0


def flow_map(problem, net, rtol: Any, derivatives: Any, exact=True):
    """The parameters at T1, as one vector, and what was met on the way."""
    traj = gf.solve(
        gf.GradientFlow(problem),
        net,
        t1=T1,
        ts=[T1],
        solver=gf.solvers.ExactKinks(rtol=rtol) if exact else tight(rtol),
        throw=False,
        derivatives=derivatives,
        max_steps=4096,
    )
    return jnp.concatenate([jnp.ravel(w) for w in traj.final.weights]), traj.stats


@functools.partial(jax.jit, static_argnames="exact")
def along(problem, net, pushes, size, rtol, exact=True):
    """The flow map so far along the pushes of the data and of the net, and its derivative
    there: one program for all tests."""

    def moved(size):
        data = moved_by(problem.data, size, pushes[0])
        moved = gf.Problem(gf.Dataset(data.x, data.y), gf.losses.squared)
        return flow_map(moved, moved_by(net, size, pushes[1]), rtol, "forward", exact)

    return jax.jvp(moved, (size,), (jnp.ones_like(size),), has_aux=True)


def difference(problem, net, pushes, size):
    """The central difference."""
    ends = [
        along(problem, net, pushes, jnp.asarray(h), jnp.asarray(1e-12))[0]
        for h in (size, -size)
    ]
    return (ends[0] - ends[1]) / (2 * size)


def push_of(tree, seed):
    rng = np.random.default_rng(100 + seed)
    return jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape)), tree)


def moved_by(tree, size, push):
    return jax.tree.map(lambda w, d: w + size * d, tree, push)


def none_of(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def test_through_crossings_captures_and_releases():
    plain_errors, events = [], np.zeros(3, int)
    for seed in range(12):
        problem, net = sliding(seed)
        pushes = none_of(problem.data), push_of(net, seed)
        here = problem, net, pushes
        first, second = (difference(*here, size) for size in (1e-5, 1e-6))
        size = jnp.linalg.norm(second)
        doubt = float(jnp.linalg.norm(first - second) / size)
        zero = jnp.asarray(0.0)
        _, tangent, stats = along(*here, zero, jnp.asarray(1e-12))
        error = float(jnp.linalg.norm(tangent - second) / size)
        assert error <= (1e-7 if doubt < 1e-8 else 1e-5), (seed, error, doubt)
        _, plain, _ = along(*here, zero, jnp.asarray(1e-10), exact=False)
        plain_errors.append(float(jnp.linalg.norm(plain - second) / size))
        names = ("num_crossings", "num_slides", "num_releases")
        events += np.array([int(stats[name]) for name in names])
    assert np.all(events >= [50, 10, 3]), events
    # Differentiating through an ordinary solver drops the jumps.
    assert np.median(plain_errors) >= 0.05, plain_errors


@pytest.mark.slow
def test_reverse_equals_forward():
    @jax.jit
    @functools.partial(jax.grad, argnums=1)
    def gradient_of(problem, net, weights):
        return jnp.vdot(weights, flow_map(problem, net, 1e-10, "reverse")[0])

    for seed in (0, 1):
        problem, net = sliding(seed)
        pushes = none_of(problem.data), push_of(net, seed)
        end, tangent, _ = along(problem, net, pushes, jnp.asarray(0.0), jnp.asarray(1e-10))
        weights = push_of(end, seed)
        gradient = gradient_of(problem, net, weights)
        pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(pushes[1]), strict=True)
        reverse = sum(float(jnp.vdot(g, d)) for g, d in pairs)
        np.testing.assert_allclose(reverse, jnp.vdot(weights, tangent), rtol=1e-9)


def test_in_the_data_and_the_labels():
    problem, net = sliding(2)
    pushes = push_of(problem.data, 2), none_of(net)
    expected = difference(problem, net, pushes, 1e-6)
    _, tangent, _ = along(problem, net, pushes, jnp.asarray(0.0), jnp.asarray(1e-10))
    error = jnp.linalg.norm(tangent - expected) / jnp.linalg.norm(expected)
    assert error <= 1e-6


@jax.jit
def through_an_opening(size, rtol):
    """A deep narrow flow so far along a push of its weights, the derivative there, and what
    it met."""
    rng = np.random.default_rng(1)
    problem = gf.Problem(
        gf.Dataset(rng.normal(size=(16, 3)), rng.normal(size=(16, 1))), gf.losses.squared
    )
    widths = [(3, 3), (3, 3), (1, 3)]
    weights = [jnp.asarray(rng.normal(size=w)) / jnp.sqrt(w[1]) for w in widths]
    push = [jnp.asarray(rng.normal(size=w)) for w in widths]

    def moved(size):
        net = gf.nets.MLP.from_weights(
            [w + size * p for w, p in zip(weights, push, strict=True)]
        )
        solver = gf.solvers.ExactKinks(rtol=rtol)
        flow = gf.GradientFlow(problem)
        traj = gf.solve(
            flow, net, ts=[13.5], solver=solver, derivatives="forward", kinks=64
        )
        return jnp.concatenate([jnp.ravel(w) for w in traj.final.weights]), traj.kinks

    return jax.jvp(moved, (size,), (jnp.ones_like(size),), has_aux=True)


@pytest.mark.slow
def test_through_a_stacked_opening():
    """A unit opens for a sample on which it slid below another that slides, too."""
    zero, tight_rtol = jnp.asarray(0.0), jnp.asarray(1e-12)
    _, exact, log = through_an_opening(zero, jnp.asarray(1e-11))
    assert log is not None
    sliding, opened = set(), 0
    events = zip(log.time, log.layer, log.unit, log.sample, log.side, strict=True)
    for time, layer, unit, sample, side in (map(np.asarray, event) for event in events):
        site = int(layer), int(unit), int(sample)
        above = any(i == site[2] and deep > site[0] for deep, _, i in sliding)
        opened += not np.isnan(time) and site in sliding and side == 1 and above
        (sliding.add if side == 2 else sliding.discard)(site)
    assert opened == 1
    for size in (1e-5, 1e-6):
        ends = [through_an_opening(zero + sign * size, tight_rtol)[0] for sign in (1, -1)]
        difference = (ends[0] - ends[1]) / (2 * size)
        gap = np.linalg.norm(exact - difference) / np.linalg.norm(difference)
        assert gap <= 1e-7
