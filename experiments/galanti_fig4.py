"""Fig. 4 of Galanti & Poggio: rank by batch size and rate, residual blocks.

As Fig. 2, of RES-BN-L-H: blocks of two matrices with batch normalisation.

    python experiments/galanti_fig4.py [--smoke] [--budgets epochs steps forgetting]
        [--epochs N] [--steps N] [--no-detach] [--out DIR]

writes the runs (runs.nc), the figure and claims.json.
"""

import dataclasses
import sys
from pathlib import Path

import _galanti_batches as batches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(batches.Residual):
    """Fig. 4 at the scale of digits."""

    out: Path = Path("results/galanti_fig4")
    """Folder to write to."""


SMOKE = batches.SMOKE | {"net": "RES-BN-1-8"}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    return batches.reproduce(4, Settings, __doc__, SMOKE, arguments)


if __name__ == "__main__":
    sys.exit(main())
