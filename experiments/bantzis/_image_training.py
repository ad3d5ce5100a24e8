"""SGD on images as in Bantzis et al., Appendix B: MNIST, or digits, which stand in for it.

The rate is c/‖θ‖^(L−2), so that each step is of the same length in the clock τ of escape.
"""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gfdyn as gf
from gfdyn import plotting


RECORDS = {
    "risk": gf.diagnostics.risk,
    "singular_values": partial(gf.diagnostics.singular_values, k=10),
}
DIMS = {"risk": ("save",), "singular_values": ("save", "layer", "value")}
# A fall of the loss by this is no part of a plateau.
BAND = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """SGD on images; what is None has the value of the paper's setting, or its stand-in."""

    data: Literal["digits", "mnist"] = "digits"
    """Images; of MNIST the whole training set."""
    path: Path | None = None
    """File or folder with MNIST (IDX, gzipped or not, or npz); nothing is downloaded."""
    samples: int | None = None
    """Number of samples, the first of the file; all if None."""
    width: int | None = None
    """Neurons of each hidden layer; 64 for digits, 1000 for MNIST, if None."""
    batch_size: int = 32
    """Samples a step."""
    saves: int | None = None
    """About how many times loss and singular values are measured, with the nets in memory
    until then; 650 for digits, 100 for MNIST (20 MB each), if None."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A run for each."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of data and parameters."""
    smoke: bool = False
    """A small network for a short time, whatever the other settings."""


def make_problem(training: Training) -> gf.Problem:
    """The mean cross-entropy on the images.

    Raises:
        ValueError: on MNIST without a path.
    """
    if training.data == "digits":
        images = gf.data.digits(training.samples, dtype=training.dtype)
    elif training.path is None:
        raise ValueError("--data mnist needs --path FILE; nothing is downloaded.")
    else:
        images = gf.data.mnist(training.path, training.samples, dtype=training.dtype)
    return gf.Problem(images, gf.losses.cross_entropy)


def hidden_width(training: Training) -> int:
    """The number of neurons of each hidden layer."""
    default = 64 if training.data == "digits" else 1000
    return default if training.width is None else training.width


def make_net(
    training: Training, problem: gf.Problem, depth: int, scale: float, seed: int
) -> gf.nets.MLP:
    """A network whose entries are N(0, scale²), the same in every layer."""
    x, y = problem.data.x, problem.data.y
    widths = [x.shape[1], *[hidden_width(training)] * (depth - 1), y.shape[1]]
    key = jax.random.fold_in(jax.random.key(seed), 0)
    return gf.nets.MLP(widths, key=key, scale=scale, dtype=training.dtype)


def train(
    training: Training,
    problem: gf.Problem,
    depth: int,
    scale: float,
    c: float,
    epochs: int,
    flatness: float | None = None,
) -> xr.Dataset:
    """SGD from the net of each seed, stacked: `risk` (seed, save), on all samples,
    `singular_values` (seed, save, layer, value), over `tau` and `epoch` (save); and with
    `flatness` what `resting_places` tells, (seed, plateau), NaN where seeds have fewer."""
    batches = problem.data.x.shape[0] // training.batch_size
    saves = 650 if training.data == "digits" else 100
    saves = saves if training.saves is None else training.saves
    every = max(1, epochs // saves) * batches
    epoch = np.append(np.arange(0, epochs * batches, every), epochs * batches) / batches
    runs = []
    for seed in training.seeds:
        net = make_net(training, problem, depth, scale, seed)
        traj = gf.descend(
            problem,
            net,
            gf.NormScaledRate(c),
            epochs * batches,
            batch_size=training.batch_size,
            key=jax.random.fold_in(jax.random.key(seed), 1),
            save_every=every,
            record=RECORDS,
            progress=True,
        )
        run = xr.Dataset(
            {name: (DIMS[name], np.asarray(traj.records[name])) for name in RECORDS}
        )
        if flatness is not None:
            run = run.merge(resting_places(traj, epoch, flatness))
        runs.append(run)
    # One step of SGD is this long in the clock of escape.
    tau = epoch * batches * float(gf.escape.tau_of_unit_sphere_time(c, depth))
    stacked = xr.concat(runs, "seed", join="outer").assign(epoch=("save", epoch))
    return stacked.assign_coords(
        tau=("save", tau),
        seed=list(training.seeds),
        layer=np.arange(1, depth + 1),
    )


def resting_places(traj: gf.Trajectory, epoch: np.ndarray, flatness: float) -> xr.Dataset:
    """The plateaus of `gf.escape.episodes`, (plateau): from and to which epoch, the save
    nearest to the saddle, the risk there, the number of significant singular values of
    each layer (`rank`), and the bottleneck rank. Floats, for NaN to mean none."""
    # On the clock of escape all steps are of one length. In t they shorten with ‖θ‖^(2−L),
    # and a plateau does not stand out from the fall to it.
    clocked = eqx.tree_at(lambda t: t.ts, traj, jnp.asarray(epoch))
    found = gf.escape.episodes(clocked, flatness=flatness).plateaus
    return xr.Dataset(
        {
            "plateau_start": ("plateau", found.start),
            "plateau_end": ("plateau", found.end),
            "plateau_save": ("plateau", found.save.astype(float)),
            "plateau_risk": ("plateau", found.loss.astype(float)),
            "rank": (("plateau", "layer"), found.ranks.astype(float)),
            "bottleneck_rank": ("plateau", found.bottleneck_rank.astype(float)),
        },
        coords={"plateau": np.arange(len(found.loss))},
    )


def plateau_table(runs: xr.Dataset) -> str:
    """A line for each plateau of each seed."""
    lines = ["seed  plateau   from epoch    to epoch      loss  ranks (bottleneck)"]
    for _, run in runs.groupby("seed"):
        seed, run = int(run["seed"].item()), run.squeeze("seed")
        for k in range(int(run["plateau_save"].count())):
            at = run.isel(plateau=k)
            ranks = " ".join(f"{rank:.0f}" for rank in at["rank"].values)
            lines.append(
                f"{seed:4d}  {k:7d}  {at['plateau_start'].item():11.0f} "
                f"{at['plateau_end'].item():11.0f}  {at['plateau_risk'].item():8.4f}  "
                f"{ranks} ({at['bottleneck_rank'].item():.0f})"
            )
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Plateaus:
    """Where a loss rests after its first plateau, by index of the saves.

    Attributes:
        first_left: the first save at which the loss has fallen by `BAND`; None if never.
        start, end: the longest stretch afterwards over which it falls by less than `BAND`,
            before it is solved; None if it has not fallen.
        solved: the first save at which the loss is below `BAND`; None if never.
    """

    first_left: int | None
    start: int | None
    end: int | None
    solved: int | None

    @property
    def rest(self) -> float | None:
        """How long that stretch is, of the time from the first plateau to the solution;
        None if it was not solved."""
        if self.first_left is None or self.start is None or self.end is None:
            return None
        if self.solved is None:
            return None
        return (self.end - self.start) / max(1, self.solved - self.first_left)


def find_plateaus(risk: np.ndarray) -> Plateaus:
    """The plateaus of a loss that starts on one."""
    # SGD's noise goes up; how far the loss has come down is the smallest so far.
    lowest = np.minimum.accumulate(risk)
    first = _first(lowest < risk[0] - BAND)
    if first is None:
        return Plateaus(None, None, None, None)
    solved = _first(lowest < BAND)
    stop = len(risk) if solved is None else solved + 1
    # The end of the stretch that starts at each save.
    ends = [
        int(np.searchsorted(-lowest[:stop], -(lowest[i] - BAND), side="right")) - 1
        for i in range(first, stop)
    ]
    longest = int(np.argmax(np.asarray(ends) - np.arange(first, stop)))
    return Plateaus(first, first + longest, ends[longest], solved)


def _first(mask: np.ndarray) -> int | None:
    return int(np.argmax(mask)) if mask.any() else None


def draw_losses(ax: Axes, runs: xr.Dataset) -> None:
    """The loss of each seed over epochs."""
    for i, seed in enumerate(runs["seed"].values):
        ax.plot(runs["epoch"], runs["risk"][i], color=f"C{i}", lw=1, label=f"seed {seed}")
    ax.set(xlabel="epoch", ylabel="loss", title="SGD")
    ax.set_ylim(0, 1.2 * float(runs["risk"][:, 0].max()))
    ax.legend(fontsize="small", frameon=False)


def spectra_over_time(run: xr.Dataset, zoom: bool = False) -> Figure:
    """The loss and the singular values of each layer over τ, a panel each (Fig. 3); with
    `zoom` only from where the loss begins to fall."""
    depth = run.sizes["layer"]
    rows = math.ceil((depth + 1) / 4)
    figure = Figure(figsize=(13, 2.8 * rows), layout="constrained")
    for panel, ax in enumerate(figure.subplots(rows, 4, squeeze=False).flat):
        if panel == 0:
            plotting.loss(ax, run)
            ax.set_ylim(0, 1.2 * float(run["risk"][0]))
        elif panel <= depth:
            plotting.singular_values(ax, run, panel)
        else:
            ax.set_axis_off()
        if zoom and panel <= depth:
            plotting.zoom_on_change(ax, run)
    return figure


def ratios(values: np.ndarray, of: int, to: int) -> np.ndarray:
    """s_of / s_to of each layer, counted from 1; (layer,)."""
    return np.asarray(values[:, of - 1] / values[:, to - 1])
