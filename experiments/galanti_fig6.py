"""Fig. 6 of Galanti & Poggio: rank by layer, batch normalisation.

The runs of Fig. 2, layer by layer: with large batches at a small rate all ranks are full;
otherwise the middle is below both ends, as in an encoder with a decoder.

    python experiments/galanti_fig6.py [--smoke] [--budgets epochs steps forgetting]
        [--epochs N] [--steps N] [--no-detach] [--out DIR]

writes the runs (runs.nc), the figure and claims.json.
"""

import dataclasses
import sys
from pathlib import Path

import _galanti_batches as batches
from _galanti_layers import bottleneck_claims, draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(batches.Normalised):
    """Fig. 6 at the scale of digits."""

    out: Path = Path("results/galanti_fig6")
    """Folder to write to."""


SMOKE = batches.SMOKE | {"net": "MLP-BN-3-8"}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    return batches.reproduce(
        6, Settings, __doc__, SMOKE, arguments, bottleneck_claims, draw
    )


if __name__ == "__main__":
    sys.exit(main())
