"""Branches in coordinates of their own, against descents and closed forms."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from reference import descended, flatten

import gfdyn as gf


FAR = math.exp(-200)
# Orthogonal inputs: positive and negative targets are learned by neurons of their own.
TARGETS = np.array([1.0, 2.0, -1.5, 0.7, -0.4])


def right_angles() -> gf.Problem:
    data = gf.Dataset(2 * jnp.eye(5), jnp.asarray(TARGETS)[:, None])
    return gf.Problem(data, gf.losses.squared)


def drawn(seed: int) -> tuple[gf.Problem, gf.nets.MLP]:
    of_x, of_y, of_net = jr.split(jr.key(seed), 3)
    data = gf.Dataset(jr.normal(of_x, (16, 3)), jr.normal(of_y, (16, 1)))
    net = gf.nets.MLP([3, 6, 1], key=of_net, scale=0.5)
    return gf.Problem(data, gf.losses.squared), net


@pytest.mark.parametrize("seed", [0, 3, 7, 12])
def test_it_ends_where_gradient_descent_does(seed):
    """Through crossings and slides: the error of descent is first order in its step."""
    problem, net = drawn(seed)
    traj = gf.solve(
        gf.flows.BranchFlow(problem), net, 4.0, solver=gf.solvers.ExactKinks(rtol=1e-8)
    )
    assert traj.stats["num_crossings"] > 0
    found = flatten(traj.final.weights)
    data = np.asarray(problem.data.x), np.asarray(problem.data.y)
    coarse, fine = (
        np.linalg.norm(flatten(descended(*data, net.weights, 4.0, steps)) - found)
        for steps in (10_000, 80_000)
    )
    assert fine < 0.25 * coarse and fine < 3e-5 * np.linalg.norm(found)


@pytest.fixture(scope="module")
def from_afar() -> gf.Trajectory:
    """Two layers, from e^-200 past both saddles to the fit."""
    net = gf.nets.MLP([5, 12, 1], key=jr.key(0), scale=FAR)
    return gf.solve(
        gf.flows.BranchFlow(right_angles()),
        net,
        jnp.inf,
        ts=gf.AcceptedSteps(2048),
        stop=gf.stopping.RiskBelow(1e-12),
    )


class TestFromAfar:
    def test_saddles(self, from_afar):
        """At each what is learned is fitted to the last: at first the positive targets."""
        found = gf.escape.episodes(from_afar)
        negative = np.minimum(TARGETS, 0)
        levels = [np.mean(TARGETS**2) / 2, np.mean(negative**2) / 2]
        np.testing.assert_allclose(found.plateaus.loss[:2], levels, rtol=1e-8)
        assert found.plateaus.ranks[:2].tolist() == [[0, 0], [1, 1]]

    def test_speeds(self, from_afar):
        """‖Σ y_k x_k‖/N over the targets of one sign."""
        found = gf.escape.episodes(from_afar)
        positive, negative = np.maximum(TARGETS, 0), np.minimum(TARGETS, 0)
        speeds = [2 * np.linalg.norm(y) / 5 for y in (positive, negative)]
        np.testing.assert_allclose(found.escapes.speed[:2], speeds, rtol=1e-3)

    def test_it_is_the_flow(self, from_afar):
        assert from_afar.stopped_by == "RiskBelow" and from_afar.certificate.holds
        assert from_afar.certificate.balance_drift < 1e-4
        assert from_afar.certificate.risk_increase < 1e-4
        assert from_afar.stats["num_crossings"] > 0

    def test_steps(self, from_afar):
        """At most 300 for a saddle."""
        assert from_afar.stats["num_steps"] < 2 * 300

    def test_saving(self, from_afar, tmp_path):
        from_afar.save(tmp_path / "far.nc")
        loaded = gf.load(tmp_path / "far.nc")
        for a, b in zip(*map(jax.tree.leaves, (loaded, from_afar)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_logistic_growth_from_any_scale():
    """One linear branch, d p/dt = 2 p (σ − p) with p its product, from 1e-2 to e^-300."""
    x = jnp.array([[1.0], [-1.0]])
    problem = gf.Problem(gf.Dataset(x, 3 * x), gf.losses.squared)
    for norm in (1e-2, FAR, math.exp(-300)):
        net = gf.escape.spectral(problem, 2, norm)
        half = (math.log(3) - 2 * math.log(norm) + math.log(2)) / 6
        traj = gf.solve(
            gf.flows.BranchFlow(problem),
            net,
            half,
            ts=[half],
            solver=gf.solvers.Stabilised(rtol=1e-9),
        )
        outputs = traj.final(x)[0, 0]
        exact = 3 / (1 + (6 / norm**2 - 1) * math.exp(-6 * half))
        np.testing.assert_allclose(outputs, exact, rtol=1e-6)


def test_what_rests_stands_still():
    problem, net = drawn(0)
    resting = jnp.arange(6) < 3
    traj = gf.solve(gf.flows.BranchFlow(problem, resting), net, 1.0)
    moved = np.abs(np.asarray(traj.final.weights[0] - net.weights[0])).max(axis=1)
    assert moved[:3].max() < 1e-15 and moved[3:].min() > 1e-3


def test_float32_stays():
    problem, net = drawn(0)
    data = problem.data.astype(jnp.float32)
    net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
    flow = gf.flows.BranchFlow(gf.Problem(data, gf.losses.squared))
    traj = gf.solve(flow, net, 1.0, solver=gf.solvers.ExactKinks(rtol=1e-4))
    assert {leaf.dtype for leaf in jax.tree.leaves(traj.final)} == {np.dtype("float32")}


class TestRefused:
    @pytest.mark.parametrize(
        ("widths", "activation", "message"),
        [
            ([3, 4, 4, 1], "relu", "give a two-layer MLP"),
            ([3, 4, 4, 1], "identity", "give a two-layer MLP"),
        ],
    )
    def test_no_branches(self, widths, activation, message):
        problem, _ = drawn(0)
        net = gf.nets.MLP(widths, key=jr.key(0), activation=activation)
        with pytest.raises(ValueError, match=message):
            gf.solve(gf.flows.BranchFlow(problem), net, 1.0)

    def test_kinks_in_deep_branches(self):
        problem, _ = drawn(0)
        deep = gf.escape.spectral(problem, 3, 1.0)
        bent = gf.nets.LayeredNet((3,), [*_bent(deep.layers[:-1]), deep.layers[-1]])
        gf.flows.BranchFlow(problem).check(deep)
        with pytest.raises(ValueError, match="net has kinks and 3 layers"):
            gf.solve(gf.flows.BranchFlow(problem), bent, 1.0)

    def test_a_branch_without_weights(self):
        problem, net = drawn(0)
        dead = gf.nets.MLP.from_weights(
            [net.weights[0].at[2].set(0.0), net.weights[1].at[:, 2].set(0.0)]
        )
        with pytest.raises(ValueError, match="norm 0 .* in branch 2"):
            gf.solve(gf.flows.BranchFlow(problem), dead, 1.0)


def _bent(layers: Any) -> list[gf.nets.Layer]:
    relu = gf.nets.relu()
    return [
        gf.nets.Layer(layer.connections, layer.bias, layer.sources, relu, layer.shape)
        for layer in layers
    ]
