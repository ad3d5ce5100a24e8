"""Fig. 7 of Galanti & Poggio: rank by layer, residual blocks.

The runs of Fig. 4, layer by layer: all matrices of the blocks have about the same rank.
(The paper's caption says RES-5-500, its text RES-BN-5-500; here it is the latter, smaller.)

    python experiments/galanti_fig7.py [--smoke] [--budgets epochs steps forgetting]
        [--epochs N] [--steps N] [--no-detach] [--out DIR]

writes the runs (runs.nc), the figure and claims.json.
"""

import dataclasses
import sys
from pathlib import Path

import _galanti_batches as batches
from _galanti_layers import balance_claims, draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(batches.Residual):
    """Fig. 7 at the scale of digits."""

    out: Path = Path("results/galanti_fig7")
    """Folder to write to."""


SMOKE = batches.SMOKE | {"net": "RES-BN-1-8"}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    return batches.reproduce(7, Settings, __doc__, SMOKE, arguments, balance_claims, draw)


if __name__ == "__main__":
    sys.exit(main())
