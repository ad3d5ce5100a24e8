"""Figs. 2 to 7 of Galanti & Poggio: ranks by batch size, rate, decay and layer.

The paper's protocol is one of equal epochs, where ranks fall with smaller batches, larger
rates and larger λ. Smaller batches then make more steps, and decay forgets more of the
initial weights: hence the same at equal steps, and at equal forgetting Λ = Σ 2ηλ/(1−β).

* Fig. 2, batch size and rate, batch normalisation (MLP-BN). At this size the ranks of small
  batches are far from low, and at equal steps the order of batch sizes reverses, as without
  normalisation. With true normalisation and a longer run at a larger rate it survives (26,
  46 and 40 of 50 at B = 8, 32 and 128, Λ = 138; 25 min): `--figure 2 --no-detach --rates
  0.1 --steps 264000 --budgets steps`.
* Fig. 3, batch size and decay. At λ = 0 ranks stay full, whatever the batch size and the
  budget. The paper's text says MLP-10-100, its caption MLP-BN-10-100; here it is the
  latter, smaller.
* Fig. 4, as Fig. 2, of RES-BN-L-H: blocks of two matrices with batch normalisation.
* Fig. 5, as Fig. 2, without normalisation; and full-batch gradient descent with as much
  forgetting as the smallest batches, which by the paper's argument, SGD's noise, should
  keep its rank.
* Fig. 6, the runs of Fig. 2, layer by layer: with large batches at a small rate all ranks
  are full; otherwise the middle is below both ends, as in an encoder with a decoder.
* Fig. 7, the runs of Fig. 4, layer by layer: all matrices of the blocks have about the same
  rank. (The paper's caption says RES-5-500, its text RES-BN-5-500; here it is the latter,
  smaller.)

    python -m experiments.galanti.figures [--figure N] [--smoke]
        [--budgets epochs steps forgetting] [--epochs N] [--steps N] [--no-detach]
        [--out DIR]

makes one figure, or all: the runs (runs.nc), the figure and claims.json, in a folder each.
`--figure N --help` shows the settings of one.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr
from matplotlib.figure import Figure

from experiments._common.claims import Claim
from experiments._common.settings import read_settings
from experiments.galanti import _layers
from experiments.galanti._batches import (
    SMOKE,
    BatchSizes,
    batch_claims,
    draw_batches,
    draw_decays,
    reproduce,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A figure at the scale of digits.

    Attributes:
        settings: by default.
        smoke: the settings that a trial changes.
        claims, draw: what it claims and shows.
    """

    settings: BatchSizes
    smoke: Mapping[str, Any]
    claims: Callable[[BatchSizes, xr.Dataset, str], list[Claim]] = batch_claims
    draw: Callable[[BatchSizes, xr.Dataset], Figure] = draw_batches


# Figs. 2 and 6 have their runs in common, and Figs. 4 and 7.
NORMALISED = BatchSizes(net="MLP-BN-5-50", rates=(0.02, 0.05), steps=66_000)
# At a rate of 0.05 batches of 8 diverge.
RESIDUAL = dataclasses.replace(NORMALISED, net="RES-BN-3-50", rates=(0.01, 0.02))
PLANS = {
    2: Plan(settings=NORMALISED, smoke={"net": "MLP-BN-2-8"}),
    3: Plan(
        settings=dataclasses.replace(NORMALISED, rates=(0.05,), decays=(0.0, 1e-3, 2e-3)),
        smoke={"net": "MLP-BN-2-8", "decays": (0.0, 2e-3)},
        draw=draw_decays,
    ),
    4: Plan(settings=RESIDUAL, smoke={"net": "RES-BN-1-8"}),
    5: Plan(
        settings=BatchSizes(
            net="MLP-5-50", rates=(0.01, 0.02), steps=132_000, full_batch_rate=0.1
        ),
        smoke={"net": "MLP-2-8", "full_batch_rate": 0.2},
    ),
    6: Plan(
        settings=NORMALISED,
        smoke={"net": "MLP-BN-3-8"},
        claims=_layers.bottleneck_claims,
        draw=_layers.draw,
    ),
    7: Plan(
        settings=RESIDUAL,
        smoke={"net": "RES-BN-1-8"},
        claims=_layers.balance_claims,
        draw=_layers.draw,
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Make the figures asked for, with data and claims."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--figure", type=int, choices=tuple(PLANS))
    chosen, rest = first.parse_known_args(arguments)
    folder = any(option.split("=")[0] == "--out" for option in rest)
    if chosen.figure is None and folder:
        first.error("--out is the folder of one figure; say which by --figure.")
    for number in PLANS if chosen.figure is None else (chosen.figure,):
        plan = PLANS[number]
        default = dataclasses.replace(
            plan.settings, out=Path(f"results/galanti/fig{number}")
        )
        smoke = {**SMOKE, **plan.smoke}
        settings = read_settings(BatchSizes, __doc__, smoke, rest, default=default)
        reproduce(number, settings, plan.claims, plan.draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
