"""ReLU teachers of rank two, from a small network past all saddles to the fit."""

import math

import jax.random as jr
import numpy as np
import pytest
from reference import descended, flatten

import gfdyn as gf


RTOL = 1e-6
STRENGTHS = np.array([4.0, 0.4])


@pytest.fixture(scope="module", params=[0, 1])
def seed(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def start(seed) -> tuple[gf.Problem, gf.nets.MLP]:
    """A teacher of two orthogonal neurons with orthogonal outputs, its inputs white and
    symmetric, and a student of six neurons at e^-10."""
    rng = np.random.default_rng(seed)
    features = np.linalg.qr(rng.normal(size=(4, 2)))[0]
    outputs = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    half = math.sqrt(12) * np.linalg.qr(rng.normal(size=(12, 4)))[0]
    x = np.concatenate([half, -half])
    y = (np.maximum(x @ features, 0) * STRENGTHS) @ outputs.T
    net = gf.nets.MLP([4, 6, 2], key=jr.key(seed + 100), scale=math.exp(-10))
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared), net


def solved(start: tuple[gf.Problem, gf.nets.MLP], t1: float, rtol: float) -> gf.Trajectory:
    problem, net = start
    return gf.solve(
        gf.flows.BranchFlow(problem),
        net,
        t1,
        ts=gf.AcceptedSteps(1024),
        stop=gf.stopping.RiskBelow(1e-9),
        solver=gf.solvers.ExactKinks(rtol=rtol),
    )


@pytest.fixture(scope="module")
def fit(start) -> gf.Trajectory:
    return solved(start, math.inf, RTOL)


def test_it_comes_to_the_fit(fit):
    assert fit.stopped_by == "RiskBelow" and fit.certificate.choices == 0
    assert fit.stats["num_crossings"] > 50


def test_the_risk_falls_and_neurons_stay_balanced(fit):
    assert fit.certificate.holds
    assert fit.certificate.risk_increase < RTOL
    assert fit.certificate.balance_drift < 100 * RTOL


def test_steps(fit):
    """At most 300 a saddle."""
    assert fit.stats["num_steps"] < 2 * 300


def test_descent_is_there_as_well(start):
    """On the way, halfway through both saddles."""
    problem, net = start
    traj = solved(start, 40.0, 1e-8)
    x, y = (np.asarray(a) for a in (problem.data.x, problem.data.y))
    found = flatten(traj.final.weights)
    coarse, fine = (
        np.linalg.norm(flatten(descended(x, y, net.weights, 40.0, steps)) - found)
        for steps in (20_000, 80_000)
    )
    assert fine < 0.35 * coarse and fine < 2e-4 * np.linalg.norm(found)
