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


FOLDER = Path(__file__).parents[1] / "experiments"
# Files of each script, the number of its claims at the small size, and by the start of
# their statements those that need not hold there.
SMOKE = {
    "bantzis_fig1": (
        ["sgd.nc", "flow.nc", "fig1.png", "fig3.png", "fig3_flow.png"],
        8,
        # Ranks of so narrow a network are not clear-cut, nor is it trained to the end.
        {
            "SGD, seed 0: largest s2/s1",
            "SGD, seed 0: largest s3/s2",
            "SGD, seed 0: smallest s2/s1",
        },
    ),
    "bantzis_fig2": (
        ["descent.nc", "flow.nc", "depth_four.nc", "fig2.png", "fig6.png"],
        10,
        # Of narrower nets, from a few starts
        {"depth 4, width 24: starts"},
    ),
    "bantzis_fig4": (["sgd.nc", "fig4.png"], 1, set()),
    "bantzis_fig5": (
        ["angles.nc", "depths.nc", "bounds.nc", "fig5.png"],
        21,
        # Refuted at every size: Prop. 3.2 needs a hidden layer.
        {"two points: s*(2) − s*(1)"},
    ),
}


@pytest.fixture
def module(monkeypatch):
    """A module of the experiments by name, imported as the scripts do."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module


def run(name: str, out: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_script_is_run():
    scripts = {path.stem for path in FOLDER.glob("*.py") if path.stem[0] != "_"}
    assert {name for name in scripts if name.startswith("bantzis")} == set(SMOKE)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOKE)
def test_smoke(name, tmp_path):
    files, number, free = SMOKE[name]
    done = run(name, tmp_path, "--smoke")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Warning" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {*files, "claims.json"}
    for file in files:
        if file.endswith(".png"):
            assert (tmp_path / file).stat().st_size > 10_000
        else:
            with xr.open_dataset(tmp_path / file, engine="h5netcdf") as dataset:
                for values in dataset.values():
                    assert np.isfinite(values.sum(skipna=False)) or file == "bounds.nc"
    report = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert report["settings"]["smoke"] and report["versions"]["jax"]
    assert len(report["claims"]) == number
    assert len({row["claim"] for row in report["claims"]}) == number
    for row in report["claims"]:
        assert row["claim"] in done.stdout
        if not any(row["claim"].startswith(start) for start in free):
            assert row["verdict"] == "HOLDS", row
    assert all(
        any(r["claim"].startswith(start) for r in report["claims"]) for start in free
    )


def test_mnist_needs_a_path(tmp_path):
    done = run("bantzis_fig4", tmp_path, "--data", "mnist")
    assert done.returncode != 0
    assert "--data mnist needs --path FILE; nothing is downloaded." in done.stderr


@pytest.mark.slow
def test_mnist_from_disk(tmp_path):
    """In the real setting but for its size; what it does not reach is not tested."""
    rng = np.random.default_rng(0)
    images, classes = rng.integers(0, 256, (40, 28, 28)), rng.integers(0, 10, 40)
    np.savez(tmp_path / "mnist.npz", x_train=images.astype(np.uint8), y_train=classes)
    small = ["--width", "4", "--epochs", "2", "--batch-size", "8", "--seeds", "3"]
    where = ["--data", "mnist", "--path", str(tmp_path / "mnist.npz")]
    done = run("bantzis_fig1", tmp_path / "out", *where, *small, "--no-flow")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "out" / "claims.json").read_text(encoding="utf-8"))
    assert len(report["claims"]) == 5
    assert {row["verdict"] for row in report["claims"]} == {"NOT TESTED"}
    with xr.open_dataset(tmp_path / "out" / "sgd.nc", engine="h5netcdf") as runs:
        assert runs["singular_values"].shape == (1, 3, 6, 10)
        assert runs["epoch"].values.tolist() == [0, 1, 2]
        # c L^(1-L/2) a step, at the paper's c = 10
        np.testing.assert_allclose(runs["tau"], 5 * np.arange(3) * 10 / 36, rtol=1e-12)


def test_verdicts(module):
    claims = module("_claims")

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
    claims = module("_claims")

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
    claims = module("_claims")
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


def test_plateaus(module):
    find = module("_image_training").find_plateaus
    # Two plateaus of 10 and 20 saves, noise upwards on the second
    second = np.full(20, 1.8)
    second[[3, 11]] += 0.5
    risk = np.concatenate([np.full(10, 2.3), [2.0], second, [1.2, 0.5, 0.05, 0.01]])
    found = find(risk)
    assert (found.first_left, found.start, found.end) == (10, 11, 30)
    assert (found.left, found.solved, found.middle) == (31, 33, 20)
    never = find(np.full(5, 2.3))
    assert never.first_left is never.middle is never.solved is None
    # Left, and on the second plateau to the end
    waiting = find(risk[:25])
    assert (waiting.start, waiting.end, waiting.left, waiting.solved) == (
        11,
        24,
        None,
        None,
    )
