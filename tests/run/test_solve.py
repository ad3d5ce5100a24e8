"""The entry point: saves, results, errors."""

import functools
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import all_active, distance, linear_problem, rows, sliding, tight

import gfdyn as gf
from gfdyn.run import _arguments


@pytest.fixture
def smooth():
    return all_active(2, noise=0.3)


def test_save_times_do_not_change_the_trajectory(smooth):
    problem, net = smooth
    flow = gf.GradientFlow(problem)
    few = gf.solve(flow, net, ts=[3.0], solver=tight())
    many = gf.solve(flow, net, t1=3.0, ts=jnp.linspace(0, 3, 50), solver=tight())
    assert few.stats["num_steps"] == many.stats["num_steps"]
    for a, b in zip(few.final.weights, many.final.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    # Dense output is of lower order than the steps, and exact at their ends.
    reference = gf.solve(flow, net, ts=[float(many.ts[17])], solver=tight())
    assert distance(rows(many.net, 17), reference.final) <= 1e-8
    np.testing.assert_array_equal(rows(many.net, -1).weights[0], many.final.weights[0])


def test_defaults(smooth):
    problem, net = smooth
    traj = gf.solve(gf.GradientFlow(problem), net, t1=1.0)
    assert traj.ts.shape == (101,) and traj.ts[0] == 0 and traj.ts[-1] == 1
    assert traj.net.weights[0].shape == (101, 3, 4)
    assert traj.log_interval.shape == (100,)
    assert traj.log_time[0] == -jnp.inf
    np.testing.assert_allclose(np.exp(traj.log_interval), 0.01, rtol=1e-9)


@pytest.mark.slow
def test_large_nets_are_saved_less_often_by_default(smooth, monkeypatch):
    """As often as there is memory for; as many as are asked for in any case."""
    problem, net = smooth
    flow, size = gf.GradientFlow(problem), sum(w.nbytes for w in net.weights)
    monkeypatch.setattr(_arguments, "_SAVES_MEMORY", 7.5 * size)
    assert gf.solve(flow, net, t1=1.0).ts.shape == (7,)
    assert gf.solve(flow, net, ts=np.linspace(0, 1, 9)).ts.shape == (9,)
    stop = gf.stopping.RiskBelow(0.5 * float(problem.risk(net)))
    traj = gf.solve(flow, net, t1=float("inf"), stop=stop)
    # With the end one more than the capacity of 6.
    assert 4 <= len(traj.ts) <= 7 and traj.ts[-1] == traj.final_time
    monkeypatch.setattr(_arguments, "_SAVES_MEMORY", 1.0)
    assert gf.solve(flow, net, t1=1.0).ts.shape == (4,)
    np.testing.assert_allclose(np.exp(traj.log_time), traj.ts, rtol=1e-12)
    assert set(traj.stats) == {
        "num_steps",
        "num_rejected",
        "num_field_evaluations",
        "num_crossings",
        "num_slides",
        "num_releases",
        "num_compilations",
    }


@pytest.mark.parametrize("capacity", [4, 64, 1000])
def test_accepted_steps_are_thinned(capacity):
    problem, net = all_active(3, noise=0.3)
    net = gf.nets.scaled_to_norm(net, 1e-3)
    flow = gf.EscapeFlow(problem)
    solver = tight(1e-7)
    traj = gf.solve(flow, net, t1=12.0, ts=gf.AcceptedSteps(capacity), solver=solver)
    steps = int(traj.stats["num_steps"])
    ts, log_time = np.asarray(traj.ts), np.asarray(traj.log_time)
    assert len(ts) <= capacity + 1 and len(ts) >= min(capacity // 2, steps + 1)
    assert ts[0] == 0 and ts[-1] == 12.0 and np.all(np.diff(ts) > 0)
    # Intervals add up to the time, whichever rows were dropped.
    total = np.logaddexp.accumulate(np.asarray(traj.log_interval))
    np.testing.assert_allclose(total, log_time[1:], rtol=1e-10)
    some = [len(ts) // 2, len(ts) - 1]
    again = gf.solve(flow, net, ts=traj.ts[jnp.asarray(some)], solver=solver)
    for i, row in enumerate(some):
        assert distance(rows(traj.net, row), rows(again.net, i)) <= 1e-9


def test_records_are_measured_at_the_saves(smooth):
    problem, net = smooth
    record = {
        "risk": gf.diagnostics.risk,
        "top": functools.partial(gf.diagnostics.singular_values, k=1),
    }
    # In the program of the defaults
    traj = gf.solve(gf.GradientFlow(problem), net, t1=2.0, record=record)
    assert traj.records["risk"].shape == (101,)
    assert traj.records["top"].shape == (101, 2, 1)
    for i in (0, 50, 100):
        w1, w2 = (np.asarray(w[i]) for w in traj.net.weights)
        out = np.maximum(problem.data.x @ w1.T, 0) @ w2.T
        risk = 0.5 * ((out - problem.data.y) ** 2).sum(axis=1).mean()
        np.testing.assert_allclose(traj.records["risk"][i], risk, rtol=1e-9)
        top = np.linalg.svd(w1)[1][0]
        np.testing.assert_allclose(traj.records["top"][i, 0, 0], top, rtol=1e-12)


class TestFailures:
    """Each ends with a result of its own, and keeps what was computed."""

    def test_max_steps(self, smooth):
        problem, net = smooth
        run = functools.partial(
            gf.solve, gf.GradientFlow(problem), net, t1=1e3, max_steps=5, solver=tight()
        )
        with pytest.raises(
            gf.SolveError, match="maximum number of solver steps.*throw=False"
        ):
            run()
        traj = run(throw=False)
        assert traj.result == gf.RESULTS.max_steps_reached
        assert 0 < traj.final_time < 1e3
        assert traj.stats["num_steps"] + traj.stats["num_rejected"] == 5
        assert np.all(np.isfinite(traj.ts)) and len(traj.ts) < 101
        assert problem.risk(traj.final) < problem.risk(net)

    def test_time_stalls_in_float32(self):
        problem, net = all_active(2, noise=0.3)
        problem = gf.Problem(problem.data.astype(jnp.float32), gf.losses.squared)
        net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
        flow = gf.GradientFlow(problem)
        traj = gf.solve(flow, net, t0=1e8, t1=2e8, throw=False)
        assert traj.result == gf.RESULTS.time_stalled and traj.final_time == 1e8
        with pytest.raises(gf.SolveError, match="time stands still"):
            gf.solve(flow, net, t0=1e8, t1=2e8)

    def test_nonfinite_start(self, smooth):
        problem, net = smooth
        bad = jax.tree.map(lambda w: w.at[0, 0].set(jnp.nan), net)
        traj = gf.solve(gf.GradientFlow(problem), bad, t1=1.0, throw=False)
        assert traj.result == gf.RESULTS.nonfinite_state
        assert traj.stats["num_steps"] == 0

    def test_blow_up_keeps_the_trajectory(self):
        squared, _ = linear_problem()
        problem = gf.Problem(squared.data, gf.losses.linear)
        net = gf.nets.MLP([4, 5, 5, 2], key=jax.random.key(1), activation="identity")
        traj = gf.solve(gf.GradientFlow(problem), net, t1=1e3, throw=False)
        assert traj.result == gf.RESULTS.blew_up
        assert len(traj.ts) >= 1 and np.isfinite(traj.final_risk)
        with pytest.raises(gf.SolveError, match="blew up in finite time"):
            gf.solve(gf.GradientFlow(problem), net, t1=1e3)

    def test_field_that_becomes_nan(self):
        """Exponential loss of a large negative margin: e^800 overflows."""
        problem = gf.Problem(gf.Dataset([[1.0]], [[-1.0]]), gf.losses.exponential)
        net = gf.nets.MLP.from_weights([jnp.asarray([[800.0]])])
        traj = gf.solve(gf.GradientFlow(problem), net, t1=1.0, throw=False)
        assert traj.result == gf.RESULTS.nonfinite_state
        # In the clock of the loss there is no overflow.
        flow = gf.GradientFlow(problem, clock="loss")
        traj = gf.solve(flow, net, t1=10.0, solver=tight())
        np.testing.assert_allclose(traj.final.weights[0], [[790.0]], rtol=1e-9)


class TestArguments:
    @pytest.mark.usefixtures("unhooked")
    @pytest.mark.parametrize(
        "kwargs, message",
        [
            (dict(t1=1.0, ts=[0.5, 0.2]), "strictly increasing.*index 0.*Sort it"),
            (dict(t1=1.0, ts=[0.5, 0.5]), "strictly increasing"),
            (dict(t1=1.0, ts=[0.5, jnp.nan]), "finite and strictly increasing"),
            (dict(t1=1.0, ts=[0.5, 2.0]), "outside the solve from t0=0 to t1=1"),
            (dict(t1=1.0, ts=[]), r"ts has shape \(0,\)"),
            (dict(t1=1.0, ts=np.zeros((2, 2))), r"ts has shape \(2, 2\)"),
            (dict(), "t1 is missing"),
            (dict(t1=jnp.inf), "t1=inf never ends; give a stop condition"),
            (dict(t1=-1.0), "t1=-1.0 must be a time that does not lie before t0=0.0"),
            (dict(t1=jnp.nan), "t1=nan"),
            (dict(t1=np.ones(2)), r"t1 has shape \(2,\)"),
            (dict(t1=1.0, max_steps=0), "max_steps=0 must be 1 or more"),
            (
                dict(t1=1.0, derivatives="both"),
                "derivatives='both'.*'reverse' or 'forward'",
            ),
        ],
        ids=str,
    )
    def test_values(self, smooth, kwargs, message):
        problem, net = smooth
        with pytest.raises(ValueError, match=message):
            gf.solve(gf.GradientFlow(problem), net, **kwargs)

    @pytest.mark.usefixtures("unhooked")
    @pytest.mark.parametrize(
        "change, message",
        [
            (dict(flow="problem"), "flow must be one of gf.flows"),
            (dict(solver="tsit5"), r"solver must be one of gf.solvers.*Adaptive\(method"),
            (dict(stop=[1.0]), "stop holds 1.0; use conditions of gf.stopping"),
            (dict(net="eqx"), "net must be a network of gf.nets.*gf.nets.MLP"),
        ],
        ids=["flow", "solver", "stop", "net"],
    )
    def test_kinds(self, smooth, change, message):
        problem, net = smooth
        given: dict[str, Any] = dict(flow=gf.GradientFlow(problem), net=net, t1=1.0)
        given |= {k: problem if v == "problem" else v for k, v in change.items()}
        if given["net"] == "eqx":
            given["net"] = eqx.nn.MLP(4, 1, 3, 1, key=jax.random.key(0))
        if given.get("solver") == "tsit5":
            given["solver"] = diffrax.Tsit5()
        with pytest.raises(TypeError, match=message):
            gf.solve(**given)

    def test_float32_net_and_float64_save_times(self, smooth):
        problem, net = smooth
        problem = gf.Problem(problem.data.astype(jnp.float32), gf.losses.squared)
        net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
        with pytest.raises(ValueError, match="ts is float64 but the net is float32"):
            gf.solve(gf.GradientFlow(problem), net, ts=np.linspace(0, 1, 3))

    def test_sizes_and_dtypes_of_net_and_data(self, smooth):
        problem, _ = smooth
        flow = gf.GradientFlow(problem)
        for widths, message in (
            ([5, 3, 1], "net has 5 inputs but the data have 4"),
            ([4, 3, 2], "net has 2 outputs but the data have 1"),
        ):
            with pytest.raises(ValueError, match=message):
                gf.solve(flow, gf.nets.MLP(widths, key=jax.random.key(0)), t1=1.0)
        single = gf.nets.MLP([4, 3, 1], key=jax.random.key(0), dtype=jnp.float32)
        with pytest.raises(ValueError, match="net is float32 but the data are float64"):
            gf.solve(flow, single, t1=1.0)

    def test_unknown_option(self, smooth):
        problem, net = smooth
        with pytest.raises(TypeError, match="rtol"):
            gf.solve(gf.GradientFlow(problem), net, t1=1.0, rtol=1e-3)  # pyright: ignore[reportCallIssue]

    def test_solver_options(self):
        with pytest.raises(ValueError, match="rtol=-1.0 must be positive"):
            gf.solvers.Adaptive(rtol=-1.0)
        with pytest.raises(ValueError, match="Euler.*gf.descend"):
            gf.solvers.Adaptive(diffrax.Euler())
        with pytest.raises(ValueError, match="KenCarp4.*a sum of two terms"):
            gf.solvers.Adaptive(diffrax.KenCarp4())
        with pytest.raises(ValueError, match="Kvaerno5.*root finder open.*VeryChord"):
            gf.solvers.Adaptive(diffrax.Kvaerno5())


def test_progress_takes_the_same_steps(capsys):
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    plain = gf.solve(flow, net, t1=3.0, solver=tight(1e-4))
    shown = gf.solve(flow, net, t1=3.0, solver=tight(1e-4), progress=True)
    np.testing.assert_array_equal(plain.final.weights[0], shown.final.weights[0])
    assert plain.stats["num_steps"] == shown.stats["num_steps"]
    assert "risk=" in capsys.readouterr().err


@pytest.mark.parametrize(
    "method",
    [
        diffrax.Dopri5(),
        diffrax.Dopri8(),
        diffrax.Bosh3(),
        diffrax.Kvaerno5(root_finder=diffrax.VeryChord(rtol=1e-10, atol=1e-10)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_any_method_converges_to_the_same_trajectory(method):
    problem, net = all_active(2, noise=0.3)
    flow = gf.GradientFlow(problem)
    solver = gf.solvers.Adaptive(method, rtol=1e-9)
    traj = gf.solve(flow, net, t1=2.0, solver=solver)
    reference = gf.solve(flow, net, t1=2.0, solver=tight(1e-12))
    assert distance(traj.final, reference.final) <= 1e-7
