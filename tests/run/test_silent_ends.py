"""Flows that could end elsewhere than gradient descent though no certificate shows it.

With positive inputs units slide below sites whose z is rounding, of which the sign may be
taken for one. Constant features and the logistic loss are held to the same promise.
"""

import functools
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import gfdyn as gf


RTOL, T1 = 1e-6, 10.0
# What is promised, in units of rtol for a unit of time.
PROMISED = 30
KEYS = 1000, 1001, 1002


def of_layers(key: Any) -> gf.nets.MLP:
    keys = zip(jr.split(key, 3), ((6, 3), (6, 6), (1, 6)), strict=True)
    return gf.nets.MLP.from_weights([0.5 * jr.normal(k, shape) for k, shape in keys])


def at_scale(key: Any) -> gf.nets.MLP:
    return gf.nets.MLP([3, 6, 6, 1], key=key, scale=0.5)


def positive(x: Any, y: Any) -> gf.Problem:
    return gf.Problem(gf.Dataset(jnp.abs(x), y), gf.losses.squared)


def constant(x: Any, y: Any) -> gf.Problem:
    return gf.Problem(gf.Dataset(x.at[:, 0].set(1.0), y), gf.losses.squared)


def logistic(x: Any, y: Any) -> gf.Problem:
    return gf.Problem(gf.Dataset(x, jnp.sign(y)), gf.losses.logistic)


def drawn(structure: Any, network: Any, key: int) -> tuple[gf.Problem, gf.nets.MLP]:
    of_data, of_net = jr.split(jr.key(key))
    of_x, of_y = jr.split(of_data)
    x, y = jr.normal(of_x, (16, 3)), jr.normal(of_y, (16, 1))
    return structure(x, y), network(of_net)


CASES = [
    *((positive, network, key) for network in (of_layers, at_scale) for key in KEYS),
    *((structure, at_scale, key) for structure in (constant, logistic) for key in KEYS),
]


def row(weights: Any) -> np.ndarray:
    return np.concatenate([np.ravel(w) for w in weights])


def solved(case: tuple[Any, Any, int], t1: float) -> gf.Trajectory:
    problem, net = drawn(*case)
    solver = gf.solvers.ExactKinks(rtol=RTOL)
    return gf.solve(gf.GradientFlow(problem), net, t1=t1, ts=[t1], solver=solver)


@functools.cache
def descended(rate: float) -> np.ndarray:
    """Where plain gradient descent is at T1, in each case; all side by side."""
    problems, nets = zip(*(drawn(*case) for case in CASES), strict=True)
    x, y = (np.stack([getattr(p.data, name) for p in problems]) for name in "xy")
    a, b, c = (np.stack([net.weights[i] for net in nets]) for i in range(3))
    is_logistic = np.reshape([p.loss is gf.losses.logistic for p in problems], (-1, 1, 1))
    for _ in range(round(T1 / rate)):
        z1 = x @ a.swapaxes(1, 2)
        h1 = np.maximum(z1, 0)
        z2 = h1 @ b.swapaxes(1, 2)
        h2 = np.maximum(z2, 0)
        outputs = h2 @ c.swapaxes(1, 2)
        residual = np.where(is_logistic, -y / (1 + np.exp(y * outputs)), outputs - y)
        residual = residual / x.shape[1]
        back2 = (residual @ c) * (z2 > 0)
        back1 = (back2 @ b) * (z1 > 0)
        c = c - rate * residual.swapaxes(1, 2) @ h2
        b = b - rate * back2.swapaxes(1, 2) @ h1
        a = a - rate * back1.swapaxes(1, 2) @ x
    return np.stack([row(weights) for weights in zip(a, b, c, strict=True)])


@pytest.mark.parametrize("number", range(len(CASES)))
def test_flow_ends_where_ever_smaller_steps_lead_to(number):
    coarse, fine = (descended(rate)[number] for rate in (1e-3, 5e-4))
    traj = solved(CASES[number], T1)
    limit = 2 * fine - coarse
    off = np.linalg.norm(row(traj.final.weights) - limit) / np.linalg.norm(limit)
    assert off <= PROMISED * RTOL * T1
    assert traj.certificate.choices == 0 and traj.certificate.holds


def test_flow_says_where_gradient_descent_may_end_elsewhere():
    """By t = 30 the flow of key 1002 is not unique: descents of all steps end beside it."""
    traj = solved((positive, at_scale, 1002), 30.0)
    assert traj.result == gf.RESULTS.successful
    assert traj.certificate.choices > 0
