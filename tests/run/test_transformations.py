"""Solves under jit, vmap and differentiation."""

import functools
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import all_active, distance, sliding, tight

import gfdyn as gf
from gfdyn.run._begin import begin
from gfdyn.run._integrate import advance
from gfdyn.run._solve import make_task


class TestTransformations:
    def test_second_solve_does_not_compile(self):
        """Other data, seed, scale, tolerance and most steps of the same shape: nothing is
        traced."""
        traces = []

        class CountedLoss(gf.losses.AbstractLoss):
            def targets(self, y):
                return gf.losses.squared.targets(y)

            def values(self, outputs, targets):
                traces.append(None)
                return gf.losses.squared.values(outputs, targets)

            def log_values(self, outputs, targets):
                return gf.losses.squared.log_values(outputs, targets)

            def margins(self, outputs, targets):
                return gf.losses.squared.margins(outputs, targets)

        def run(seed, scale, rtol, flow, max_steps):
            data = gf.data.teacher(5, [3, 2, 1], key=jax.random.key(seed))
            problem = gf.Problem(data, CountedLoss())
            net = gf.nets.MLP([3, 2, 1], key=jax.random.key(seed + 1), scale=scale)
            record = {
                "risk": gf.diagnostics.risk,
                "top": functools.partial(gf.diagnostics.singular_values, k=2),
            }
            return gf.solve(
                flow(problem),
                net,
                t1=0.1 + scale,
                record=record,
                solver=gf.solvers.Adaptive(rtol=rtol),
                stop=gf.stopping.RiskBelow(1e-3 * scale),
                max_steps=max_steps,
            )

        for flow in (gf.GradientFlow, gf.EscapeFlow):
            run(0, 0.1, 1e-4, flow, 4000)
            first = len(traces)
            run(1, 0.2, 1e-5, flow, 4001)
            assert first > 0 and len(traces) == first
            traces.clear()

    @pytest.mark.parametrize("solver", [gf.solvers.Adaptive(), gf.solvers.ExactKinks()])
    def test_portions_share_a_program(self, solver):
        """What the loop gives back has the structure of what it starts from."""
        problem, net = sliding()
        task = make_task(
            gf.GradientFlow(problem), net, 1.0, [1.0], 0, solver, (), 0.0, 9, "reverse"
        )
        start = begin(task, net, None)
        after = eqx.filter_eval_shape(advance, task, start, jnp.asarray(2))
        arrays = eqx.filter(start, eqx.is_array)
        later = eqx.filter(after, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
        assert jax.tree.structure(arrays) == jax.tree.structure(later)

    def test_vmap_over_nets_and_data(self):
        data = [gf.data.teacher(6, [3, 2, 1], key=jax.random.key(i)) for i in range(3)]
        problems = [gf.Problem(d, gf.losses.squared) for d in data]
        # Linear nets: across kinks, rounding alone would change the steps.
        make = functools.partial(gf.nets.MLP, [3, 4, 1], activation="identity")
        nets = [make(key=jax.random.key(9 + i)) for i in range(3)]
        stack = lambda *trees: jax.tree.map(lambda *a: jnp.stack(a), *trees)  # noqa: E731
        times = jnp.linspace(0, 1, 4)

        def run(problem, net):
            flow = gf.GradientFlow(problem)
            return gf.solve(flow, net, ts=times, solver=tight(1e-8), throw=False)

        batched = jax.vmap(run)(stack(*problems), stack(*nets))
        assert batched.ts.shape == (3, 4)
        assert batched.summary().startswith("3 trajectories of a GradientFlow")
        for i in range(3):
            single = run(problems[i], nets[i])
            mine = jax.tree.map(lambda a, i=i: a[i], batched)
            assert mine.result == gf.RESULTS.successful
            assert int(mine.stats["num_steps"]) == int(single.stats["num_steps"])
            assert distance(mine.final, single.final) <= 1e-12

    def test_derivative_is_that_of_the_flow_map(self):
        """Against central differences, on a kink-free problem, in both modes."""
        problem, net = all_active(2, noise=0.3)
        push = jax.tree.map(
            lambda w: jnp.asarray(np.random.default_rng(1).normal(size=w.shape)), net
        )

        def final_risk(size, derivatives: Literal["reverse", "forward"] = "reverse"):
            moved = jax.tree.map(lambda w, d: w + size * d, net, push)
            traj = gf.solve(
                gf.GradientFlow(problem),
                moved,
                ts=[2.0],
                solver=tight(1e-11),
                throw=False,
                derivatives=derivatives,
            )
            return problem.risk(traj.final)

        h = 1e-4
        expected = (final_risk(h) - final_risk(-h)) / (2 * h)
        reverse = jax.grad(final_risk)(0.0)
        forward = jax.jvp(lambda s: final_risk(s, "forward"), (0.0,), (1.0,))[1]
        np.testing.assert_allclose(reverse, expected, rtol=1e-6)
        np.testing.assert_allclose(forward, expected, rtol=1e-6)

    def test_derivative_in_the_final_time(self):
        problem, net = all_active(2, noise=0.3)

        def final_risk(t1):
            flow = gf.GradientFlow(problem)
            return problem.risk(
                gf.solve(flow, net, t1=t1, ts=[0.0], solver=tight(), throw=False).final
            )

        traj = gf.solve(gf.GradientFlow(problem), net, t1=1.0, solver=tight())
        expected = -(gf.diagnostics.gradient_norm(problem, traj.final) ** 2)
        np.testing.assert_allclose(jax.grad(final_risk)(1.0), expected, rtol=1e-7)
