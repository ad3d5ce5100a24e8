"""What Galanti & Poggio say of ranks, as claims on runs of several seeds.

What has collapsed to zero, or diverged, has no rank here: it counts as an outcome of its
own, and what is said of ranks is said of the other seeds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from experiments._common.claims import Claim


# A net is zero if its risk is that of the zero function, to this much, and its weights have
# shrunk by this factor.
_ZERO, _SHRUNK = 0.01, 0.1
# Averages over a few matrices differ by more than this, or not at all.
LEAST = 0.1
RANK = 1e-3


def outcomes(runs: xr.Dataset) -> xr.DataArray:
    """What became of each run from each seed: trained, collapsed or diverged."""
    end = runs["risk"].isel(save=-1)
    collapsed = abs(end / runs["zero_risk"] - 1) < _ZERO
    collapsed &= runs["size"].isel(save=-1) < _SHRUNK
    named = xr.where(collapsed, "collapsed", "trained")
    return xr.where(np.isfinite(end), named, "diverged")


def average_rank(
    runs: xr.Dataset, threshold: float = RANK, include_head: bool = False
) -> xr.DataArray:
    """The mean over the matrices, (…, save, seed), NaN for what did not train."""
    ranks = runs["rank"].sel(threshold=threshold)
    ranks = ranks if include_head else ranks.isel(layer=slice(None, -1))
    return ranks.mean("layer").where(outcomes(runs) == "trained")


def full_rank(runs: xr.Dataset) -> float:
    """The mean of the full ranks of the hidden matrices."""
    return float(runs["full_rank"].isel(run=0, layer=slice(None, -1)).mean())


def of(runs: xr.Dataset, **fields: Any) -> xr.Dataset:
    """The one run whose recipe has these fields.

    Raises:
        ValueError: if there is none, or several.
    """
    chosen = np.ones(runs.sizes["run"], bool)
    for name, value in fields.items():
        chosen &= runs[name].values == value
    if chosen.sum() != 1:
        raise ValueError(f"{fields} are the fields of {chosen.sum()} runs, not of one.")
    return runs.isel(run=int(np.argmax(chosen)))


def below(statement: str, source: str, low: xr.Dataset, high: xr.Dataset) -> Claim:
    """The claim that one run ends at a lower rank than the other, from every seed; beside
    the Λ of both, as without forgetting there is nothing to see."""
    ranks = [average_rank(run).isel(save=-1) for run in (low, high)]
    exponents = " and ".join(f"{run['forgetting'].item():.3g}" for run in (low, high))
    return Claim(
        statement=f"{statement} (Λ={exponents}): largest difference of ranks",
        source=source,
        measured=worst(ranks[0] - ranks[1]),
        high=-LEAST,
    )


def worst(values: xr.DataArray, least: bool = False) -> float | None:
    """The largest (or least) over what trained; None if nothing did."""
    if not bool(np.isfinite(values).any()):
        return None
    return float(values.min() if least else values.max())


def low_rank(statement: str, source: str, run: xr.Dataset, full: float) -> Claim:
    """The claim that it ends at 60 % of the full rank at most, from every seed."""
    share = average_rank(run).isel(save=-1) / full
    return Claim(
        statement=f"{statement}: largest rank at 1e-3, over the full one",
        source=source,
        measured=worst(share),
        high=0.6,
    )


def keeps_rank(statement: str, source: str, run: xr.Dataset, full: float) -> Claim:
    """The claim that at 1e-4 it ends at full rank, but for 2 %, from every seed."""
    share = average_rank(run, 1e-4).isel(save=-1) / full
    return Claim(
        statement=f"{statement}: least rank at 1e-4, over the full one",
        source=source,
        measured=worst(share, least=True),
        low=0.98,
    )


def fits(statement: str, source: str, run: xr.Dataset) -> Claim:
    """The claim that it ends at a training accuracy of 98 %, from every seed."""
    accuracy = run["train_accuracy"].isel(save=-1).where(outcomes(run) == "trained")
    return Claim(
        statement=f"{statement}: least training accuracy",
        source=source,
        measured=worst(accuracy, least=True),
        low=0.98,
    )


def table_of(runs: xr.Dataset, fields: Sequence[str]) -> str:
    """A line for each run: ranks at both thresholds, with the head too, and accuracies, as
    the mean over the seeds that trained and the range; and how many of them did."""
    named = outcomes(runs)
    rows = [[*fields, "Λ", "rank 1e-3", "1e-4", "with head", "train", "test", "outcome"]]
    for i in range(runs.sizes["run"]):
        run, what = runs.isel(run=i), named.isel(run=i)
        told = [
            average_rank(run, RANK),
            average_rank(run, 1e-4),
            average_rank(run, RANK, include_head=True),
            run["train_accuracy"].where(what == "trained"),
            run["test_accuracy"].where(what == "trained"),
        ]
        kinds, counts = np.unique(what.values, return_counts=True)
        rows.append(
            [
                *[_text(run[name].item()) for name in fields],
                f"{run['forgetting'].item():.2f}",
                *[_spread(values.isel(save=-1).values) for values in told],
                ", ".join(f"{n} {k}" for k, n in zip(kinds, counts, strict=True)),
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in rows)
    return "\n".join(lines)


def banded(ax: Axes, x: xr.DataArray, values: xr.DataArray, **style: Any) -> None:
    """The mean over the seeds, and the band of their range, over x; seeds of which there is
    nothing are left out, and of none there is but the label."""
    values = values.dropna("seed", how="all")
    if not values.sizes["seed"]:
        if "label" in style:
            style["label"] += ": none trained"
        ax.plot([], [], **style)
        return
    ax.plot(x, values.mean("seed"), **style)
    band = (values.min("seed"), values.max("seed"))
    ax.fill_between(x, *band, color=style["color"], alpha=0.2, lw=0)


def part(run: xr.Dataset) -> xr.DataArray:
    """The part of the run that is done at each save."""
    return run["step"] / run["step"][-1]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _spread(values: np.ndarray) -> str:
    values = values[np.isfinite(values)]
    if not values.size:
        return "-"
    return f"{values.mean():.3g} [{values.min():.3g}, {values.max():.3g}]"
