"""Fig. 5 of Galanti & Poggio: rank by batch size and rate, no batch normalisation.

Beside the paper's equal epochs, the same at equal steps; and full-batch gradient descent
with as much forgetting Λ = Σ 2ηλ/(1−β) as the smallest batches, which by the paper's
argument, SGD's noise, should keep its rank.

    python experiments/galanti_fig5.py [--smoke] [--budgets epochs steps forgetting]
        [--epochs N] [--steps N] [--out DIR]

writes the runs (runs.nc), the figure and claims.json.
"""

import dataclasses
import sys
from pathlib import Path

import _galanti_batches as batches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(batches.BatchSizes):
    """Fig. 5 at the scale of digits."""

    net: str = "MLP-5-50"
    """Architecture."""
    rates: tuple[float, ...] = (0.01, 0.02)
    """η at the start, rising."""
    steps: int = 132_000
    """At the smallest batch size, largest rate and λ; the budgets refer to this run."""
    full_batch_rate: float | None = 0.1
    """η of gradient descent, which forgets as much as that run; None for none."""
    out: Path = Path("results/galanti_fig5")
    """Folder to write to."""


SMOKE = batches.SMOKE | {"net": "MLP-2-8", "full_batch_rate": 0.2}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    return batches.reproduce(5, Settings, __doc__, SMOKE, arguments)


if __name__ == "__main__":
    sys.exit(main())
