"""The command from the outside: what it refuses, in one line."""

import socket
from pathlib import Path

import numpy as np
import pytest
import tyro
from cli_cases import strict_json, write_mnist

import gfdyn as gf
from gfdyn.cli import _main as cli


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
