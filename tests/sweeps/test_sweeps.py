"""Sweeps in this process: what is computed, rejected and collected."""

import dataclasses

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from fixtures import sweep_files
from sweep_cases import DESCENTS, FLOWS, PROBLEM, run

import gfdyn as gf
from gfdyn import sweeps
from gfdyn.cli import _main as cli
from gfdyn.sweeps.results._store import Store
from gfdyn.sweeps.run import _compute


def problem_and_net(scale: float, depth: int, seed: int) -> tuple[gf.Problem, gf.nets.MLP]:
    """What the settings mean, written out."""

    def key(seed: int, use: int) -> jax.Array:
        return jax.random.fold_in(jax.random.key(seed), use)

    data = gf.data.teacher(6, [3, 2, 1], key=key(0, 0), dtype="float64")
    net = gf.nets.MLP([3, *[3] * (depth - 1), 1], key=key(seed, 1), dtype=jnp.float64)
    scaled = gf.nets.scaled_to_norm(net, jnp.asarray(scale))
    return gf.Problem(data, gf.losses.squared), scaled


def test_descents_are_those_of_descend(descents):
    tree = sweeps.collect(descents)
    problem, net = problem_and_net(0.1, 3, 1)
    traj = gf.descend(
        problem, net, 0.05, 30, save_every=4, record={"r": gf.diagnostics.risk}
    )
    found = tree["depth=3"].to_dataset().sel(init_scale=0.1, depth=3, seed=1)
    np.testing.assert_allclose(found.t, traj.ts, rtol=1e-12)
    np.testing.assert_allclose(found.risk, traj.records["r"], rtol=1e-10)
    assert float(found.final_risk) == pytest.approx(float(traj.final_risk), rel=1e-10)
    assert found.result == "successful" and found.num_steps == 30


def test_flows_are_those_of_solve(flows):
    found = sweeps.collect(flows)
    for scale in (1.0, 1e-3):
        problem, net = problem_and_net(scale, 2, 0)
        traj = gf.solve(
            gf.EscapeFlow(problem),
            net,
            15.0,
            ts=gf.AcceptedSteps(8),
            stop=gf.stopping.NextPlateau(1e-3),
            solver=gf.solvers.Adaptive(rtol=1e-3),
            derivatives="forward",
        )
        point = found.sel(init_scale=scale).dropna("save", subset=["tau"])
        np.testing.assert_allclose(point.tau, traj.ts, rtol=1e-10)
        np.testing.assert_allclose(point.log_radius, traj.log_radius, rtol=1e-8, atol=1e-8)
        assert point.num_steps == int(traj.stats["num_steps"])
        assert point.result == ("stopped" if traj.stopped_by else "successful")


def count_compilations(counted: list[str]) -> None:
    """From now on, note each program that is compiled."""

    def listen(event: str, duration_secs: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)


def test_one_program_a_shape(tmp_path, unhooked):
    """Another 200 points of the two shapes compile nothing; a third shape does."""
    run(DESCENTS, tmp_path / "first")
    counted: list[str] = []
    count_compilations(counted)
    try:
        axes = {"net.seed": tuple(range(7, 57)), "net.depth": (2, 3)}
        axes["run.learning_rate"] = (0.01, 0.02)
        assert run(dataclasses.replace(DESCENTS, axes=axes), tmp_path / "a").ok == 200
        assert counted == []
        narrow = dataclasses.replace(DESCENTS, axes={"net.width": (2,)})
        run(narrow, tmp_path / "b")
        assert counted
    finally:
        jax.monitoring.clear_event_listeners()


def test_each_batch_makes_room(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(_compute, "make_room", lambda: calls.append(None))
    run(dataclasses.replace(DESCENTS, axes={"net.seed": (0, 1, 2)}), tmp_path)
    assert len(calls) == 3


def test_failing_points_are_rows(descents, tmp_path, unhooked):
    """One diverges, one would need a file that is not there; the rest goes on."""
    axes = {"run.learning_rate": (0.05, 1e6), "net.seed": (0, 1)}
    spec = dataclasses.replace(DESCENTS, axes=axes)
    status = run(spec, tmp_path / "a")
    assert status.results == {"successful": 2, "diverged": 2} and status.done == 4
    table = sweeps.outcomes(tmp_path / "a").sel(learning_rate=1e6)
    assert table.result.values.tolist() == ["diverged"] * 2
    assert all("became NaN or infinite" in reason for reason in table.reason.values)
    # Results stay as they are.
    log = tmp_path / "a" / "log.txt"
    run(spec, tmp_path / "a")
    assert "4 points, 0 of them to compute" in log.read_text()
    missing = dataclasses.replace(PROBLEM, path=str(tmp_path / "none.npz"))
    axes = {"problem.data": ("teacher", "mnist"), "net.seed": (0,)}
    spec = dataclasses.replace(DESCENTS, problem=missing, axes=axes)
    assert run(spec, tmp_path / "b").results == {"successful": 1, "error": 1}
    table = sweeps.outcomes(tmp_path / "b").sel(data="mnist", seed=0)
    assert table.result == "error" and "none.npz" in str(table.reason.values)
    # What could not be computed is tried again.
    run(spec, tmp_path / "b")
    assert "2 points, 1 of them to compute" in (tmp_path / "b" / "log.txt").read_text()


def test_flows_that_fail_say_why(flows, tmp_path):
    """No tolerance is that tight: time stalls; and two steps are not enough."""
    axes = {"solver.rtol": (1e-3, 1e-16)}
    spec = dataclasses.replace(
        FLOWS, axes=axes, net=sweeps.NetSettings(width=3, depth=2, init_scale=1e5)
    )
    run(spec, tmp_path / "a")
    table = sweeps.outcomes(tmp_path / "a").sel(rtol=1e-16)
    assert table.result in ("time_stalled", "max_steps_reached")
    solver = dataclasses.replace(FLOWS.solver, max_steps=2)
    run(dataclasses.replace(FLOWS, solver=solver, axes={}), tmp_path / "b")
    table = sweeps.outcomes(tmp_path / "b")
    assert table.result == "max_steps_reached" and "steps" in str(table.reason.values)


def test_lanes_agree_with_single_runs(descents, tmp_path):
    """Batches of three lanes, the last one filled up."""
    engine = dataclasses.replace(DESCENTS.engine, lanes=3)
    axes = {"net.init_scale": (1.0, 0.1), "net.seed": (0, 1)}
    spec = dataclasses.replace(DESCENTS, engine=engine, axes=axes)
    run(spec, tmp_path)
    single = sweeps.collect(descents)["depth=2"].to_dataset().isel(depth=0)
    xr.testing.assert_allclose(
        sweeps.collect(tmp_path).risk, single.risk.drop_vars("depth")
    )


@pytest.mark.parametrize("solver", ["adaptive", "exact"])
def test_lanes_of_flows_agree_with_single_runs(solver, flows, tmp_path):
    """Each lane takes steps of its own, and waits for the longest one."""
    spec = dataclasses.replace(FLOWS, solver=dataclasses.replace(FLOWS.solver, name=solver))
    alone = flows
    if solver == "exact":
        alone = tmp_path / "alone"
        run(spec, alone)
    side_by_side = dataclasses.replace(FLOWS.engine, lanes=2)
    run(dataclasses.replace(spec, engine=side_by_side), tmp_path / "lanes")
    expected, found = sweeps.collect(alone), sweeps.collect(tmp_path / "lanes")
    assert len(set(expected.num_steps.values)) == 2
    for name in ("num_steps", "num_rejected", "num_crossings", "num_slides", "result"):
        np.testing.assert_array_equal(found[name], expected[name])
    for name in ("tau", "log_radius", "log_time", "risk", "final_risk"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-8)


def test_precision_is_the_users(tmp_path):
    with jax.enable_x64(False), pytest.raises(ValueError, match='"jax_enable_x64", True'):
        run(DESCENTS, tmp_path)


def test_collected_dims_and_values(descents, flows):
    tree = sweeps.collect(descents)
    assert isinstance(tree, xr.DataTree) and set(tree.children) == {"depth=2", "depth=3"}
    for depth in (2, 3):
        node = tree[f"depth={depth}"].to_dataset()
        sizes = {"init_scale": 2, "depth": 1, "seed": 2, "save": 9}
        assert node.risk.sizes == sizes
        assert node.layer_norms.sizes == sizes | {"layer": depth}
        assert node.depth.values.tolist() == [depth]
    assert sweeps.parse_spec(tree.attrs["spec"]).axes == DESCENTS.axes
    table = sweeps.outcomes(descents)
    assert table.final_risk.dims == ("init_scale", "depth", "seed")
    for node in tree.children.values():
        np.testing.assert_allclose(node.risk.isel(save=-1), node.final_risk)
    single = sweeps.collect(flows)
    assert isinstance(single, xr.Dataset)
    # Rows beyond the end of the shorter trajectory.
    reached = single.tau.notnull().sum("save").values
    assert single.sizes["save"] == max(reached)
    assert (single.risk.notnull().sum("save").values == reached).all()


def test_points_that_are_not_there_are_missing(descents, tmp_path):
    out = tmp_path / "out"
    run(DESCENTS, out)
    gone = next(Store(out).point_files())
    gone.path.unlink()
    assert str(sweeps.status(out)) == "7 of 8 points done, 7 successful"
    table = sweeps.outcomes(out)
    assert (table.result == "missing").sum() == 1
    tree = sweeps.collect(out)
    lost = [node.risk.isnull().all("save").sum() for node in tree.children.values()]
    assert sum(map(int, lost)) == 1


def test_weights_are_kept_if_asked_for(descents, tmp_path):
    for weights, rows in (("final", ()), ("all", (9,))):
        spec = dataclasses.replace(DESCENTS, weights=weights, axes={"net.seed": (0,)})
        run(spec, tmp_path / weights)
        found = sweeps.collect(tmp_path / weights).isel(seed=0)
        assert found.W1.shape == (*rows, 3, 3) and found.W2.shape == (*rows, 1, 3)
    problem, net = problem_and_net(1.0, 2, 0)
    end = gf.descend(problem, net, 0.05, 30).final
    np.testing.assert_allclose(found.W1[-1], end.weights[0], rtol=1e-10)


def test_zipped_axes_share_a_dim(descents, tmp_path):
    axes = {"net.init_scale": (1.0, 0.1), "problem.seed": (3, 4), "net.seed": (0, 1)}
    zipped = (("net.init_scale", "problem.seed"),)
    run(dataclasses.replace(DESCENTS, axes=axes, zip=zipped), tmp_path)
    found = sweeps.collect(tmp_path)
    assert found.risk.sizes == {"init_scale": 2, "net_seed": 2, "save": 9}
    assert found.problem_seed.dims == ("init_scale",)
    assert found.problem_seed.values.tolist() == [3, 4]


def test_commands(descents, tmp_path, capsys, compilation_cache):
    file, out = tmp_path / "spec.toml", tmp_path / "out"
    sweeps.write_spec(DESCENTS, file)
    assert cli.main(["sweep", str(file), "--out", str(out)]) == 0
    assert sweep_files(out) == sweep_files(descents)
    assert cli.main(["sweep", "status", str(out)]) == 0
    assert "8 of 8 points done, 8 successful" in capsys.readouterr().out
    assert cli.main(["sweep", "collect", str(out)]) == 0
    assert "depth=3" in capsys.readouterr().out
    tree = xr.open_datatree(out / "collected.nc", engine="h5netcdf")
    xr.testing.assert_identical(
        tree["depth=2"].risk.load(), sweeps.collect(out)["depth=2"].risk
    )
    file.write_text("nmae = 'a'")
    assert cli.main(["sweep", "run", str(file), "--out", str(out)]) == 2
    assert "nmae is unknown; did you mean 'name'?" in capsys.readouterr().err
