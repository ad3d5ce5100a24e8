"""Fig. 6 of Galanti & Poggio: rank by layer, batch normalisation.

The runs of Fig. 2, layer by layer: with large batches at a small rate all ranks are full;
otherwise the middle is below both ends, as in an encoder with a decoder.

    python experiments/galanti_fig6.py [--smoke] [--budgets epochs steps forgetting]
        [--epochs N] [--out DIR]

writes the runs (runs.nc), the figure and claims.json.
"""

import dataclasses
import sys
import time
from pathlib import Path

import _galanti_batches as batches
import jax
import tyro
from _galanti_claims import full_rank
from _galanti_layers import bottlenecks, draw, inactive
from _output import write


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(batches.Normalised):
    """Fig. 6 at the scale of digits."""

    out: Path = Path("results/galanti_fig6")
    """Folder to write to."""


SMOKE = batches.SMOKE | {"net": "MLP-BN-3-8"}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = tyro.cli(Settings, description=__doc__, args=arguments)
    if settings.smoke:
        settings = dataclasses.replace(settings, **SMOKE)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    runs = batches.train_under_budgets(settings)
    claims = inactive(settings, runs, full_rank(runs))
    claims += bottlenecks(settings, runs, "Fig. 6")
    figures = {"fig6": draw(settings, runs)}
    write(settings.out, settings, claims, {"runs": runs}, figures, started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
