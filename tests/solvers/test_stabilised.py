"""The stabilised solver: its method in closed form, plateaus, and its cost elsewhere."""

import dataclasses
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import distance
from numpy.polynomial import chebyshev

import gfdyn as gf
from gfdyn.flows import State
from gfdyn.solvers import Adaptive, Stabilised
from gfdyn.solvers._chebyshev import (
    chebyshev_step,
    error_of,
    longest_stable,
    stages_for,
)
from gfdyn.solvers._dense_output import of_ends, of_tsit5


def modes(sigmas, depth=2, scale=1e-3):
    """A linear net that learns Y = diag(σ) of X = 1, one mode at a time; balanced."""
    d = len(sigmas)
    data = gf.Dataset(np.eye(d), np.diag(sigmas))
    problem = gf.Problem(data, gf.losses.squared, reduction="sum")
    weights = [scale * np.eye(d)] * depth
    return problem, gf.nets.MLP.from_weights(weights, activation="identity")


def strengths(sigmas, scale, t):
    """Of two layers: da/dt = 2a(σ − a), a(0) = scale²."""
    s = np.asarray(sigmas)
    return s / (1 + (s / scale**2 - 1) * np.exp(-2 * s * t))


class TestMethod:
    @pytest.mark.parametrize("stages", [2, 3, 7, 60])
    def test_on_a_linear_field_it_is_the_shifted_polynomial(self, stages):
        """P_s(z) = 1 − b T_s(w₀) + b T_s(w₀ + w₁ z), from NumPy's Chebyshev series."""
        series = np.eye(stages + 1)[stages]
        w0 = 1 + 2 / 13 / stages**2
        slope, bend = (chebyshev.chebval(w0, chebyshev.chebder(series, m)) for m in (1, 2))
        w1, b = slope / bend, bend / slope**2
        z = -np.array([1e-3, 0.1, 1.0, 0.3 * stages**2, 0.65 * (stages**2 - 1)])
        wanted = 1 + b * (
            chebyshev.chebval(w0 + w1 * z, series) - chebyshev.chebval(w0, series)
        )

        def field(y, time):
            return State(z * y, jnp.zeros(())), time

        start, size = State(jnp.ones(5), jnp.zeros(())), jnp.ones(())
        first = field(start.position, jnp.zeros(()))
        end, (last, _) = chebyshev_step(
            field, start, first, size, jnp.asarray(stages), "lax"
        )
        np.testing.assert_allclose(end.position, wanted, rtol=0, atol=1e-11)
        np.testing.assert_array_equal(last.position, z * end.position)
        assert np.all(np.abs(wanted[1:]) < 1)

    def test_order_and_error_estimate(self):
        """y' = −y² from 1: y = 1/(1 + t); of third order in a step, as the estimate is."""

        def field(y, time):
            return State(-(y**2), jnp.zeros(())), time

        start = State(jnp.ones(1), jnp.zeros(()))
        first, stages = field(start.position, jnp.zeros(())), jnp.asarray(30)
        errors, estimates = [], []
        for size in (0.02, 0.01):
            step = jnp.asarray(size)
            end, (last, _) = chebyshev_step(field, start, first, step, stages, "lax")
            estimate = error_of(start, end, first[0], last, step)
            errors.append(float(end.position[0]) - 1 / (1 + size))
            estimates.append(float(estimate.position[0]))
            output = of_ends(start, end, first[0], last, step)
            middle = output.evaluate(jnp.asarray(size / 2)).position[0]
            assert abs(float(middle) - 1 / (1 + size / 2)) < 2 * abs(errors[-1])
        np.testing.assert_allclose(errors[0] / errors[1], 8, rtol=0.05)
        np.testing.assert_allclose(estimates[0] / estimates[1], 8, rtol=0.05)
        # On the safe side
        assert 1 < abs(estimates[1] / errors[1]) < 2

    def test_dense_output_of_tsit5_is_that_of_diffrax(self):
        keys = jax.random.split(jax.random.key(0), 2)
        stages = jax.vmap(lambda k: State(k, k[0]))(jax.random.normal(keys[0], (7, 5)))
        start = State(jax.random.normal(keys[1], (5,)), jnp.zeros(()))
        size = jnp.asarray(0.3)
        theirs = dfx.Tsit5.interpolation_cls(
            t0=jnp.zeros(()), t1=size, y0=start, y1=start, k=stages
        )
        ours = of_tsit5(stages, start, size)
        for time in jnp.linspace(0.0, size, 7):
            wanted = theirs.evaluate(time).position
            found = ours.evaluate(time).position
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-13)

    def test_stages_know_their_times(self):
        """dy/dt = 2t, of the time that they are told, is met to rounding: second order."""

        def field(y, time):
            del y
            return State(2 * time[None], jnp.zeros(())), time

        start, zero = State(jnp.zeros(1), jnp.zeros(())), jnp.zeros(())
        first, size = field(None, zero), jnp.asarray(0.7)
        end, (_, time) = chebyshev_step(field, start, first, size, jnp.asarray(9), "lax")
        np.testing.assert_allclose(end.position, 0.49, rtol=1e-13)
        np.testing.assert_allclose(time, 0.7, rtol=1e-13)

    def test_stages_reach_as_far_as_they_are_asked_to(self):
        radius = jnp.asarray(7.0)
        longest = longest_stable(radius)
        assert stages_for(longest, radius) == 200
        assert stages_for(0.25 * longest, radius) in (100, 101)
        assert stages_for(jnp.asarray(1e-9), radius) == 2


class TestPlateaus:
    @pytest.mark.parametrize("rtol", [1e-4, 1e-7])
    def test_a_chain_of_saddles_at_a_fraction_of_the_cost(self, rtol):
        """In closed form; Tsit5 is held by the largest mode long after that was learnt."""
        sigmas, scale = [4.0, 0.5, 0.05], 1e-3
        problem, net = modes(sigmas, scale=scale)
        ts = jnp.asarray([40.0, 200.0, 2000.0])
        runs = [
            gf.solve(gf.GradientFlow(problem), net, ts=ts, solver=kind(rtol=rtol))
            for kind in (Adaptive, Stabilised)
        ]
        for i, t in enumerate(ts):
            first, second = (np.asarray(w[i]) for w in runs[1].net.weights)
            wanted = strengths(sigmas, scale, float(t))
            np.testing.assert_allclose(np.diag(second @ first), wanted, atol=300 * rtol)
        cost = [int(run.stats["num_field_evaluations"]) for run in runs]
        assert 5 * cost[1] < cost[0]
        assert runs[1].certificate.holds
        assert runs[1].certificate.energy_residual <= 30 * rtol

    def test_an_escape_and_what_follows(self):
        """From norm 1e-8, in polar coordinates."""
        problem, net = modes([2.0, 0.2], depth=3, scale=0.3)
        net = gf.nets.scaled_to_norm(net, 1e-8)
        flow = gf.EscapeFlow(problem)
        runs = [
            gf.solve(flow, net, t1=1500.0, ts=[20.0, 1500.0], solver=kind(rtol=1e-7))
            for kind in (Adaptive, Stabilised)
        ]
        assert distance(runs[1].final, runs[0].final) <= 1e-5
        cost = [int(run.stats["num_field_evaluations"]) for run in runs]
        assert 5 * cost[1] < cost[0]

    def test_where_accuracy_limits_the_steps_it_costs_what_tsit5_does(self):
        problem, net = modes([1.0, 0.9, 0.8], scale=0.1)
        for rtol in (1e-4, 1e-7):
            cost = [
                int(
                    gf.solve(
                        gf.GradientFlow(problem), net, t1=8.0, solver=kind(rtol=rtol)
                    ).stats["num_field_evaluations"]
                )
                for kind in (Adaptive, Stabilised)
            ]
            assert cost[1] <= 1.1 * cost[0]

    def test_a_smooth_model_of_ones_own(self):
        model = eqx.nn.MLP(3, 1, 8, 2, activation=jnp.tanh, key=jax.random.key(1))
        model = jax.tree.map(
            lambda w: w.astype(jnp.float64) if eqx.is_inexact_array(w) else w, model
        )
        teacher = gf.data.teacher(12, [3, 3, 1], key=jax.random.key(2))
        flow = gf.GradientFlow(gf.Problem(teacher, gf.losses.squared))
        net = gf.nets.wrap(model)
        runs = [
            gf.solve(flow, net, t1=1000.0, solver=solver)
            for solver in (Adaptive(rtol=1e-9), Stabilised(rtol=1e-6))
        ]
        assert distance(runs[1].final, runs[0].final) <= 3e-5
        assert runs[1].certificate.holds
        cost = [int(run.stats["num_field_evaluations"]) for run in runs]
        assert 3 * cost[1] < cost[0]


def end(scale, derivatives: Any = "reverse"):
    """Where strengths of 4 and 0.3 have come to at t = 12, from a scale."""
    problem, net = modes([4.0, 0.3], scale=0.05)
    start = jax.tree.map(lambda w: scale * w, net)
    traj = gf.solve(
        gf.GradientFlow(problem),
        start,
        ts=[12.0],
        solver=Stabilised(rtol=1e-8),
        max_steps=256,
        derivatives=derivatives,
    )
    return jnp.sum(traj.final.weights[0])


def change_of_end(eps=1e-4):
    """How the end changes with the scale, at 1, by the closed form on which it lies."""

    def closed_form(scale):
        return np.sum(np.sqrt(strengths([4.0, 0.3], 0.05 * scale, 12.0)))

    np.testing.assert_allclose(end(1.0), closed_form(1.0), rtol=1e-6)
    return (closed_form(1 + eps) - closed_form(1 - eps)) / (2 * eps)


class TestTransformations:
    def test_derivatives_are_those_of_the_flow_map(self):
        wanted = change_of_end()
        np.testing.assert_allclose(jax.grad(end)(1.0), wanted, rtol=1e-5)
        forward = jax.jvp(lambda s: end(s, "forward"), (1.0,), (1.0,))[1]
        np.testing.assert_allclose(forward, wanted, rtol=1e-5)

    @pytest.mark.slow
    def test_lanes_of_derivatives_come_into_both_methods(self):
        lanes = jax.vmap(jax.grad(end))(jnp.asarray([1.0, 0.5]))
        np.testing.assert_allclose(lanes[0], change_of_end(), rtol=1e-5)

    def test_lanes_are_as_each_alone(self):
        problem, net = modes([4.0, 0.3], scale=0.05)

        def run(scale):
            start = jax.tree.map(lambda w: scale * w, net)
            return gf.solve(gf.GradientFlow(problem), start, ts=[60.0], solver=Stabilised())

        scales = jnp.asarray([0.1, 1.0])
        together = jax.vmap(run)(scales)
        for i, scale in enumerate(scales):
            alone = run(scale)
            assert together.stats["num_steps"][i] == alone.stats["num_steps"]
            np.testing.assert_allclose(
                together.final.weights[0][i], alone.final.weights[0], rtol=1e-9
            )

    def test_float32_stays(self):
        problem, net = modes([4.0, 0.3], scale=0.05)
        data = gf.Dataset(
            *(np.asarray(a, np.float32) for a in (problem.data.x, problem.data.y))
        )
        problem = dataclasses.replace(problem, data=data)
        net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
        traj = gf.solve(
            gf.GradientFlow(problem), net, t1=100.0, solver=Stabilised(rtol=1e-4)
        )
        assert traj.final.weights[0].dtype == jnp.float32
        product = traj.final.weights[1] @ traj.final.weights[0]
        np.testing.assert_allclose(np.diag(product), [4.0, 0.3], rtol=1e-3)

    def test_a_flow_that_switches_signs_is_refused(self):
        problem, net = modes([1.0, 0.5])
        with pytest.raises(ValueError, match=r"SignSwitches\(\)"):
            gf.solve(gf.flows.SignFlow(problem), net, t1=1.0, solver=Stabilised())
