"""Fig. 2 of Galanti & Poggio: rank by batch size and rate, batch normalisation.

The paper's protocol is one of equal epochs, where ranks fall with smaller batches and
larger rates. Smaller batches then make more steps, and decay forgets more of the initial
weights: hence the same at equal steps, and at equal forgetting Λ = Σ 2ηλ/(1−β).

At this size the ranks of small batches are far from low, and at equal steps the order of
batch sizes reverses, as without normalisation. With true normalisation and a longer run at
a larger rate it survives (26, 46 and 40 of 50 at B = 8, 32 and 128, Λ = 138; 25 min):
`--no-detach --rates 0.1 --steps 264000 --budgets steps`.

    python experiments/galanti_fig2.py [--smoke] [--budgets epochs steps forgetting]
        [--epochs N] [--steps N] [--no-detach] [--out DIR]

writes the runs (runs.nc), the figure and claims.json.
"""

import dataclasses
import sys
from pathlib import Path

import _galanti_batches as batches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(batches.Normalised):
    """Fig. 2 at the scale of digits."""

    out: Path = Path("results/galanti_fig2")
    """Folder to write to."""


SMOKE = batches.SMOKE | {"net": "MLP-BN-2-8"}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    return batches.reproduce(2, Settings, __doc__, SMOKE, arguments)


if __name__ == "__main__":
    sys.exit(main())
