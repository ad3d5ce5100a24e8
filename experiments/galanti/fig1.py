"""Fig. 1 of Galanti & Poggio: with decay SGD does not converge, unless to zero.

A plain MLP at a constant rate without momentum, for several λ, under cross-entropy and
squared loss. Without decay the weights move less and less from epoch to epoch; with decay
they go on moving, by far more, at ranks that fall with λ, or all go to zero: that is an
outcome of its own here, as decay alone keeps the shape of a spectrum and with it the
normalised rank.

    python -m experiments.galanti.fig1 [--smoke] [--steps N] [--out DIR]

writes the runs (runs.nc), the figure and claims.json.
"""

import dataclasses
import sys
import time
from pathlib import Path

import jax
import xarray as xr
from matplotlib.figure import Figure

from experiments._common.claims import Claim
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.galanti._claims import (
    average_rank,
    banded,
    below,
    full_rank,
    keeps_rank,
    of,
    outcomes,
    part,
    table_of,
    worst,
)
from experiments.galanti._runs import Recipe, Training, samples_of, train_all


LOSSES = ("cross_entropy", "squared")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """Fig. 1 at the scale of digits."""

    net: str = "MLP-5-50"
    """Architecture."""
    batch_size: int = 32
    """Samples a step."""
    rate: float = 0.1
    """η, constant."""
    decays: tuple[float, ...] = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
    """λ of the penalty λ‖W‖², rising from 0."""
    steps: int = 40_000
    """Of each run."""
    epochs: int | None = None
    """Of each run, instead of its steps."""
    out: Path = Path("results/galanti/fig1")
    """Folder to write to."""


SMOKE = {
    "net": "MLP-2-8",
    "samples": 256,
    "seeds": (0, 1),
    "saves": 2,
    "runs": None,
    "epochs": 32,
    "decays": (0.0, 1e-2, 0.3),
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    runs = train_all(settings, recipes(settings))
    print(table_of(runs, ("loss", "weight_decay")))
    claims = make_claims(settings, runs)
    figures = {"fig1": draw(settings, runs)}
    write(settings.out, settings, claims, {"runs": runs}, figures, started)
    return 0


def recipes(settings: Settings) -> list[Recipe]:
    """Each λ under each loss."""
    steps = settings.steps
    if settings.epochs is not None:
        steps = settings.epochs * (samples_of(settings) // settings.batch_size)
    return [
        Recipe(
            net=settings.net,
            batch_size=settings.batch_size,
            rate=settings.rate,
            weight_decay=decay,
            steps=steps,
            momentum=0.0,
            schedule=False,
            loss=loss,
        )
        for loss in LOSSES
        for decay in settings.decays
    ]


def make_claims(settings: Settings, runs: xr.Dataset) -> list[Claim]:
    """Without decay ranks stay and distances vanish; the largest λ takes all to zero, the
    one before it keeps the weights moving at a low rank."""
    full, claims = full_rank(runs), []
    *_, strong, collapsing = settings.decays
    for loss in LOSSES:
        still, moving, gone = (
            of(runs, loss=loss, weight_decay=decay) for decay in (0.0, strong, collapsing)
        )
        ratio = moving["distance"].isel(save=-1) / still["distance"].isel(save=-1)
        named = f"{loss}, λ={strong:g}"
        claims += [
            keeps_rank(f"{loss}, λ=0", "Fig. 1d", still, full),
            below(f"{named}: rank below that at λ=0", "Fig. 1d", moving, still),
            Claim(
                statement=f"{named}: least distance of an epoch over that at λ=0",
                source="Fig. 1a",
                measured=worst(ratio.where(outcomes(moving) == "trained"), least=True),
                low=20,
            ),
            Claim(
                statement=f"{loss}, λ={collapsing:g}: largest ‖W‖ over its initial value",
                source="Fig. 1d: rank 0",
                measured=float(gone["size"].isel(save=-1).max()),
                high=1e-6,
            ),
        ]
    return claims


def draw(settings: Settings, runs: xr.Dataset) -> Figure:
    """Distances, training accuracies, risks and ranks over epochs, a row for each loss."""
    panels = {
        "distance": "distance of an epoch",
        "train_accuracy": "training accuracy",
        "risk": "risk",
        "rank": "average rank (1e-3)",
    }
    figure = Figure(figsize=(3.2 * len(panels), 5.4), layout="constrained")
    axes = figure.subplots(len(LOSSES), len(panels), sharex=True)
    for row, loss in zip(axes, LOSSES, strict=True):
        for i, decay in enumerate(settings.decays):
            run = of(runs, loss=loss, weight_decay=decay)
            for ax, name in zip(row, panels, strict=True):
                # The first save has no epoch before it.
                shown = run.isel(save=slice(1, None))
                # What has collapsed is in the panels too, but for its rank.
                values = average_rank(shown) if name == "rank" else shown[name]
                banded(ax, part(shown), values, color=f"C{i}", label=f"λ={decay:g}")
        for ax, (name, title) in zip(row, panels.items(), strict=True):
            ax.set_title(f"{loss.replace('_', ' ')}: {title}", fontsize="medium")
            if name in ("distance", "risk"):
                ax.set_yscale("log")
            ax.set_xlabel("part of the run")
    axes[0, 0].legend(fontsize="small", frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(main())
