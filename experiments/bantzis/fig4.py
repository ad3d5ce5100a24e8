"""Fig. 4 of Bantzis et al.: with four layers the saddles are less distinct.

As `fig1.py`, with four layers: the loss leaves its first plateau soon and does not
rest on a second one. The paper has curves; the epochs of the claims are ours, on digits.

    python -m experiments.bantzis.fig4 [--smoke] [--out DIR]
    python -m experiments.bantzis.fig4 --data mnist --path FILE

writes the runs (sgd.nc), the figure and claims.json.
"""

import dataclasses
import sys
import time
from pathlib import Path

import jax
import xarray as xr

from experiments._common.claims import Claim
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.bantzis._image_training import (
    Plateaus,
    Training,
    find_plateaus,
    hidden_width,
    make_problem,
    spectra_over_time,
    train,
)


DEPTH = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """Fig. 4: four layers."""

    epochs: int = 200
    """Epochs of SGD."""
    saves: int | None = 200
    """About how many times loss and singular values are measured."""
    c: float = 2.0
    """SGD's rate is c/‖θ‖²; the paper prints none for four layers."""
    scale: float = 0.3
    """Standard deviation of the initial weights, over 1/width."""
    out: Path = Path("results/bantzis/fig4")
    """Folder to write to."""


SMOKE = {"data": "digits", "samples": 600, "width": 32, "epochs": 200, "seeds": (0,)}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", settings.dtype == "float64")
    started = time.perf_counter()
    problem = make_problem(settings)
    scale = settings.scale / hidden_width(settings)
    runs = train(settings, problem, DEPTH, scale, settings.c, settings.epochs)
    plateaus = [find_plateaus(risk) for risk in runs["risk"].values]
    figure = spectra_over_time(runs.isel(seed=0))
    made = make_claims(settings, runs, plateaus)
    write(settings.out, settings, made, {"sgd": runs}, {"fig4": figure}, started)
    return 0


def make_claims(
    settings: Settings, runs: xr.Dataset, plateaus: list[Plateaus]
) -> list[Claim]:
    """What Fig. 4 shows, for each seed."""
    claims, epochs = [], runs["epoch"].values
    for i, found in enumerate(plateaus):
        seed, risk = f"seed {settings.seeds[i]}", runs["risk"][i].values
        left = None if found.first_left is None else float(epochs[found.first_left])
        below = risk < 1.5
        passed = float(epochs[below.argmax()]) if below.any() else None
        claims.append(
            Claim(
                statement=f"{seed}: longest rest after the first plateau, over the time "
                "from there to a loss of 0.1",
                source="Fig. 4",
                measured=found.rest,
                high=0.5,
            )
        )
        if settings.data == "digits" and not settings.smoke:
            claims += [
                Claim(
                    statement=f"{seed}: first plateau left, epoch",
                    source="ours, 3 seeds",
                    measured=left,
                    low=1,
                    high=6,
                ),
                Claim(
                    statement=f"{seed}: loss below 1.5, epoch",
                    source="ours, 3 seeds",
                    measured=passed,
                    low=5,
                    high=39,
                ),
            ]
    return claims


if __name__ == "__main__":
    sys.exit(main())
