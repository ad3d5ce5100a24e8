"""Galanti & Poggio's trainings: SGD with heavy ball and decay, watched from save to save.

A recipe is run from the net of each seed at once, and kept on disk: a run that was stopped
goes on from its last save, and figures share those that are the same.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr
from tqdm import tqdm

import gfdyn as gf
from experiments.galanti._images import Images, Loss, load_images
from gfdyn._atomic import replace_atomically
from gfdyn._progress import progress_bar
from gfdyn.run._serialise import decode, encode


Budget = Literal["epochs", "steps", "forgetting"]

THRESHOLDS = (1e-4, 1e-3)
# Matrices that have shrunk by this factor are zero, of rank 0.
_ZERO = 1e-6
# The paper's schedule: × 0.1 at 12, 20 and 40 % of the run.
_FRACTIONS, _FACTOR = (0.12, 0.2, 0.4), 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What the trainings of a figure have in common."""

    data: Literal["digits", "mnist", "cifar10"] = "digits"
    """Images."""
    path: Path | None = None
    """File or folder with MNIST (IDX or npz) or CIFAR-10 (binary version or npz)."""
    samples: int | None = None
    """Images to train on; of digits 1408, of others five sixths, if None."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of nets and batches; all run at once."""
    saves: int = 20
    """How often ranks, distances and accuracies are measured, at equal distances."""
    runs: Path | None = Path("results/galanti/runs")
    """Folder that keeps the runs, to go on from and to share; None keeps none."""
    smoke: bool = False
    """Narrow nets for a short time, whatever the other settings."""
    out: Path = Path("results/galanti")
    """Folder to write to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training."""

    net: str
    """A name that `gf.nets.architecture` knows."""
    batch_size: int
    rate: float
    weight_decay: float
    """λ of the penalty λ‖W‖²."""
    steps: int
    momentum: float = 0.9
    schedule: bool = True
    """Whether the rate falls as in the paper, or stays."""
    loss: Loss = "cross_entropy"
    detach: bool = True
    """Whether derivatives take the scale of batch normalisation, if any, as constant."""

    @property
    def learning_rate(self) -> gf.SteppedRate:
        """η of each step."""
        return gf.SteppedRate(
            self.rate, self.steps, _FRACTIONS if self.schedule else (), _FACTOR
        )

    @property
    def forgetting(self) -> float:
        """Λ: of the initial weights e^−Λ is left."""
        return float(
            gf.theory.galanti.forgetting_exponent(
                self.learning_rate, self.steps, self.weight_decay, self.momentum
            )
        )


def under(budget: Budget, reference: Recipe, recipe: Recipe, samples: int) -> Recipe:
    """The recipe for as many epochs as the reference has, or as many steps, or until as
    much is forgotten. Without decay nothing is: then for as many steps."""
    epochs = reference.steps / (samples // reference.batch_size)
    steps = float(reference.steps)
    if budget == "epochs":
        steps = epochs * (samples // recipe.batch_size)
    elif budget == "forgetting" and recipe.weight_decay:
        speeds = [r.rate * r.weight_decay / (1 - r.momentum) for r in (reference, recipe)]
        steps *= speeds[0] / speeds[1]
    return dataclasses.replace(recipe, steps=max(1, round(steps)))


def samples_of(training: Training) -> int:
    """The number of images to train on."""
    return load_images(training.data, training.path, training.samples).samples


def train_all(training: Training, recipes: Sequence[Recipe]) -> xr.Dataset:
    """What `train` measures of each recipe, (run, …), with the recipes over `run`.

    Raises:
        ValueError: if a recipe has more saves than epochs.
    """
    distinct = list(dict.fromkeys(recipes))
    losses: set[Loss] = {recipe.loss for recipe in distinct}
    given = training.data, training.path, training.samples
    images = {loss: load_images(*given, loss) for loss in losses}
    for recipe in distinct:
        # Before the first of them has run for an hour.
        stops_of(training, images[recipe.loss], recipe)
    with progress_bar(total=sum(recipe.steps for recipe in distinct), unit=" steps") as bar:
        found = {r: train(training, images[r.loss], r, bar) for r in distinct}
    runs = xr.concat([found[recipe] for recipe in recipes], "run")
    fields = {
        field.name: ("run", [getattr(recipe, field.name) for recipe in recipes])
        for field in dataclasses.fields(Recipe)
    }
    forgotten = [recipe.forgetting for recipe in recipes]
    return runs.assign_coords({**fields, "forgetting": ("run", forgotten)})


def train(training: Training, images: Images, recipe: Recipe, bar: tqdm) -> xr.Dataset:
    """`measure` at each save, (save, seed, …), of the run from the net of each seed, or
    from where a kept one stopped; over `epoch` and `step` (save). Beside it the risk of the
    zero function, `zero_risk`, and the full rank of each layer."""
    bar.set_postfix_str(
        f"{recipe.net}, B={recipe.batch_size}, η={recipe.rate:g}, λ={recipe.weight_decay:g}"
    )
    stops, an_epoch = stops_of(training, images, recipe)
    file = _file(training, recipe)
    kept = _kept(file)
    if kept is None:
        state = nets = first_nets(training, images, recipe)
        norms = jax.vmap(lambda net: gf.nets.norm(net.weights))(nets)
        rows = [_row(images, nets, nets, norms)]
    else:
        rows, state = kept
    bar.update(stops[len(rows) - 1])
    for start, stop in itertools.pairwise(stops[len(rows) - 1 :]):
        # The distance is to where the net was an epoch before.
        if stop - an_epoch > start:
            state = advance(training, images, recipe, state, stop - an_epoch - start)
        before = state.net if isinstance(state, gf.DescentState) else state
        state = advance(training, images, recipe, state, an_epoch)
        rows.append(_row(images, before, state.net, state.initial_norm))
        _keep(file, rows, state)
        bar.update(stop - start)
    outputs = jnp.zeros_like(images.train.data.y)
    full = [min(w.shape) for w in jax.tree.map(lambda a: a[0], state.net).weights]
    watched = xr.concat(rows, "save").assign(
        zero_risk=float(images.train.cost(outputs)), full_rank=("layer", full)
    )
    return watched.assign_coords(
        step=("save", stops),
        epoch=("save", stops / an_epoch),
        seed=list(training.seeds),
        threshold=list(THRESHOLDS),
        layer=np.arange(1, len(full) + 1),
    )


def stops_of(training: Training, images: Images, recipe: Recipe) -> tuple[np.ndarray, int]:
    """The steps of the saves, from 0 on; and how many steps an epoch has.

    Raises:
        ValueError: if there are more saves than epochs.
    """
    an_epoch = images.samples // recipe.batch_size
    if recipe.steps < training.saves * an_epoch:
        raise ValueError(
            f"saves={training.saves} are more than the {recipe.steps / an_epoch:g} epochs "
            f"of B={recipe.batch_size}; give fewer, or more steps."
        )
    steps = np.linspace(0, recipe.steps, training.saves + 1)
    return np.rint(steps).astype(int), an_epoch


def first_nets(training: Training, images: Images, recipe: Recipe) -> Any:
    """The net of each seed, drawn as torch does, stacked."""
    data = images.train.data
    norm = gf.nets.batch_norm(detach=recipe.detach) if "-BN-" in recipe.net else None

    def first(seed: Any) -> gf.nets.AbstractNet:
        key = jr.fold_in(jr.key(seed), 0)
        sizes = data.dim, data.y.shape[1]
        return gf.nets.architecture(
            recipe.net, *sizes, key=key, norm=norm, dtype=data.x.dtype
        )

    return jax.vmap(first)(np.asarray(training.seeds))


def advance(
    training: Training, images: Images, recipe: Recipe, state: Any, steps: int
) -> gf.DescentState:
    """So many steps from the nets, or the states, of the seeds. Other rates, decays and
    numbers of steps are the same program."""
    begins = not isinstance(state, gf.DescentState)
    # The same for all: as one of each seed, an epoch would be shuffled at every step.
    step = None if begins else state.step[0]

    def one(state: Any, seed: Any) -> Any:
        if not begins:
            state = eqx.tree_at(lambda s: s.step, state, step)
        return gf.descend(
            images.train,
            state,
            recipe.learning_rate,
            int(steps),
            batch_size=recipe.batch_size,
            key=jr.fold_in(jr.key(seed), 1) if begins else None,
            momentum=recipe.momentum,
            # An array, also of 0, without which it would be another program.
            weight_decay=jnp.asarray(recipe.weight_decay, jnp.float32),
            save_every=int(steps),
            throw=False,
        ).checkpoint

    return jax.vmap(one)(state, np.asarray(training.seeds))


@jax.jit
@partial(jax.vmap, in_axes=(None, None, 0, 0, 0))
def measure(
    train: gf.Problem, test: gf.Problem, before: Any, net: Any, initial_norm: Any
) -> dict[str, jax.Array]:
    """What is watched: risk and accuracies, ‖W‖ over its initial value, the distance of the
    two nets; and the ranks of all layers in float64, (threshold, layer)."""
    double = jax.tree.map(lambda w: w.astype(jnp.float64), net)
    ranks = [
        gf.diagnostics.layer_ranks(train, double, t, zero_norm=_ZERO * initial_norm)
        for t in THRESHOLDS
    ]
    # Statistics of batch normalisation are those of the images to train on.
    fixed = gf.nets.normalised_by(net, train.data.x)
    return {
        "risk": train.risk(net),
        "train_accuracy": gf.diagnostics.accuracy(train, net),
        "test_accuracy": gf.diagnostics.accuracy(test, fixed),
        "size": gf.nets.norm(net.weights) / initial_norm,
        "distance": gf.diagnostics.epoch_distance(before, net),
        "rank": jnp.stack(ranks),
    }


def _row(images: Images, before: Any, nets: Any, initial_norm: Any) -> xr.Dataset:
    return _dataset(measure(images.train, images.test, before, nets, initial_norm))


def _dataset(found: Mapping[str, Any]) -> xr.Dataset:
    dims = {"rank": ("seed", "threshold", "layer")}
    return xr.Dataset(
        {name: (dims.get(name, ("seed",)), np.asarray(v)) for name, v in found.items()}
    )


def _file(training: Training, recipe: Recipe) -> Path | None:
    """Where the run is kept: named after all that it depends on."""
    if training.runs is None:
        return None
    shared = (training.data, str(training.path), training.samples, training.seeds)
    told = [gf.__version__, *shared, training.saves, *dataclasses.astuple(recipe)]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]
    training.runs.mkdir(parents=True, exist_ok=True)
    return training.runs / f"{recipe.net}_{digest}.npz"


def _keep(file: Path | None, rows: list[xr.Dataset], state: gf.DescentState) -> None:
    """Both in one file, which is complete or as it was."""
    if file is None:
        return
    arrays: dict[str, np.ndarray] = {}
    arrays["tree"] = np.asarray(json.dumps(encode(state, "state", arrays)))
    for name in rows[0]:
        arrays[f"row.{name}"] = np.stack([row[name].values for row in rows])

    def write(path: Path) -> None:
        with path.open("wb") as opened:
            np.savez(opened, **arrays)  # pyright: ignore[reportArgumentType]

    replace_atomically(file, write)


def _kept(file: Path | None) -> tuple[list[xr.Dataset], gf.DescentState] | None:
    """The rows so far and the state at the last; None if there are none."""
    if file is None or not file.exists():
        return None
    with np.load(file, allow_pickle=False) as opened:
        arrays = dict(opened)
    state = decode(json.loads(str(arrays["tree"])), arrays, "state")
    stacked = {
        name.removeprefix("row."): values
        for name, values in arrays.items()
        if name.startswith("row.")
    }
    number = len(stacked["risk"])
    return [_dataset({n: v[i] for n, v in stacked.items()}) for i in range(number)], state
