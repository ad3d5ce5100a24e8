"""The command from the outside: what it prints and writes."""

import jax
import numpy as np
import pytest
from cli_cases import strict_json, write_mnist

import gfdyn as gf
from gfdyn.cli import _main as cli


SMALL = ["--depth", "3", "--width", "6", "--samples", "20", "--data", "teacher"]


@pytest.mark.slow
def test_escape(run):
    traj, settings, printed = run("escape", *SMALL, "--settled", "0.05")
    assert isinstance(traj.flow, gf.EscapeFlow) and not traj.flow.localized
    assert traj.stopped_by == "NextPlateau" and "stopped by NextPlateau" in printed
    assert traj.final_risk < 0.95 * traj.initial_risk
    first = jax.tree.map(lambda rows: rows[0], traj.net)
    np.testing.assert_allclose(float(gf.nets.norm(first)), 1e-6, rtol=1e-12)
    assert [w.shape[1:] for w in traj.net.weights] == [(6, 10), (6, 6), (1, 6)]
    assert traj.problem.data.x.shape == (20, 10)
    assert traj.ts.dtype == np.float64
    assert len(traj.ts) <= 257
    assert "20 samples" in printed and "rtol 1e-06" in printed
    assert int(traj.stats["num_crossings"]) > 0 and bool(traj.certificate.holds)
    assert "‖θ(0)‖ = 1e-06" in printed
    assert settings["settings"]["settled"] == 0.05


@pytest.mark.slow
def test_escape_localized(run):
    traj, _, printed = run(
        "escape", *SMALL, "--localized", "--init-scale", "0.1", "--tau-max", "5"
    )
    assert isinstance(traj.flow, gf.EscapeFlow) and traj.flow.localized
    assert "reached its final time" in printed
    assert float(traj.final_time) == 5.0


@pytest.mark.slow
def test_escape_on_digits_in_float32(run):
    """The main job with its default data, loss and depth, small and in float32."""
    traj, _, printed = run(
        *("escape", "--samples", "20", "--width", "4", "--init-scale", "1"),
        *("--dtype", "float32", "--tau-max", "2", "--max-saves", "16"),
    )
    leaves = [leaf for leaf in jax.tree.leaves(traj) if hasattr(leaf, "dtype")]
    # Gates are on or off.
    assert {str(leaf.dtype) for leaf in leaves} <= {"float32", "int32", "bool"}
    assert [w.shape[1:] for w in traj.net.weights] == [(4, 64), *[(4, 4)] * 4, (10, 4)]
    assert repr(traj.problem.loss) == "CrossEntropy()"
    np.testing.assert_allclose(float(traj.initial_risk), np.log(10), rtol=0.5)
    assert len(traj.ts) <= 17
    assert "float32" in printed


@pytest.mark.parametrize(
    "clock, solver",
    [("physical", "exact"), ("loss", "adaptive"), ("arc", "adaptive")],
)
def test_flow(run, clock, solver):
    """Each clock ends at the same risk, within a step of it."""
    traj, _, printed = run(
        *("flow", *SMALL, "--clock", clock, "--solver", solver, "--init-scale", "3"),
        *("--risk-below", "0.03", "--weight-decay", "0.0001", "--max-saves", "32"),
    )
    assert isinstance(traj.flow, gf.GradientFlow)
    assert traj.flow.clock == clock and traj.flow.weight_decay == 1e-4
    assert traj.stopped_by == "RiskBelow" and "stopped by RiskBelow" in printed
    assert 0.02 < float(traj.final_risk) <= 0.03
    first = jax.tree.map(lambda rows: rows[0], traj.net)
    np.testing.assert_allclose(float(gf.nets.norm(first)), 3.0, rtol=1e-12)


def test_flow_that_fails_keeps_what_there_is(tmp_path, capsys):
    """Said on both streams, and everything written."""
    arguments = ["flow", "--data", "circle", "--depth", "1", "--max-steps", "5"]
    cli.main([*arguments, "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert (
        "gfdyn: max_steps_reached: The maximum number of solver steps was reached"
        in captured.err
    )
    assert (
        "GradientFlow: max_steps_reached: The maximum number of solver steps"
        in captured.out
    )
    traj = gf.load(tmp_path / "flow" / "trajectory.nc")
    assert int(traj.stats["num_steps"]) + int(traj.stats["num_rejected"]) == 5


def test_descend(run):
    traj, _, printed = run(
        "descend", *SMALL, "--steps", "40", "--learning-rate", "0.01", "--max-saves", "20"
    )
    np.testing.assert_allclose(traj.ts, 0.02 * np.arange(21), rtol=1e-12)
    assert "no tolerance" in printed and "steps            40\n" in printed


def test_descend_in_batches_at_a_rate_by_the_norm(run):
    traj, settings, _ = run(
        *("descend", *SMALL, "--batch-size", "5", "--steps", "12"),
        *("--norm-scaled", "--learning-rate", "0.1", "--weight-decay", "0.001"),
    )
    norms = np.asarray(jax.vmap(gf.nets.norm)(traj.net))
    np.testing.assert_allclose(np.diff(traj.ts), 0.1 / norms[:-1], rtol=1e-12)
    assert traj.flow.weight_decay == 0.001
    assert settings["settings"]["norm_scaled"] is True


def test_descend_that_diverges_keeps_what_there_is(tmp_path, capsys):
    arguments = ["descend", *SMALL, "--steps", "20", "--learning-rate", "1e60"]
    cli.main([*arguments, "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert "gfdyn: diverged: Gradient descent diverged" in captured.err
    traj = gf.load(tmp_path / "descend" / "trajectory.nc")
    assert bool(traj.result == gf.RESULTS.diverged)
    strict_json(tmp_path / "descend" / "config.json")


def test_one_layer_until_its_end(run):
    """Nothing is hidden, nothing conserved."""
    traj, _, printed = run("flow", "--data", "circle", "--depth", "1", "--t1", "0.5")
    assert len(traj.net.weights) == 1
    assert traj.problem.data.x.shape == (8, 2)
    assert float(traj.final_time) == 0.5 and "reached its final time" in printed


def test_seed_decides(run):
    """The same seed gives the same trajectory, another one another."""
    arguments = ("descend", *SMALL, "--steps", "6", "--batch-size", "5")
    first, again, other = (run(*arguments, "--seed", seed)[0] for seed in ("3", "3", "4"))
    # What was compiled on the way is of the process, not of the seed.
    for traj in (first, again):
        traj.stats.pop("num_compilations")
    for p, q in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(p, q)
    for p, q in zip(first.net.weights, other.net.weights, strict=True):
        assert not np.any(np.asarray(p) == np.asarray(q))
    assert not np.any(np.asarray(first.problem.data.x) == np.asarray(other.problem.data.x))


@pytest.mark.parametrize("data", ["digits", "teacher", "circle"])
def test_precision_only_rounds(data):
    """One seed draws the same data and the same network in both precisions."""
    single, double = (
        cli.Escape(data=data, depth=3, width=6, samples=20, seed=5, dtype=dtype)
        for dtype in ("float32", "float64")
    )
    p, q = cli.make_problem(single).data, cli.make_problem(double).data
    pairs = zip(cli.make_net(single).weights, cli.make_net(double).weights, strict=True)
    for a, b in [(p.x, q.x), (p.y, q.y), *pairs]:
        assert (a.dtype, b.dtype) == (np.float32, np.float64)
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_mnist_from_a_file(run, tmp_path_factory):
    path = write_mnist(tmp_path_factory.mktemp("mnist"))
    traj, settings, printed = run(
        *("descend", "--data", "mnist", "--path", str(path), "--samples", "25"),
        *("--width", "4", "--steps", "3"),
    )
    assert traj.problem.data.x.shape == (25, 20)
    assert traj.problem.data.y.shape == (25, 10)
    assert repr(traj.problem.loss) == "CrossEntropy()"
    assert settings["settings"]["path"] == str(path)
    assert "mnist, 25 samples, CrossEntropy loss" in printed
