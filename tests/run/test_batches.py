"""Trajectories of a batch: lanes, datasets, files, summaries."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import sliding

import gfdyn as gf


SCALES = jnp.asarray([0.5, 1.0, 1.5])
RECORD = {"risk": gf.diagnostics.risk, "stable_rank": gf.diagnostics.stable_rank}


def scaled(net, scale):
    return jax.tree.map(lambda w: scale * w, net)


def solved(scale, **options):
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    stop = gf.stopping.RiskBelow(0.72)
    return gf.solve(
        flow,
        scaled(net, scale),
        t1=1.0,
        ts=jnp.linspace(0.0, 1.0, 9),
        stop=stop,
        record=RECORD,
        kinks=20,
        **options,
    )


@pytest.fixture(scope="module")
def batch():
    return jax.vmap(solved)(SCALES)


@pytest.mark.slow
def test_lanes_are_single_trajectories(batch):
    assert batch.batch_shape == (3,)
    ends = set()
    for i, scale in enumerate(SCALES):
        lane, single = batch.lane(i), solved(scale)
        assert lane.batch_shape == ()
        ends.add(lane.stopped_by)
        assert lane.stopped_by == single.stopped_by and lane.ts.shape == single.ts.shape
        assert lane.log_interval.shape == single.log_interval.shape
        pairs = zip(
            jax.tree.leaves((lane.positions, lane.records, lane.kinks)),
            jax.tree.leaves((single.positions, single.records, single.kinks)),
            strict=True,
        )
        for ours, theirs in pairs:
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, atol=1e-9)
        assert "Flow: " in lane.summary()
    assert ends == {None, "RiskBelow"}


@pytest.mark.parametrize("index", [(), (3,), (0, 0), (-4,)])
def test_wrong_lanes(batch, index):
    with pytest.raises(IndexError, match=r"batch of shape \(3,\)"):
        batch.lane(*index)


@pytest.mark.parametrize("name", ["a", "b"])
def test_gaps_are_of_lanes(batch, name):
    lanes = {"a": batch.lane(0), "b": batch.lane(0)}
    message = rf"{name} is a batch of shape \(3,\); .* one by one, {name}\.lane\(0\)"
    with pytest.raises(ValueError, match=message):
        gf.distance(**lanes | {name: batch})
    assert not np.any(gf.distance(**lanes).total)


def test_datasets_of_batches(batch):
    dataset = batch.to_xarray()
    assert dataset["risk"].dims == ("lane", "save")
    assert dataset["W1"].dims == ("lane", "save", "neuron_1", "feature")
    assert dataset["t"].dims[-1] == "save"
    for i in range(3):
        single = batch.lane(i).to_xarray()
        reached = single.sizes["save"]
        row = dataset.isel(lane=i)
        np.testing.assert_array_equal(row["W1"][:reached], single["W1"])
        np.testing.assert_array_equal(row["t"][:reached], single["t"])
        assert np.all(np.isnan(row["risk"][reached:]))
        assert row["result"] == single.attrs["result"]
        assert row["num_steps"] == single.attrs["num_steps"]
    assert set(dataset["stopped_by"].values) == {"", "RiskBelow"}


def test_batches_of_several_axes():
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    solver = gf.solvers.Adaptive(rtol=1e-4)

    def run(scale, t1):
        return gf.solve(flow, scaled(net, scale), t1=t1, solver=solver)

    inner = jax.vmap(run, in_axes=(None, 0))
    batch = jax.vmap(inner, in_axes=(0, None))(SCALES, jnp.asarray([0.1, 0.2]))
    dataset = batch.to_xarray()
    assert dataset["W2"].dims[:3] == ("lane_0", "lane_1", "save")
    assert dataset.sizes["lane_0"] == 3 and dataset.sizes["lane_1"] == 2
    np.testing.assert_array_equal(dataset["W2"][2, 1], batch.lane(2, 1).net.weights[1])
    assert "6 trajectories of a GradientFlow" in batch.summary()


def test_files_of_batches(batch, tmp_path):
    batch.save(tmp_path / "batch.nc")
    loaded = gf.load(tmp_path / "batch.nc")
    assert jax.tree.structure(loaded) == jax.tree.structure(batch)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.lane(1).stopped_by == batch.lane(1).stopped_by


def test_summaries_of_batches(batch):
    lines = batch.summary().splitlines()
    assert lines[0] == "3 trajectories of a GradientFlow"
    stopped = int(jnp.sum(batch.stop_index >= 0))
    assert any("stopped by RiskBelow" in li and f"  {stopped} " in li for li in lines)
    assert any("reached its final time" in li and f"  {3 - stopped} " in li for li in lines)
    worst = float(jnp.max(batch.certificate.energy_residual))
    assert f"energy residual at most {worst:.1e}" in batch.summary()
    assert "fails" not in batch.summary()
    doubtful = eqx.tree_at(
        lambda t: (t.certificate.energy_residual, t.certificate.choices),
        batch,
        (jnp.asarray([0.0, 1.0, 0.0]), jnp.asarray([0, 2, 1])),
    )
    assert "the energy identity fails in 1: lane(1,)" in doubtful.summary()
    assert "choices          3 in 2 lanes" in doubtful.summary()
    by_sides = eqx.tree_at(
        lambda t: (t.certificate.verified, t.stats["num_slides"]),
        batch,
        (jnp.zeros(3, bool), jnp.ones(3, jnp.int32)),
    )
    assert "not verified" in by_sides.summary()
    assert "not verified" not in batch.summary()


def test_summaries_of_descents():
    problem, net = sliding()
    traj = gf.descend(problem, net, 0.01, 50)
    text = traj.summary()
    assert text.startswith("Gradient descent: took all its steps")
    assert "steps            50" in text and "largest rise 0.0e+00" in text
    assert "certificate" not in text and "field evaluations" not in text
    with pytest.raises(gf.SolveError, match="diverged.*Lower the learning rate"):
        gf.descend(problem, net, 1e6, 50)
