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


def flow_map(problem, net, rtol=1e-12, derivatives: Any = "reverse", solver=None):
    """The parameters at T1, as one vector."""
    flow = gf.GradientFlow(problem)
    solver = gf.solvers.ExactKinks(rtol=rtol) if solver is None else solver
    traj = gf.solve(
        flow,
        net,
        t1=T1,
        ts=[T1],
        solver=solver,
        throw=False,
        derivatives=derivatives,
        max_steps=4096,
    )
    return jnp.concatenate([jnp.ravel(w) for w in traj.final.weights])


def push_of(tree, seed):
    rng = np.random.default_rng(100 + seed)
    return jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape)), tree)


def moved_by(tree, size, push):
    return jax.tree.map(lambda w, d: w + size * d, tree, push)


@pytest.mark.slow
def test_through_crossings_captures_and_releases():
    plain_errors, events = [], np.zeros(3, int)
    for seed in range(12):
        problem, net = sliding(seed)
        push = push_of(net, seed)

        def along(size, net=net, problem=problem, push=push, **kwargs):
            return flow_map(problem, moved_by(net, size, push), **kwargs)

        def tangent(along=along, **kwargs):
            forward = functools.partial(along, derivatives="forward", **kwargs)
            return jax.jvp(forward, (0.0,), (1.0,))[1]

        first, second = (
            (along(h) - along(-h)) / (2 * h) for h in (jnp.asarray(1e-5), jnp.asarray(1e-6))
        )
        size = jnp.linalg.norm(second)
        doubt = float(jnp.linalg.norm(first - second) / size)
        error = float(jnp.linalg.norm(tangent(rtol=1e-12) - second) / size)
        assert error <= (1e-7 if doubt < 1e-8 else 1e-5), (seed, error, doubt)
        plain = tangent(solver=tight(1e-10))
        plain_errors.append(float(jnp.linalg.norm(plain - second) / size))
        traj = gf.solve(
            gf.GradientFlow(problem),
            net,
            t1=T1,
            ts=[T1],
            solver=gf.solvers.ExactKinks(rtol=1e-12),
        )
        names = ("num_crossings", "num_slides", "num_releases")
        events += np.array([int(traj.stats[name]) for name in names])
    assert np.all(events >= [50, 10, 3]), events
    # Differentiating through an ordinary solver drops the jumps.
    assert np.median(plain_errors) >= 0.05, plain_errors


@pytest.mark.slow
def test_reverse_equals_forward():
    for seed in (0, 1):
        problem, net = sliding(seed)
        push = push_of(net, seed)
        weights = push_of(flow_map(problem, net), seed)

        def scalar(net, derivatives, problem=problem, weights=weights):
            end = flow_map(problem, net, rtol=1e-10, derivatives=derivatives)
            return jnp.vdot(weights, end)

        gradient = jax.grad(functools.partial(scalar, derivatives="reverse"))(net)
        forward = functools.partial(scalar, derivatives="forward")
        _, along = jax.jvp(forward, (net,), (push,))
        pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(push), strict=True)
        reverse = sum(float(jnp.vdot(g, d)) for g, d in pairs)
        np.testing.assert_allclose(reverse, along, rtol=1e-9)


def test_in_the_data_and_the_labels():
    problem, net = sliding(2)
    push = push_of(problem.data, 2)

    def along(size, derivatives="reverse", rtol=1e-12):
        data = moved_by(problem.data, size, push)
        moved = gf.Problem(gf.Dataset(data.x, data.y), gf.losses.squared)
        return flow_map(moved, net, rtol, derivatives)

    h = jnp.asarray(1e-6)
    expected = (along(h) - along(-h)) / (2 * h)
    forward = functools.partial(along, derivatives="forward", rtol=1e-10)
    tangent = jax.jvp(forward, (0.0,), (1.0,))[1]
    error = jnp.linalg.norm(tangent - expected) / jnp.linalg.norm(expected)
    assert error <= 1e-6
