"""What Figs. 1 and 3 of Bantzis et al. show of SGD: from rank one to rank two."""

import math
from typing import Any

import numpy as np
import xarray as xr

from experiments._common.claims import Claim, near
from experiments.bantzis._image_training import BAND, Training, ratios


def plateau_claims(settings: Training, runs: xr.Dataset, scale: float) -> list[Claim]:
    """What Figs. 1 and 3 show, for each seed."""
    claims = []
    for seed in settings.seeds:
        run, name = runs.sel(seed=seed), f"scale {scale:g}, seed {seed}"
        claims += _spectra_claims(name, run)
        if settings.data == "digits" and not settings.smoke:
            claims += _digits_claims(name, run, scale)
    return claims


def second_plateau(run: xr.Dataset) -> xr.Dataset | None:
    """The second plateau; None if the loss has not come to it."""
    fallen = float(run["risk"][0] - run["risk"].min()) > BAND
    if not fallen or run["plateau_save"].count() < 2:
        return None
    return run.isel(plateau=1)


def _spectra_claims(name: str, run: xr.Dataset) -> list[Claim]:
    """One dominant singular value on the second plateau, two once it is left."""
    values, second = run["singular_values"].values, second_plateau(run)
    level = rank = shallow = deep = third = next_one = None
    if second is not None:
        level = float(run["plateau_risk"][0])
        rank = float(second["bottleneck_rank"])
        dominance = ratios(values[int(second["plateau_save"])], 2, 1)
        shallow, deep = float(dominance[0]), float(dominance[2:].max())
        if float(run["risk"][-1]) < float(second["plateau_risk"]) - BAND:
            third = float(ratios(values[-1], 3, 2)[2:5].max())
            next_one = float(ratios(values[-1], 2, 1)[2:5].min())
    on_second, at_end = "on the second plateau", "at the end"

    def claim(what: str, source: str, measured: float | None, **ends: Any) -> Claim:
        return Claim(statement=f"{name}: {what}", source=source, measured=measured, **ends)

    return [
        near(f"{name}: loss on the first plateau", "Fig. 1a", level, math.log(10), 1e-3),
        claim(f"bottleneck rank {on_second}", "Fig. 1b", rank, low=1, high=1),
        claim(f"largest s2/s1 of W3 to W6 {on_second}", "Fig. 1b", deep, high=0.15),
        claim(f"s2/s1 of W1 {on_second}", "Fig. 1b", shallow, low=0.25),
        claim(f"largest s3/s2 of W3 to W5 {at_end}", "Fig. 1c", third, high=0.45),
        claim(f"smallest s2/s1 of W3 to W5 {at_end}", "Fig. 1c", next_one, low=0.3),
    ]


def _digits_claims(name: str, run: xr.Dataset, scale: float) -> list[Claim]:
    """The level of the second plateau, and when both are left."""
    second = second_plateau(run)
    level = None if second is None else float(second["plateau_risk"])
    claims = [
        near(f"{name}: loss on the second plateau", "Fig. 1a", level, 1.8, 0.05),
        _left(f"{name}: first plateau left", run, 0, (107, 112)),
    ]
    if scale == 1:
        claims.append(_left(f"{name}: second plateau left", run, 1, (170, 6500)))
    return claims


def _left(statement: str, run: xr.Dataset, plateau: int, seen: tuple[int, int]) -> Claim:
    """Within 50 % of the epochs at which other seeds, of other code, were seen to."""
    low, high = 0.5 * seen[0], 1.5 * seen[1]
    ends, last = run["plateau_end"].values, float(run["epoch"][-1])
    left = plateau < len(ends) and ends[plateau] < last
    return Claim(
        statement=f"{statement}, epoch",
        source="ours, other code",
        measured=float(ends[plateau]) if left else None if last < high else np.inf,
        low=low,
        high=high,
    )
