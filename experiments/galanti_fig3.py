"""Fig. 3 of Galanti & Poggio: rank by batch size and decay, batch normalisation.

Ranks fall as λ rises; at λ = 0 they stay full, whatever the batch size and the budget. The
paper's text says MLP-10-100, its caption MLP-BN-10-100; here it is the latter, smaller.

    python experiments/galanti_fig3.py [--smoke] [--budgets epochs steps forgetting]
        [--epochs N] [--steps N] [--no-detach] [--out DIR]

writes the runs (runs.nc), the figure and claims.json.
"""

import dataclasses
import itertools
import sys
from pathlib import Path

import _galanti_batches as batches
import xarray as xr
from _galanti_claims import of
from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(batches.Normalised):
    """Fig. 3 at the scale of digits."""

    rates: tuple[float, ...] = (0.05,)
    """η at the start, rising."""
    decays: tuple[float, ...] = (0.0, 1e-3, 2e-3)
    """λ of the penalty λ‖W‖², rising."""
    out: Path = Path("results/galanti_fig3")
    """Folder to write to."""


SMOKE = batches.SMOKE | {"net": "MLP-BN-2-8", "decays": (0.0, 2e-3)}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    return batches.reproduce(3, Settings, __doc__, SMOKE, arguments, draw=draw)


def draw(settings: batches.BatchSizes, runs: xr.Dataset) -> Figure:
    """At the largest η average ranks above, accuracies below, a column for each budget and
    batch size: means over the seeds, in the band of their range."""
    columns = list(itertools.product(settings.budgets, settings.batch_sizes))
    figure = Figure(figsize=(2.8 * len(columns), 5.4), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
    for (upper, lower), (budget, size) in zip(axes.T, columns, strict=True):
        for i, decay in enumerate(settings.decays):
            fields = {"budget": budget, "rate": settings.rates[-1], "batch_size": size}
            run = of(runs, weight_decay=decay, **fields)
            batches.draw_run(upper, lower, run, f"C{i}", f"λ={decay:g}")
        upper.set_title(f"equal {budget}, B={size}", fontsize="medium")
        lower.set_xlabel("part of the run")
        upper.legend(fontsize="small", frameon=False)
    axes[0, 0].set_ylabel("average rank (1e-3)")
    axes[1, 0].set_ylabel("accuracy, train (—) and test (--)")
    return figure


if __name__ == "__main__":
    sys.exit(main())
