"""What the figures of Galanti & Poggio share: runs, budgets, outcomes, images."""

import dataclasses
from importlib import import_module
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from tqdm import tqdm

import gfdyn as gf


FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def module(monkeypatch):
    """A module of the experiments by name."""
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    return lambda name: import_module(f"experiments.{name}")


# --- Runs -----------------------------------------------------------------------------


@pytest.fixture
def runs(module):
    return module("galanti._runs")


@pytest.fixture
def training(runs, tmp_path):
    return runs.Training(samples=64, seeds=(0, 3), saves=3, runs=tmp_path)


@pytest.fixture
def recipe(runs):
    """Six epochs of four steps."""
    return runs.Recipe(net="MLP-1-4", batch_size=16, rate=0.1, weight_decay=0.01, steps=24)


def test_runs_go_on(runs, training, recipe, monkeypatch):
    """Seed by seed what `gf.descend` does; stopped and resumed bitwise the same."""
    images = runs.load_images("digits", None, training.samples)
    steps, last, advance = [], 3, runs.advance

    def counted(*given):
        if len(steps) == last:
            raise KeyboardInterrupt
        steps.append(int(given[-1]))
        return advance(*given)

    def train(training):
        steps.clear()
        with tqdm(disable=True) as bar:
            return runs.train(training, images, recipe, bar)

    monkeypatch.setattr(runs, "advance", counted)
    with pytest.raises(KeyboardInterrupt):
        train(training)
    assert steps == [4, 4, 4]
    last = None
    resumed = train(training)
    # From the first save on; the state an epoch before the second was not kept.
    assert steps == [4, 4, 4, 4]
    xr.testing.assert_identical(train(training), resumed)
    assert not steps
    xr.testing.assert_identical(train(dataclasses.replace(training, runs=None)), resumed)
    assert steps == [4] * 6

    nets = runs.first_nets(training, images, recipe)
    traj = gf.descend(
        images.train,
        jax.tree.map(lambda w: w[1], nets),
        recipe.learning_rate,
        recipe.steps,
        batch_size=recipe.batch_size,
        key=jax.random.fold_in(jax.random.key(3), 1),
        momentum=0.9,
        weight_decay=recipe.weight_decay,
        save_every=4,
    )
    run = resumed.sel(seed=3)
    assert run["step"].values.tolist() == [0, 8, 16, 24]
    assert run["epoch"].values.tolist() == [0, 2, 4, 6]
    risks = traj.measure(gf.diagnostics.risk)[::2]
    np.testing.assert_allclose(run["risk"], risks, rtol=1e-5)
    moved = [np.diff(np.asarray(w), axis=0)[1::2] for w in traj.net.weights]
    distances = np.mean([np.linalg.norm(w, axis=(1, 2)) for w in moved], axis=0)
    np.testing.assert_allclose(run["distance"][1:], distances, rtol=1e-4)
    values = [np.linalg.svd(w[-1], compute_uv=False) for w in traj.net.weights]
    ranks = [[np.sum(s > t * np.linalg.norm(s)) for s in values] for t in (1e-4, 1e-3)]
    assert run["rank"][-1].values.tolist() == ranks
    assert run["full_rank"].values.tolist() == [4, 4]


def test_more_saves_than_epochs(runs, training, recipe):
    images = runs.load_images("digits", None, training.samples)
    many = dataclasses.replace(training, saves=7)
    with pytest.raises(ValueError, match="saves=7 are more than the 6 epochs of B=16"):
        runs.stops_of(many, images, recipe)


def test_files_are_named_after_all_that_matters(runs, training, recipe):
    """One file for one run, whatever the order of the figures that ask for it."""
    names = {
        runs._file(training, recipe),
        runs._file(dataclasses.replace(training, seeds=(0, 4)), recipe),
        runs._file(dataclasses.replace(training, samples=None), recipe),
        runs._file(training, dataclasses.replace(recipe, rate=0.2)),
        runs._file(training, dataclasses.replace(recipe, steps=48)),
    }
    assert len(names) == 5
    assert runs._file(training, dataclasses.replace(recipe)) in names
    assert runs._file(dataclasses.replace(training, runs=None), recipe) is None


def test_budgets(runs, recipe):
    """Of 64 samples: 4 steps an epoch at B = 16, one at 64."""
    other = dataclasses.replace(recipe, batch_size=64, rate=0.05, weight_decay=0.04)

    def steps(budget, recipe):
        return runs.under(budget, first, recipe, 64).steps

    first = recipe
    assert {b: steps(b, first) for b in ("epochs", "steps", "forgetting")} == {
        "epochs": 24,
        "steps": 24,
        "forgetting": 24,
    }
    assert steps("epochs", other) == 6
    assert steps("steps", other) == 24
    # At half the rate and four times the decay
    assert steps("forgetting", other) == 12
    assert steps("forgetting", dataclasses.replace(other, weight_decay=0.0)) == 24
    assert steps("forgetting", dataclasses.replace(other, momentum=0.0)) == 120


def test_forgetting(runs):
    """Section 2.10's 13.8 for the run of B = 8 over 264 000 steps."""
    long = runs.Recipe(
        net="MLP-5-50", batch_size=8, rate=0.01, weight_decay=2e-3, steps=264_000
    )
    assert long.forgetting == pytest.approx(13.8, abs=0.02)
    assert dataclasses.replace(long, schedule=False).forgetting == pytest.approx(105.6)


# --- Claims ---------------------------------------------------------------------------


@pytest.fixture
def claims(module):
    return module("galanti._claims")


@pytest.fixture
def two():
    """Runs of three seeds with two hidden matrices: one loses rank, but collapses from the
    last seed; one diverges from the first and keeps its rank."""
    rank = np.full((2, 2, 3, 2, 3), 4)
    rank[0, -1, :, 1, 0] = [2, 3, 0]
    risk, size = np.full((2, 2, 3), 0.1), np.full((2, 2, 3), 0.5)
    risk[0, -1, 2], size[0, -1, 2], risk[1, -1, 0] = np.log(10), 1e-4, np.nan
    # Not yet trained is not collapsed.
    risk[1, -1, 2] = np.log(10)
    dims = ("run", "save", "seed")
    return xr.Dataset(
        {
            "rank": ((*dims, "threshold", "layer"), rank),
            "risk": (dims, risk),
            "size": (dims, size),
            "train_accuracy": (dims, np.full((2, 2, 3), 0.99)),
            "test_accuracy": (dims, np.full((2, 2, 3), 0.9)),
            "zero_risk": ("run", [np.log(10)] * 2),
            "full_rank": (("run", "layer"), [[4, 4, 4]] * 2),
        },
        coords={
            "threshold": [1e-4, 1e-3],
            "batch_size": ("run", [8, 128]),
            "rate": ("run", [0.1, 0.1]),
            "forgetting": ("run", [13.8, 0.9]),
        },
    )


def test_outcomes_are_told_apart(claims, two):
    assert claims.outcomes(two).values.tolist() == [
        ["trained", "trained", "collapsed"],
        ["diverged", "trained", "trained"],
    ]
    rank = claims.average_rank(two).isel(save=-1).values
    np.testing.assert_array_equal(rank, [[3, 3.5, np.nan], [np.nan, 4, 4]])
    assert claims.full_rank(two) == 4
    lines = claims.table_of(two, ("batch_size", "rate"))
    assert "1 collapsed, 2 trained" in lines and "1 diverged, 2 trained" in lines
    assert "3.25 [3, 3.5]" in lines and "3.5 [3.33, 3.67]" in lines


def test_claims_in_the_least_favourable_seed(claims, two):
    low, high = (claims.of(two, batch_size=size) for size in (8, 128))
    below = claims.below("a", "b", low, high)
    assert (below.measured, below.verdict) == (-0.5, "HOLDS")
    assert claims.below("a", "b", high, low).verdict == "REFUTED"
    lowest = claims.low_rank("a", "b", low, 4)
    assert (lowest.measured, lowest.verdict) == (3.5 / 4, "REFUTED")
    keeps = claims.keeps_rank("a", "b", low, 4)
    assert (keeps.measured, keeps.verdict) == (1, "HOLDS")
    assert claims.fits("a", "b", low).measured == 0.99
    gone = low.isel(seed=[2])
    assert claims.below("a", "b", gone, high.isel(seed=[2])).verdict == "NOT TESTED"
    with pytest.raises(ValueError, match="are the fields of 2 runs, not of one"):
        claims.of(two, rate=0.1)


# --- Images ---------------------------------------------------------------------------


def test_digits_are_split(module):
    images = module("galanti._images").load_images("digits", None, None)
    assert images.samples == 1408 and images.test.data.num_samples == 389
    assert images.train.data.x.dtype == np.float32
    rows = np.concatenate([images.train.data.x, images.test.data.x])
    assert len(np.unique(rows, axis=0)) == 1797


def test_cifar_from_disk(module, tmp_path):
    """The binary version and an archive, alike; a sixth to test on."""
    of = module("galanti._images")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 3072), np.uint8)
    classes = np.arange(12, dtype=np.uint8) % 10
    rows = np.concatenate([classes[:, None], pixels], axis=1)
    rows[:8].tofile(tmp_path / "data_batch_1.bin")
    rows[8:].tofile(tmp_path / "data_batch_2.bin")
    np.savez(tmp_path / "cifar.npz", x_train=pixels, y_train=classes[:, None])
    for path in (tmp_path, tmp_path / "cifar.npz"):
        read = of.read_cifar10(path)
        np.testing.assert_array_equal(read[0], pixels)
        np.testing.assert_array_equal(read[1], classes)
    images = of.load_images("cifar10", tmp_path, None)
    assert images.samples == 10 and images.test.data.num_samples == 2
    both = np.concatenate([images.train.data.y, images.test.data.y])
    assert np.sort(both.argmax(1)).tolist() == sorted(classes.tolist())
    with pytest.raises(ValueError, match="samples=12 must be less than the 12 images"):
        of.load_images("cifar10", tmp_path, 12)


def test_cifar_that_is_none(module, tmp_path):
    of = module("galanti._images")
    with pytest.raises(ValueError, match="--data cifar10 needs --path FILE"):
        of.load_images("cifar10", None, None)
    with pytest.raises(FileNotFoundError, match=r"no data_batch_\*.bin"):
        of.read_cifar10(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3000))
    with pytest.raises(ValueError, match="has 3000 bytes, not images of 3073"):
        of.read_cifar10(tmp_path)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="no npz of x_train and y_train"):
        of.read_cifar10(tmp_path / "other.npz")


def test_each_figure_has_a_folder_of_its_own(module, capsys):
    """A folder that is given is that of one figure, which must be said."""
    figures = module("galanti.figures")
    with pytest.raises(SystemExit):
        figures.main(["--smoke", "--out", "anywhere"])
    assert "--figure" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        figures.main(["--figure", "1", "--smoke"])
    assert "choose from 2, 3" in capsys.readouterr().err
