"""Fig. 2 of Galanti & Poggio: rank by batch size and rate, batch normalisation.

The paper's protocol is one of equal epochs, where ranks fall with smaller batches and
larger rates. Smaller batches then make more steps, and decay forgets more of the initial
weights: hence the same at equal steps, and at equal forgetting Λ = Σ 2ηλ/(1−β).

    python experiments/galanti_fig2.py [--smoke] [--budgets epochs steps forgetting]
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
from _output import write


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(batches.Normalised):
    """Fig. 2 at the scale of digits."""

    out: Path = Path("results/galanti_fig2")
    """Folder to write to."""


SMOKE = batches.SMOKE | {"net": "MLP-BN-2-8"}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = tyro.cli(Settings, description=__doc__, args=arguments)
    if settings.smoke:
        settings = dataclasses.replace(settings, **SMOKE)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    runs = batches.train_under_budgets(settings)
    claims = batches.make_claims(settings, runs, "Fig. 2")
    figures = {"fig2": batches.draw(settings, runs)}
    write(settings.out, settings, claims, {"runs": runs}, figures, started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
