"""The command from the outside: what it prints, what it writes, what it refuses."""

import json
import re
import socket
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tyro

import gfdyn as gf
from gfdyn.cli import _main as cli


SMALL = ["--depth", "3", "--width", "6", "--samples", "20", "--data", "teacher"]
FIGURES = {
    f"{name}.png"
    for name in ("overview", "loss", "escape_speed", "conserved", "singular_values")
}
VERSIONS = {"gfdyn", "jax", "jaxlib", "diffrax", "equinox", "optax", "numpy"}


@pytest.fixture(autouse=True)
def _precision():
    """The command sets the precision of jax, the other tests want theirs back."""
    before = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command and look at all that it leaves behind."""

    def run(*arguments: str) -> tuple[gf.Trajectory, dict[str, Any], str]:
        assert cli.main([*arguments, "--out", str(tmp_path)]) == 0
        out = tmp_path / arguments[0]
        names = {path.name for path in out.iterdir()}
        assert names == FIGURES | {"trajectory.nc", "config.json"}
        for name in FIGURES:
            content = (out / name).read_bytes()
            assert content.startswith(b"\x89PNG") and len(content) > 5_000, name
        printed = capsys.readouterr().out
        traj = gf.load(out / "trajectory.nc")
        check_summary(printed, traj)
        settings = strict_json(out / "config.json")
        check_settings(settings, arguments, traj)
        return traj, settings, printed

    return run


def strict_json(path: Path) -> dict[str, Any]:
    """JSON as other languages read it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


def check_summary(printed: str, traj: gf.Trajectory) -> None:
    """All that the main job promises to print, with the numbers of the trajectory."""
    stats = {name: int(value) for name, value in traj.stats.items()}
    assert traj.summary() in printed
    if traj.is_descent:
        assert f"steps            {stats['num_steps']}\n" in printed
    else:
        steps = f"{stats['num_steps']} accepted, {stats['num_rejected']} rejected"
        assert steps in printed
        assert re.search(r"certificate +energy residual \S+, balance drift \S+", printed)
    assert re.search(r"log t = -?\d", printed)
    assert re.search(r"radius r +\S+ → \S+ \(log r \S+ → \S+\)", printed)
    speed = float(traj.records["escape_speed"][-1])
    assert re.search(r"escape speed +\S+ at the start, (\S+) at the end", printed)
    assert f"{speed:.4g} at the end" in printed
    assert re.search(r"layer +norm +stable rank +top singular values", printed)
    for i, weight in enumerate(traj.flow.direction(traj.final_position).weights):
        (row,) = re.findall(rf"^ +W{i + 1} +(.+)$", printed, re.MULTILINE)
        norm, rank, largest = (float(number) for number in row.split()[:3])
        theta = np.asarray(traj.final.weights[i], float)
        assert weight.shape == theta.shape
        sigma = np.linalg.svd(theta)[1]
        np.testing.assert_allclose(norm, np.linalg.norm(theta), rtol=1e-3)
        np.testing.assert_allclose(rank, np.sum((sigma / sigma[0]) ** 2), rtol=1e-3)
        np.testing.assert_allclose(largest, sigma[0], rtol=1e-2)


def check_settings(
    settings: dict[str, Any], arguments: tuple[str, ...], traj: gf.Trajectory
) -> None:
    """Every option is there, by its name, as it was given; and what came of it."""
    assert settings["command"] == arguments[0]
    kind = {"escape": cli.Escape, "flow": cli.Flow, "descend": cli.Descend}[arguments[0]]
    assert set(settings["settings"]) == set(kind.__dataclass_fields__)
    for option, value in zip(arguments, arguments[1:], strict=False):
        if option.startswith("--") and not value.startswith("--"):
            stored = settings["settings"][option[2:].replace("-", "_")]
            same = stored == value if isinstance(stored, str) else stored == float(value)
            assert same, option
    assert isinstance(settings["settings"]["seed"], int)
    assert set(settings["versions"]) >= VERSIONS
    assert settings["versions"]["gfdyn"] == gf.__version__
    assert settings["seconds"] > 0 and settings["python"] and settings["machine"]
    outcome = settings["outcome"]
    assert outcome["num_steps"] == int(traj.stats["num_steps"])
    assert outcome["energy_residual"] == float(traj.certificate.energy_residual)
    assert outcome["stopped_by"] == (traj.stopped_by or "")


# The commands


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


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["physical", "loss", "arc"])
def test_flow(run, clock):
    """Each clock ends at the same risk, within a step of it."""
    traj, _, printed = run(
        *("flow", *SMALL, "--clock", clock, "--init-scale", "3"),
        *("--risk-below", "0.03", "--weight-decay", "0.0001", "--max-saves", "32"),
    )
    assert isinstance(traj.flow, gf.GradientFlow)
    assert traj.flow.clock == clock and traj.flow.weight_decay == 1e-4
    assert traj.stopped_by == "RiskBelow" and "stopped by RiskBelow" in printed
    assert 0.02 < float(traj.final_risk) <= 0.03
    first = jax.tree.map(lambda rows: rows[0], traj.net)
    np.testing.assert_allclose(float(gf.nets.norm(first)), 3.0, rtol=1e-12)


@pytest.mark.slow
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


@pytest.mark.slow
def test_descend(run):
    traj, _, printed = run(
        "descend", *SMALL, "--steps", "40", "--learning-rate", "0.01", "--max-saves", "20"
    )
    np.testing.assert_allclose(traj.ts, 0.02 * np.arange(21), rtol=1e-12)
    assert "no tolerance" in printed and "steps            40\n" in printed


@pytest.mark.slow
def test_descend_in_batches_at_a_rate_by_the_norm(run):
    traj, settings, _ = run(
        *("descend", *SMALL, "--batch-size", "5", "--steps", "12"),
        *("--norm-scaled", "--learning-rate", "0.1", "--weight-decay", "0.001"),
    )
    norms = np.asarray(jax.vmap(gf.nets.norm)(traj.net))
    np.testing.assert_allclose(np.diff(traj.ts), 0.1 / norms[:-1], rtol=1e-12)
    assert traj.flow.weight_decay == 0.001
    assert settings["settings"]["norm_scaled"] is True


@pytest.mark.slow
def test_descend_that_diverges_keeps_what_there_is(tmp_path, capsys):
    arguments = ["descend", *SMALL, "--steps", "20", "--learning-rate", "1e60"]
    cli.main([*arguments, "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert "gfdyn: diverged: Gradient descent diverged" in captured.err
    traj = gf.load(tmp_path / "descend" / "trajectory.nc")
    assert bool(traj.result == gf.RESULTS.diverged)
    strict_json(tmp_path / "descend" / "config.json")


@pytest.mark.slow
def test_one_layer_until_its_end(run):
    """Nothing is hidden, nothing conserved."""
    traj, _, printed = run("flow", "--data", "circle", "--depth", "1", "--t1", "0.5")
    assert len(traj.net.weights) == 1
    assert traj.problem.data.x.shape == (8, 2)
    assert float(traj.final_time) == 0.5 and "reached its final time" in printed


@pytest.mark.slow
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


def write_mnist(folder: Path, n: int = 30) -> Path:
    """A small MNIST in IDX: stripes that depend on the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(n, dtype=np.uint8) % 10
    images = rng.integers(0, 255, (n, 4, 5), dtype=np.uint8)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, n, 4, 5) + images.tobytes())
    header = struct.pack(">4BI", 0, 0, 8, 1, n)
    (folder / "train-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    return path


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


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["escape", "--data", "mnist"], "--data mnist needs --path FILE"),
        (
            ["escape", "--data", "mnist", "--path", "/no/such/file"],
            "'/no/such/file' does not exist",
        ),
        (["escape", "--depth", "0"], "--depth 0: must be positive"),
        (["flow", "--width", "-3"], "--width -3: must be positive"),
        (["flow", "--init-scale", "0"], "--init-scale 0.0: must be positive"),
        (["flow", "--init-scale", "nan"], "--init-scale nan: must be positive"),
        (["descend", "--max-saves", "0"], "max-saves 0"),
        (["escape", "--activation", "tanh"], "activation='tanh' is unknown"),
        (["escape", "--samples", "0"], "--samples 0: must be positive"),
        (["flow", "--width", "1000000000"], "--depth and --width=(3, 1000000000) takes"),
        (["flow", "--depth", "1000000000000000"], "GB of memory, where this machine has"),
        (
            ["flow", "--data", "teacher", "--samples", "10000000000000"],
            "samples=1000000000",
        ),
        (["descend", "--path", "digits"], "--path digits: is for --data mnist"),
        (["flow", "--data", "teacher", "--samples", "0"], "--samples 0: must be positive"),
        (["flow", "--data", "teacher", "--samples", "all"], "--samples all: teacher data"),
        (["descend", "--samples", "1798"], "--samples 1798: there are 1797 digits"),
        (["escape", "--data", "circle", "--samples", "7"], "--samples 7: must be even"),
        (["flow", "--data", "teacher", "--loss", "logistic"], "must be +1 or -1"),
        (["flow", "--t1", "-1"], "t1=-1.0 must be a time that does not lie before"),
        (["flow", "--rtol", "-1"], "rtol=-1.0 must be positive"),
        (["flow", "--max-steps", "0"], "max_steps=0 must be 1 or more"),
        (["descend", "--steps", "0"], "steps=0 must be 1 or more"),
        (["descend", "--batch-size", "601"], "batch_size=601 must lie between"),
        (["descend", "--learning-rate", "0"], "is no learning rate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_with_a_reason(tmp_path, capsys, arguments, message):
    assert cli.main([*arguments, "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("gfdyn: ") and message in captured.err
    assert "Traceback" not in captured.err
    assert not list(tmp_path.rglob("*.*"))


def test_damaged_mnist_is_refused(tmp_path, capsys):
    path = write_mnist(tmp_path)
    path.write_bytes(path.read_bytes()[:-7])
    assert cli.main(["escape", "--data", "mnist", "--path", str(path)]) == 2
    assert "train-images-idx3-ubyte is truncated" in capsys.readouterr().err


def test_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    out = str(tmp_path / "file")
    assert cli.main(["flow", "--data", "circle", "--out", out]) == 2
    assert out in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["escape", "--widht", "3"], "--widht"),
        (["flow", "--settled", "0.1"], "--settled"),
        (["escape", "--data", "cifar"], "cifar"),
        (["escape", "--depth", "deep"], "deep"),
        (["escape", "--dtype", "float16"], "float16"),
        (["run"], "run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_unknown_options_are_named_in_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit:
        cli.main(arguments)
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("gfdyn: ") and error.endswith(" --help.\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["escape", "flow", "descend"])
def test_help_explains_every_option(capsys, command):
    with pytest.raises(SystemExit) as exit:
        cli.main([command, "--help"])
    assert exit.value.code == 0
    text = capsys.readouterr().out
    kind = getattr(cli, command.title())
    for name in kind.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text
    assert "Saddle escape" in text or command != "escape"


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gfdyn {gf.__version__}\n"


@pytest.mark.parametrize(
    ("setup", "number"),
    [
        (cli.Flow(data="circle", samples=20), 20),
        (cli.Flow(data="circle"), 8),
        (cli.Escape(data="teacher"), 50),
        (cli.Descend(data="teacher"), 600),
        (cli.Flow(data="digits", samples="all"), 1797),
        (cli.Flow(data="digits", samples=1797), 1797),
    ],
)
def test_numbers_of_samples(setup, number):
    assert cli.make_problem(setup).data.num_samples == number


def test_defaults_of_the_main_job():
    """What `make run` does, as the README says it."""
    setup = tyro.cli(cli.Escape, args=[])
    assert (setup.data, setup.depth, setup.width) == ("digits", 6, 16)
    assert (setup.solver, setup.rtol, setup.strict) == ("exact", 1e-6, False)
    assert (setup.init_scale, setup.dtype, setup.loss) == (1e-6, "float64", None)
    problem = cli.make_problem(setup)
    assert problem.data.num_samples == 50
    assert repr(problem.loss) == "CrossEntropy()"
    net = cli.make_net(setup)
    assert net.degree == 6
    np.testing.assert_allclose(float(gf.nets.norm(net)), 1e-6, rtol=1e-12)


@pytest.mark.slow
def test_the_main_job(run):
    """`gfdyn escape` as a user runs it, on the bundled digits: the flow is exact, and it
    leaves the saddle along rank one in every layer."""
    traj, _, printed = run("escape")
    assert traj.stopped_by == "NextPlateau"
    np.testing.assert_allclose(float(traj.initial_risk), np.log(10), rtol=1e-6)
    assert 1.5 < float(traj.final_risk) < 1.56
    assert traj.certificate.energy_residual <= 1e-3 and "note" not in printed
    assert traj.certificate.risk_increase <= 100 * 1e-6
    assert np.asarray(traj.records["stable_rank"])[-1].max() < 1 + 1e-6
    assert "50 samples" in printed and "rtol 1e-06" in printed


@pytest.mark.slow
def test_a_certificate_that_does_not_hold(tmp_path, capsys):
    """An ordinary solver chatters along kinks: the summary says so, and with --strict the
    exit status."""
    chatters = ["flow", "--data", "circle", "--width", "8", "--init-scale", "3"]
    chatters += ["--solver", "adaptive", "--rtol", "1e-4", "--out", str(tmp_path)]
    assert cli.main(chatters) == 0
    printed = capsys.readouterr()
    assert "the energy identity fails" in printed.out
    assert "use gf.solvers.ExactKinks()" in printed.out
    assert "CertificateWarning" not in printed.err
    assert cli.main([*chatters, "--strict"]) == 3
    settings = strict_json(tmp_path / "flow" / "config.json")
    assert settings["outcome"]["certificate_holds"] == 0


SWEEP = """
run = {kind = "descend", steps = 4}
net = {width = 2, depth = 2}
problem.samples = 4
axes.net.seed = [0, 1]
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--dask", "10.0.0.1"],
            "engine.address='10.0.0.1' must be tcp://HOST:PORT, as tcp://10.0.0.1:8786.",
        ),
        (["--wait", "5"], "--wait 5: is for a Dask cluster; give --dask."),
        (["--dask", "local", "--wait", "0"], "engine.wait=0.0 must be positive and finite"),
    ],
    ids=" ".join,
)
def test_sweeps_refused_with_a_reason(
    tmp_path, capsys, compilation_cache, options, message
):
    spec, out = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text(SWEEP)
    assert cli.main(["sweep", str(spec), "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gfdyn: {message}") and error.count("\n") == 1
    assert not out.exists()


def test_a_cluster_that_does_not_answer(tmp_path, capsys, compilation_cache):
    spec, out = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text(SWEEP)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        options = ["--out", str(out), "--dask", address, "--wait", "1.5"]
        assert cli.main(["sweep", str(spec), *options]) == 2
    error = capsys.readouterr().err
    assert f"gfdyn: {out}: engine.address='{address}': no Dask scheduler answered" in error
    assert "within 0.5 s (TimeoutError); give the address that it printed" in error
    assert f"go on with: gfdyn sweep {out}/spec.toml {' '.join(options)}\n" in error


def test_sweeps_of_mixed_versions(tmp_path, capsys, compilation_cache, monkeypatch):
    """From a folder of a relative name."""
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(SWEEP)
    command = ["sweep", "spec.toml", "--out", "out"]
    assert cli.main(command) == 0
    next(Path("out/points").iterdir()).unlink()
    Path("out/manifest.json").unlink()
    capsys.readouterr()
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    said = "no manifest.json says which versions computed the points that are there"
    assert error.startswith(f"gfdyn: {tmp_path}/out: {said}; give a folder of its own, or")
    assert "(--mix-versions)" in error and error.count("\n") == 1
    assert cli.main([*command, "--mix-versions"]) == 0
    summary = "2 of 2 points done, 2 successful; of mixed versions: unknown versions; gfdyn"
    assert summary in capsys.readouterr().out
