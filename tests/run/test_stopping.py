"""Stop conditions: which ends a solve, and where."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import all_active, distance, linear_problem, rows, sliding, tight

import gfdyn as gf


@pytest.fixture
def smooth():
    return all_active(2, noise=0.3)


class TestStops:
    def test_risk_below(self, smooth):
        problem, net = smooth
        stop = gf.stopping.RiskBelow(1e-3)
        traj = gf.solve(gf.GradientFlow(problem), net, t1=jnp.inf, stop=stop)
        assert traj.result == gf.RESULTS.stopped and traj.stopped_by == "RiskBelow"
        assert traj.final_risk <= 1e-3 and problem.risk(rows(traj.net, -2)) > 1e-3

    def test_radius_above(self):
        problem, net = all_active(3)
        net = gf.nets.scaled_to_norm(net, 1e-20)
        flow = gf.EscapeFlow(problem, localized=True)
        stop = [gf.stopping.RiskBelow(-1e9), gf.stopping.RadiusAbove(1e-3)]
        traj = gf.solve(flow, net, t1=jnp.inf, stop=stop, solver=tight())
        assert traj.stopped_by == "RadiusAbove" and traj.log_radius[-1] >= np.log(1e-3)

    def test_gradient_below_waits_for_the_gradient_to_grow(self):
        """At the start the gradient is tiny: that is no reason to stop."""
        problem, net = all_active(3)
        net = gf.nets.scaled_to_norm(net, 1e-8)
        stop = gf.stopping.GradientBelow(1e-3)
        flow = gf.EscapeFlow(problem)
        traj = gf.solve(flow, net, t1=jnp.inf, stop=stop, solver=tight())
        assert traj.stopped_by == "GradientBelow"
        assert traj.final_risk <= 1e-3 * traj.initial_risk

    def test_next_plateau(self):
        """A diagonal linear net learns one direction after the other."""
        a = np.diag([1.0, 0.2])
        problem = gf.Problem(gf.Dataset(np.eye(2), a), gf.losses.squared, reduction="sum")
        weights = [1e-4 * np.eye(2)] * 3
        net = gf.nets.MLP.from_weights(weights, activation="identity")
        stop = gf.stopping.NextPlateau(fraction=1e-3)
        traj = gf.solve(gf.EscapeFlow(problem), net, t1=jnp.inf, stop=stop)
        assert traj.stopped_by == "NextPlateau"
        # What is left of the risk is the direction that was not learnt.
        np.testing.assert_allclose(traj.final_risk, 0.5 * 0.2**2, rtol=2e-2)

    def test_ends_without_a_stop_if_none_is_met(self, smooth):
        problem, net = smooth
        stop = gf.stopping.RiskBelow(-1.0)
        # As accepted steps, in the program of the first test
        saves = gf.AcceptedSteps()
        traj = gf.solve(gf.GradientFlow(problem), net, t1=0.5, ts=saves, stop=stop)
        assert traj.result == gf.RESULTS.successful and traj.stopped_by is None


class TestLocated:
    """A condition on where the flow is ends it where the condition is met."""

    @pytest.mark.parametrize("rtol", [1e-6, 1e-9])
    def test_in_closed_form(self, rtol):
        """R(t) − R(∞) of one layer is a sum of exponentials of the data's spectrum."""
        problem, _ = linear_problem()
        x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
        zero = np.zeros((2, 4))
        net = gf.nets.MLP.from_weights([zero + 0.1], activation="identity")
        eigenvalues, basis = np.linalg.eigh(x.T @ x / len(x))
        least = np.linalg.lstsq(x, y, rcond=None)[0].T
        away = (zero + 0.1 - least) @ basis
        floor = 0.5 * np.mean(np.sum((y - x @ least.T) ** 2, axis=1))

        def risk(t):
            squares = away**2 * np.exp(-2 * eigenvalues * t)
            return floor + 0.5 * np.sum(squares * eigenvalues)

        value = float(risk(1.7))
        stop = gf.stopping.RiskBelow(value)
        flow = gf.GradientFlow(problem)
        traj = gf.solve(
            flow, net, t1=10.0, stop=stop, solver=gf.solvers.Adaptive(rtol=rtol)
        )
        assert abs(float(traj.final_time) - 1.7) <= 30 * rtol
        assert traj.final_risk <= value

    def test_through_kinks(self):
        """Where another solve ends, stops the one that knows its risk there."""
        problem, net = sliding()
        flow = gf.GradientFlow(problem)
        whole = gf.solve(flow, net, t1=2.5)

        def fallen(problem, net):
            return problem.risk(net) - whole.final_risk

        traj = gf.solve(flow, net, t1=3.0, stop=gf.stopping.When(fallen))
        assert traj.stopped_by == "fallen" and traj.stats["num_slides"] > 0
        assert distance(traj.final, whole.final) <= 1e-6
        np.testing.assert_allclose(traj.final_time, 2.5, rtol=1e-5)

    def test_just_before_the_end(self, smooth):
        """A last step is not drawn out over the stop, to the end of the solve."""
        problem, net = smooth
        flow = gf.GradientFlow(problem)
        stop = gf.stopping.RiskBelow(1e-3)
        time = float(gf.solve(flow, net, t1=jnp.inf, stop=stop).final_time)
        traj = gf.solve(flow, net, t1=time * (1 + 1e-4), stop=stop)
        assert traj.stopped_by == "RiskBelow"
        np.testing.assert_allclose(traj.final_time, time, rtol=1e-5)

    @pytest.mark.parametrize("order", [1, -1])
    def test_the_first_of_two_in_one_step(self, smooth, order):
        problem, net = smooth
        stops = [gf.stopping.RiskBelow(1.01e-3), gf.stopping.RiskBelow(1e-3)]
        flow = gf.GradientFlow(problem)
        traj = gf.solve(flow, net, t1=jnp.inf, stop=stops[::order])
        assert traj.stop_index == (0 if order == 1 else 1)
        np.testing.assert_allclose(traj.final_risk, 1.01e-3, rtol=1e-6)

    def test_what_holds_at_the_start_ends_the_first_step(self, smooth):
        problem, net = smooth
        stop = gf.stopping.RiskBelow(1e9)
        traj = gf.solve(gf.GradientFlow(problem), net, t1=jnp.inf, stop=stop)
        assert traj.stopped_by == "RiskBelow" and traj.stats["num_steps"] == 1
        assert traj.final_time > 0

    def test_derivatives_are_those_at_a_fixed_time(self, smooth):
        problem, net = smooth
        flow, stop = gf.GradientFlow(problem), gf.stopping.RiskBelow(1e-2)
        time = float(gf.solve(flow, net, t1=10.0, stop=stop).final_time)

        def end(scale, t1, stops):
            start = jax.tree.map(lambda w: scale * w, net)
            ts, solver = jnp.stack([t1]), gf.solvers.Adaptive(rtol=1e-6)
            traj = gf.solve(flow, start, ts=ts, stop=stops, solver=solver, max_steps=64)
            return jnp.sum(traj.final.weights[0])

        stopped = jax.grad(end)(1.0, jnp.asarray(10.0), stop)
        fixed = jax.grad(end)(1.0, jnp.asarray(time), gf.stopping.RiskBelow(-1.0))
        np.testing.assert_allclose(stopped, fixed, rtol=1e-5)

    def test_lanes_end_where_each_ends_alone(self, smooth):
        problem, net = smooth
        flow, stop = gf.GradientFlow(problem), gf.stopping.RiskBelow(1e-2)

        def run(scale):
            start = jax.tree.map(lambda w: scale * w, net)
            return gf.solve(flow, start, t1=50.0, stop=stop, solver=tight(1e-8))

        scales = jnp.asarray([0.3, 0.6])
        together = jax.vmap(run)(scales)
        alone = [run(scale) for scale in scales]
        np.testing.assert_allclose(together.final_risk, 1e-2, rtol=1e-7)
        np.testing.assert_allclose(
            together.final_time, [float(t.final_time) for t in alone], rtol=1e-7
        )


def small_risk(problem, net):
    return problem.risk(net) <= 1e-3


class TestWhen:
    """A stop of one's own sees the problem and the net."""

    def test_ends_as_the_condition_that_it_writes_out(self, smooth):
        problem, net = smooth
        flow = gf.GradientFlow(problem)
        own = gf.stopping.When(small_risk)
        ends = [
            gf.solve(flow, net, t1=float("inf"), stop=stop)
            for stop in (gf.stopping.RiskBelow(1e-3), own)
        ]
        assert ends[0].final_time == ends[1].final_time
        assert [t.stopped_by for t in ends] == ["RiskBelow", "small_risk"]

    def test_of_a_number_and_by_name(self, smooth):
        """Ends where it has come to 0, of θ itself where θ is in parts."""
        problem, net = smooth
        half = 0.5 * float(problem.risk(net))

        def above(problem, net):
            return problem.risk(net) - half

        stop = gf.stopping.When(above, name="fallen by half")
        traj = gf.solve(gf.EscapeFlow(problem), net, t1=float("inf"), stop=stop)
        assert traj.stopped_by == "fallen by half"
        risks = [float(problem.risk(rows(traj.net, i))) for i in range(len(traj.ts))]
        assert risks[-1] <= half < min(risks[:-1])

    @pytest.mark.parametrize("said", [jnp.ones(2), jnp.zeros((1,), bool)])
    def test_of_what_is_no_answer(self, smooth, said):
        problem, net = smooth
        stop = gf.stopping.When(lambda problem, net: said, name="mine")
        with pytest.raises(TypeError, match="mine must return one boolean, or one number"):
            gf.solve(gf.GradientFlow(problem), net, t1=1.0, stop=stop)

    def test_arguments(self, smooth, unhooked):
        problem, net = smooth
        with pytest.raises(TypeError, match="function must be callable"):
            gf.stopping.When(1.0)  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match=r"gf\.stopping\.When\(function\)"):
            gf.solve(gf.GradientFlow(problem), net, t1=1.0, stop=[small_risk])  # pyright: ignore[reportArgumentType]
