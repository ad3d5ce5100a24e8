"""Rank by layer: what Figs. 6 and 7 of Galanti & Poggio show of a net."""

import itertools

import xarray as xr
from matplotlib.figure import Figure

from experiments._common.claims import Claim
from experiments.galanti._batches import BatchSizes, at_largest_decay
from experiments.galanti._claims import (
    LEAST,
    RANK,
    banded,
    full_rank,
    keeps_rank,
    of,
    outcomes,
    worst,
)


def profile(run: xr.Dataset, threshold: float = RANK) -> xr.DataArray:
    """The ranks of the hidden matrices at the end, (…, seed, layer), NaN for what did not
    train."""
    ranks = run["rank"].sel(threshold=threshold).isel(save=-1, layer=slice(None, -1))
    return ranks.where(outcomes(run) == "trained")


def bottleneck_claims(settings: BatchSizes, runs: xr.Dataset, source: str) -> list[Claim]:
    """Full ranks where nothing constrains them, a bottleneck elsewhere."""
    return inactive(settings, runs) + bottlenecks(settings, runs, source)


def balance_claims(settings: BatchSizes, runs: xr.Dataset, source: str) -> list[Claim]:
    """Full ranks where nothing constrains them, equal ones in blocks elsewhere."""
    return inactive(settings, runs) + balances(settings, runs, source)


def inactive(settings: BatchSizes, runs: xr.Dataset) -> list[Claim]:
    """Under each budget, that the largest batches at the least rate leave ranks alone."""
    size, rate = settings.batch_sizes[-1], settings.rates[0]
    return [
        keeps_rank(
            f"equal {budget}, B={size}, η={rate:g}",
            "App. A",
            at_largest_decay(settings, runs, budget, rate, size),
            full_rank(runs),
        )
        for budget in settings.budgets
    ]


def lowest(settings: BatchSizes, runs: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """At the largest rate, each batch size under each budget, and full batches, by name."""
    named = []
    for budget in settings.budgets:
        for size in settings.batch_sizes:
            run = at_largest_decay(settings, runs, budget, settings.rates[-1], size)
            named.append((f"equal {budget}, B={size}", run))
    if settings.full_batch_rate is not None:
        named.append(("full batch", of(runs, budget="full batch")))
    return named


def is_low(run: xr.Dataset) -> bool:
    """Whether some matrix lost a tenth of its rank, from a seed that trained."""
    share = profile(run) / run["full_rank"].isel(layer=slice(None, -1))
    least = worst(share, least=True)
    return least is not None and least <= 0.9


def bottlenecks(settings: BatchSizes, runs: xr.Dataset, source: str) -> list[Claim]:
    """Where ranks are low, that those of the middle are below the first and the last."""
    claims = []
    for name, run in lowest(settings, runs):
        ranks = profile(run) if is_low(run) else None
        middle = None if ranks is None else ranks.isel(layer=slice(1, -1)).min("layer")
        for end, what in ((0, "first"), (-1, "last hidden")):
            difference = None
            if ranks is not None and middle is not None:
                difference = worst(middle - ranks.isel(layer=end))
            claims.append(
                Claim(
                    statement=f"{name}: largest of the least rank of the middle less that "
                    f"of the {what} layer",
                    source=source,
                    measured=difference,
                    high=-LEAST,
                )
            )
    return claims


def balances(settings: BatchSizes, runs: xr.Dataset, source: str) -> list[Claim]:
    """Where ranks are low, that those of the matrices in the blocks are alike."""
    claims = []
    for name, run in lowest(settings, runs):
        spread = None
        if is_low(run):
            # The first matrix leads from the inputs to the blocks.
            blocks = profile(run).isel(layer=slice(1, None))
            spread = worst(blocks.max("layer") - blocks.min("layer"))
        width = float(run["full_rank"].isel(layer=1))
        claims.append(
            Claim(
                statement=f"{name}: largest range of the ranks in blocks, over the width",
                source=source,
                measured=None if spread is None else spread / width,
                high=0.1,
            )
        )
    return claims


def draw(settings: BatchSizes, runs: xr.Dataset) -> Figure:
    """At the largest λ rank over layer, a column for each budget and rate: means over the
    seeds, in the band of their range."""
    columns = list(itertools.product(settings.budgets, settings.rates))
    figure = Figure(figsize=(3.2 * len(columns), 3.2), layout="constrained")
    axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for ax, (budget, rate) in zip(axes, columns, strict=True):
        for i, size in enumerate(settings.batch_sizes):
            run = at_largest_decay(settings, runs, budget, rate, size)
            ranks, label = profile(run), f"B={size}, Λ={run['forgetting'].item():.3g}"
            banded(ax, ranks["layer"], ranks, color=f"C{i}", marker="o", ms=3, label=label)
        ax.set_title(f"equal {budget}, η={rate:g}", fontsize="medium")
        ax.set_xticks(runs["layer"].values[:-1])
        ax.set_xlabel("layer")
        ax.legend(fontsize="small", frameon=False)
    axes[0].set_ylabel("rank (1e-3)")
    return figure
