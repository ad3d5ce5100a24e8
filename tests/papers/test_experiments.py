"""The experiments run, at a small size, and give a verdict on every claim."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from gfdyn import plotting


FOLDER = Path(__file__).parents[2] / "experiments"


# In the statements that stand there to be refuted, at every size
FALSE = ("first version: ", "as printed: ", "two points: s*(2) − s*(1)")
# Files of each script, the number of its claims at the small size, and by the start of
# their statements those others that need not hold there.
SMOKE = {
    "bantzis.digits_directions": (
        ["directions.nc", "directions.png"],
        7,
        # Of so few samples there are more optima.
        {"width 4: fraction of starts"},
    ),
    "bantzis.fig1": (
        ["sgd_1.nc", "flow.nc", "fig1_1.png", "fig3_1.png", "fig3_flow.png"],
        11,
        # Ranks of so narrow a network are not clear-cut, nor is it trained to the end.
        {
            "scale 1, seed 0: largest s2/s1",
            "scale 1, seed 0: largest s3/s2",
            "scale 1, seed 0: smallest s2/s1",
        },
    ),
    "bantzis.fig2": (
        ["descent.nc", "flow.nc", "depth_four.nc", "fig2.png", "fig6.png"],
        12,
        # Of narrower nets, from a few starts
        {
            "flow: the largest speed",
            "flow: smallest rise",
            "depth 4, width 24: fraction",
            "depth 4: largest",
        },
    ),
    "bantzis.fig4": (["sgd.nc", "fig4.png"], 1, set()),
    "bantzis.fig5": (
        ["angles.nc", "depths.nc", "bounds.nc", "fig5.png"],
        21,
        set(),
    ),
    "bantzis.scale_depth": (
        ["runs.nc", "escapes.nc", "plateaus.png"],
        8,
        # Of a single depth
        {"log of first plateau over first escape, in t, at the smallest norm"},
    ),
    "bantzis.second_escape": (
        [
            "flow.nc",
            "costs.nc",
            "descent_0.5.nc",
            "descent_0.1.nc",
            "sgd.nc",
            "second_escape.png",
            "second_escape_fig3.png",
        ],
        12,
        # The first escape alone
        {
            "flow: plateaus",
            "flow: bottleneck rank of the third",
            "descent: least growth",
            "descent, c=0.1: τ",
            "SGD: τ",
        },
    ),
    "galanti.fig1": (
        ["runs.nc", "fig1.png"],
        8,
        # In so short a time neither distances nor ranks have fallen.
        {"cross_entropy, λ=0.01", "squared, λ=0.01"},
    ),
    # Nor is anything forgotten.
    "galanti.figures --figure 2": (
        ["runs.nc", "fig2.png"],
        4,
        {"equal", "smallest batches"},
    ),
    "galanti.figures --figure 3": (
        ["runs.nc", "fig3.png"],
        12,
        {
            "equal epochs, η",
            "equal epochs, B=8, η=0.1: rank",
            "equal epochs, B=32, η=0.1: rank",
            "equal steps, η",
            "equal steps, B=8, η=0.1: rank",
            "equal steps, B=32, η=0.1: rank",
            "smallest batches",
        },
    ),
    "galanti.figures --figure 4": (
        ["runs.nc", "fig4.png"],
        4,
        {"equal", "smallest batches"},
    ),
    "galanti.figures --figure 5": (
        ["runs.nc", "fig5.png"],
        6,
        {"equal", "smallest batches", "full batch"},
    ),
    "galanti.figures --figure 6": (
        ["runs.nc", "fig6.png"],
        10,
        {f"equal {b}, B={size}:" for b in ("epochs", "steps") for size in (8, 32)},
    ),
    "galanti.figures --figure 7": (
        ["runs.nc", "fig7.png"],
        6,
        {f"equal {b}, B={size}:" for b in ("epochs", "steps") for size in (8, 32)},
    ),
    "le_jegelka.decomposition": (
        ["errors.nc", "errors.png"],
        7,
        set(),
    ),
    "le_jegelka.invariances": (["invariances.nc", "invariances.png"], 4, set()),
    "le_jegelka.regimes": (
        ["opposed.nc", "linear.nc", "relu.nc", "regimes.png"],
        14,
        # Of shorter trajectories
        {"E11, relu: least |entry|"},
    ),
    "le_jegelka.refutation": (
        ["opposed.nc", "generic.nc", "classes.nc", "refutation.png"],
        45,
        # Of shorter trajectories
        {"E2: least", "E2: largest ratio", "E2: latest"},
    ),
    "le_jegelka.tails": (
        ["logistic.nc", "convolutions.nc", "descent.nc", "tails.png"],
        43,
        # Not reached by small norms
        {"E5, logistic: ratio of W", "E7: least", "E7: largest"},
    ),
    "timor.deep": (["optima.nc", "deep.png"], 8, set()),
    "timor.margin": (["margin.nc", "margin.png"], 5, set()),
    "timor.fig1": (["paper.nc", "many.nc", "fig1.png"], 17, set()),
    "timor.fig2_3": (["limits.nc", "fig2.png", "fig3.png"], 8, set()),
    "timor.theorems_2_3": (
        ["theorem_2.nc", "theorem_3.nc", "theorems_2_3.png"],
        26,
        set(),
    ),
}


# As users run them, in a process of their own: the one in single precision, and one that
# solves with exact kinks.
OUTSIDE = {"bantzis.fig4", "timor.theorems_2_3"}


def run(name: str, out: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", f"experiments.{name}", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True)


def test_every_script_is_run():
    papers = ("bantzis", "galanti", "le_jegelka", "timor")
    scripts = {
        f"{paper}.{path.stem}"
        for paper in papers
        for path in (FOLDER / paper).glob("[!_]*.py")
    }
    assert scripts == {name.split()[0] for name in SMOKE}


@pytest.mark.parametrize("name", SMOKE)
def test_smoke(name, tmp_path, module, capsys):
    files, number, free = SMOKE[name]
    if name in OUTSIDE:
        done = run(name, tmp_path, "--smoke")
        assert done.returncode == 0, done.stderr[-2000:]
        assert "Warning" not in done.stderr
        printed = done.stdout
    else:
        # In this process, where they share imports and programs, and warnings are errors.
        script, *options = name.split()
        options += ["--smoke", "--out", str(tmp_path)]
        assert module(script).main(options) == 0
        printed = capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {*files, "claims.json"}
    for file in files:
        if file.endswith(".png"):
            assert (tmp_path / file).stat().st_size > 10_000
        else:
            with xr.open_dataset(tmp_path / file, engine="h5netcdf") as dataset:
                for values in dataset.values():
                    may_be_nan = file in ("bounds.nc", "escapes.nc")
                    assert np.isfinite(values.sum(skipna=False)) or may_be_nan
    report = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert report["settings"]["smoke"] and report["versions"]["jax"]
    assert len(report["claims"]) == number
    assert len({row["claim"] for row in report["claims"]}) == number
    for row in report["claims"]:
        assert row["claim"] in printed
        is_false = any(mark in row["claim"] for mark in FALSE)
        assert (row["verdict"] == "REFUTED") == is_false, row
        if not is_false and not any(row["claim"].startswith(start) for start in free):
            assert row["verdict"] == "HOLDS", row
    assert all(
        any(r["claim"].startswith(start) for r in report["claims"]) for start in free
    )


def test_the_sweep(tmp_path, module, compilation_cache):
    """It is run, resumed, and reports of each data set."""
    for _ in range(2):
        assert module("sweep.scale_depth").main(["--smoke", "--out", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"teacher", "teacher.nc", "escapes.png", "claims.json"}
    assert (tmp_path / "teacher" / "report.html").stat().st_size > 10_000
    report = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    verdicts = [row["verdict"] for row in report["claims"]]
    # Its largest norm is small already, so that none is on lazy training.
    assert len(verdicts) == 3 and set(verdicts) == {"HOLDS"}


@pytest.mark.slow
def test_the_gallery(tmp_path, module):
    """It draws whatever `gfdyn.plotting` can."""
    assert module("gallery").main(["--smoke", "--out", str(tmp_path)]) == 0
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    functions = {
        name
        for name in dir(plotting)
        if name[0] != "_" and callable(getattr(plotting, name))
    }
    on_axes = functions - {"caption", "label_ends", "plot", "shades", "style"}
    assert {f"panel_{name}" for name in on_axes - {"zoom_on_change"}} <= drawn
    assert {"escape", "linear", "classifier", "descent", "batch", "one_column"} <= drawn
    for name in drawn:
        assert (tmp_path / f"{name}.png").stat().st_size > 8_000, name
    report = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert [row["verdict"] for row in report["claims"]] == ["HOLDS"] * 4


def test_mnist_needs_a_path(tmp_path):
    done = run("bantzis.fig4", tmp_path, "--data", "mnist")
    assert done.returncode != 0
    assert "--data mnist needs --path FILE; nothing is downloaded." in done.stderr


@pytest.mark.slow
def test_mnist_from_disk(tmp_path, module):
    """In the real setting but for its size; what it does not reach is not tested."""
    rng = np.random.default_rng(0)
    images, classes = rng.integers(0, 256, (40, 28, 28)), rng.integers(0, 10, 40)
    np.savez(tmp_path / "mnist.npz", x_train=images.astype(np.uint8), y_train=classes)
    small = ["--width", "4", "--epochs", "2", "--batch-size", "8", "--seeds", "3"]
    where = ["--data", "mnist", "--path", str(tmp_path / "mnist.npz")]
    options = [*where, *small, "--no-flow", "--out", str(tmp_path / "out")]
    assert module("bantzis.fig1").main(options) == 0
    report = json.loads((tmp_path / "out" / "claims.json").read_text(encoding="utf-8"))
    assert len(report["claims"]) == 6
    assert {row["verdict"] for row in report["claims"]} == {"NOT TESTED"}
    with xr.open_dataset(tmp_path / "out" / "sgd_1.nc", engine="h5netcdf") as runs:
        assert runs["singular_values"].shape == (1, 3, 6, 10)
        assert runs["epoch"].values.tolist() == [0, 1, 2]
        # c L^(1-L/2) a step, at the paper's c = 10
        np.testing.assert_allclose(runs["tau"], 5 * np.arange(3) * 10 / 36, rtol=1e-12)
