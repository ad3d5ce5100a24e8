"""The experiments run, at a small size, and give a verdict on every claim."""

import json
import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from gfdyn import plotting


FOLDER = Path(__file__).parents[2] / "experiments"
# Files of each script, the number of its claims at the small size, and by the start of
# their statements those that need not hold there.
SMOKE = {
    "bantzis.digits_directions": (
        ["directions.nc", "directions.png"],
        7,
        # Of so few samples there are more optima.
        {"width 4: fraction of starts"},
    ),
    "bantzis.fig1": (
        ["sgd_1.nc", "flow.nc", "fig1_1.png", "fig3_1.png", "fig3_flow.png"],
        10,
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
        # Refuted at every size: Prop. 3.2 needs a hidden layer.
        {"two points: s*(2) − s*(1)"},
    ),
    "bantzis.scale_depth": (
        ["runs.nc", "escapes.nc", "plateaus.png"],
        8,
        # Of a single depth
        {"log of first plateau over first escape, in t, at the smallest norm"},
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
        # Refuted at every size
        {"E10: first version", "E10: as printed"},
    ),
    "le_jegelka.invariances": (["invariances.nc", "invariances.png"], 4, set()),
    "le_jegelka.regimes": (
        ["opposed.nc", "linear.nc", "relu.nc", "regimes.png"],
        14,
        # Of shorter trajectories; refuted at every size
        {"E11, relu: least |entry|", "E11: as printed"},
    ),
    "le_jegelka.refutation": (
        ["opposed.nc", "generic.nc", "classes.nc", "refutation.png"],
        45,
        # Of shorter trajectories; refuted at every size
        {
            "E2: least",
            "E2: largest ratio",
            "E2: latest",
            "E1, 120°: first version",
            "E1, 91°: first version",
            "E2: first version",
            "E3: first version",
            "E4, three layers: first version",
            "E4, two layers: first version",
        },
    ),
    "le_jegelka.tails": (
        ["logistic.nc", "convolutions.nc", "descent.nc", "tails.png"],
        43,
        # Not reached by small norms; refuted at every size
        {
            "E5, logistic: first version",
            "E5, logistic: ratio of W",
            "E7: least",
            "E7: largest",
            "E9, relu, rate 0.1: first version",
            "E9, relu, rate 0.05: first version",
        },
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


@pytest.fixture
def module(monkeypatch):
    """A module of the experiments by name."""
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    return lambda name: import_module(f"experiments.{name}")


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


@pytest.mark.slow
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
        if not any(row["claim"].startswith(start) for start in free):
            assert row["verdict"] == "HOLDS", row
    assert all(
        any(r["claim"].startswith(start) for r in report["claims"]) for start in free
    )


@pytest.mark.slow
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


def test_verdicts(module):
    claims = module("_common.claims")

    def verdict(measured, **ends):
        return claims.Claim(statement="a", source="b", measured=measured, **ends).verdict

    assert verdict(1.0, low=1.0) == verdict(1.0, high=1.0) == "HOLDS"
    assert verdict(1.0, low=0.5, high=2.0) == verdict(-math.inf, high=0.0) == "HOLDS"
    assert verdict(0.9, low=1.0) == verdict(1.1, high=1.0) == "REFUTED"
    assert verdict(math.inf, low=0.0, high=9.0) == "REFUTED"
    assert verdict(None, low=0.0) == "NOT TESTED"
    near = claims.near("a", "b", 1.05, 1.0, 0.1)
    assert near.verdict == "HOLDS" and (near.low, near.high) == (0.9, 1.1)
    assert claims.near("a", "b", 1.2, 1.0, 0.1).verdict == "REFUTED"


def test_claims_that_are_none(module):
    claims = module("_common.claims")

    def claim(measured, **ends):
        return claims.Claim(
            statement="the loss falls", source="b", measured=measured, **ends
        )

    with pytest.raises(ValueError, match="'the loss falls': measured=nan has no verdict"):
        claim(math.nan, low=0.0)
    with pytest.raises(ValueError, match="'the loss falls' holds whatever is measured"):
        claim(1.0)
    with pytest.raises(ValueError, match="low=2.0 and high=1.0 are no range; give low <="):
        claim(1.0, low=2.0, high=1.0)
    with pytest.raises(ValueError, match="low=nan"):
        claim(1.0, low=math.nan)


def test_table_and_json(module):
    claims = module("_common.claims")
    rows = [
        claims.Claim(
            statement="rises", source="Fig. 1", measured=np.float32(0.5), low=0.25
        ),
        claims.Claim(statement="falls", source="Fig. 2", measured=None, high=1e-3),
        claims.Claim(statement="between", source="Fig. 3", measured=3.0, low=1, high=2),
        claims.Claim(statement="none", source="Fig. 4", measured=0, low=0, high=0),
        claims.near("near", "Fig. 5", 2.0, 2.0, 1e-6),
    ]
    assert claims.table(rows).splitlines() == [
        "verdict     measured  expected   claim",
        "HOLDS            0.5  >= 0.25    rises (Fig. 1)",
        "NOT TESTED         -  <= 0.001   falls (Fig. 2)",
        "REFUTED            3  1 to 2     between (Fig. 3)",
        "HOLDS              0  0          none (Fig. 4)",
        "HOLDS              2  2 ± 1e-06  near (Fig. 5)",
    ]
    first, second, *_ = json.loads(json.dumps(claims.as_json(rows), allow_nan=False))
    assert first == {
        "claim": "rises",
        "source": "Fig. 1",
        "measured": 0.5,
        "low": 0.25,
        "high": None,
        "verdict": "HOLDS",
    }
    assert second["measured"] is None and second["verdict"] == "NOT TESTED"


def test_rests(module):
    find = module("bantzis._image_training").find_plateaus
    # Two plateaus of 10 and 20 saves, noise upwards on the second
    second = np.full(20, 1.8)
    second[[3, 11]] += 0.5
    risk = np.concatenate([np.full(10, 2.3), [2.0], second, [1.2, 0.5, 0.05, 0.01]])
    found = find(risk)
    assert (found.first_left, found.start, found.end, found.solved) == (10, 11, 30, 33)
    assert found.rest == 19 / 23
    never = find(np.full(5, 2.3))
    assert never.first_left is never.start is never.solved is never.rest is None
    # Left, and on the second plateau to the end
    waiting = find(risk[:25])
    assert (waiting.start, waiting.end, waiting.solved, waiting.rest) == (
        11,
        24,
        None,
        None,
    )


@pytest.fixture
def saddles():
    """Two plateaus, from epoch 0 to 100 and 120 to 3000, of rank 0 and 1; then rank 2."""
    values = np.full((4, 6, 10), 0.1)
    values[1:, :, 0], values[1, 0, 1] = 3.0, 1.0
    values[2:, :, 1] = 1.5
    return xr.Dataset(
        {
            "risk": ("save", [2.3026, 1.82, 1.0, 0.01]),
            "epoch": ("save", [0.0, 2000.0, 3100.0, 6500.0]),
            "singular_values": (("save", "layer", "value"), values),
            "plateau_start": ("plateau", [0.0, 120.0]),
            "plateau_end": ("plateau", [100.0, 3000.0]),
            "plateau_save": ("plateau", [0.0, 1.0]),
            "plateau_risk": ("plateau", [2.3026, 1.82]),
            "bottleneck_rank": ("plateau", [0.0, 1.0]),
            "rank": (("plateau", "layer"), [[0.0] * 6, [2.0, *[1.0] * 5]]),
        }
    )


def verdicts(module, run):
    training = module("bantzis._image_training").Training(seeds=(3,))
    claims = module("bantzis._plateau_claims").plateau_claims(
        training, run.expand_dims(seed=[3]), 1.0
    )
    names = [claim.statement.removeprefix("scale 1, seed 3: ") for claim in claims]
    return {
        name: (claim.verdict, claim.measured)
        for name, claim in zip(names, claims, strict=True)
    }


def test_claims_on_plateaus(module, saddles):
    found = verdicts(module, saddles)
    assert {verdict for verdict, _ in found.values()} == {"HOLDS"} and len(found) == 9
    expected = {
        "largest s2/s1 of W3 to W6 on the second plateau": 0.1 / 3,
        "s2/s1 of W1 on the second plateau": 1 / 3,
        "largest s3/s2 of W3 to W5 at the end": 0.1 / 1.5,
        "smallest s2/s1 of W3 to W5 at the end": 0.5,
        "first plateau left, epoch": 100.0,
        "second plateau left, epoch": 3000.0,
    }
    for name, value in expected.items():
        assert found[name][1] == pytest.approx(value)


def test_claims_without_a_second_plateau(module, saddles):
    """What was not reached is not tested, but for what should have happened by then."""
    one = saddles.isel(save=slice(0, 1), plateau=slice(0, 1))
    assert set(verdicts(module, one).values()) == {("NOT TESTED", None)}
    lasting = saddles.isel(save=[0, 1]).assign(plateau_end=("plateau", [100.0, 2000.0]))
    found = verdicts(module, lasting)
    assert found["second plateau left, epoch"] == ("NOT TESTED", None)
    assert found["largest s3/s2 of W3 to W5 at the end"] == ("NOT TESTED", None)
    late = lasting.assign(
        epoch=("save", [0.0, 9800.0]), plateau_end=("plateau", [100.0, 9800.0])
    )
    assert verdicts(module, late)["second plateau left, epoch"] == ("REFUTED", math.inf)


def test_plateau_table(module, saddles):
    assert module("bantzis._image_training").plateau_table(
        saddles.expand_dims(seed=[3])
    ).splitlines() == [
        "seed  plateau   from epoch    to epoch      loss  ranks (bottleneck)",
        "   3        0            0         100    2.3026  0 0 0 0 0 0 (0)",
        "   3        1          120        3000    1.8200  2 1 1 1 1 1 (1)",
    ]
