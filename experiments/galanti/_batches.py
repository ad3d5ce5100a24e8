"""Rank by batch size, rate and decay: what Figs. 2 to 5 of Galanti & Poggio show of a net.

They compare batch sizes after as many epochs. A tenfold batch then takes a tenth of the
steps, and forgets a tenth as much of the initial weights: hence the other budgets.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable

import jax
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments._common.claims import Claim
from experiments._common.output import write
from experiments.galanti._claims import (
    average_rank,
    banded,
    below,
    fits,
    full_rank,
    keeps_rank,
    low_rank,
    of,
    part,
    table_of,
)
from experiments.galanti._runs import Budget, Recipe, Training, samples_of, train_all, under


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSizes(Training):
    """Batch sizes, rates and decays under each budget."""

    net: str
    """Architecture."""
    rates: tuple[float, ...]
    """η at the start, rising."""
    decays: tuple[float, ...] = (2e-3,)
    """λ of the penalty λ‖W‖², rising."""
    steps: int
    """At the smallest batch size, largest rate and λ; the budgets refer to this run."""
    epochs: int | None = None
    """Of that run, instead of its steps."""
    batch_sizes: tuple[int, ...] = (8, 32, 128)
    """Rising."""
    budgets: tuple[Budget, ...] = ("epochs", "steps")
    """What is the same for all: epochs, as in the paper; steps; or Λ (forgetting)."""
    full_batch_rate: float | None = None
    """η of gradient descent, which forgets as much as that run; None for none."""
    detach: bool = True
    """Whether derivatives take the scale of batch normalisation as constant, as the paper
    has it; torch's do not."""


SMOKE = {
    "samples": 256,
    "seeds": (0, 1),
    "saves": 2,
    "runs": None,
    "rates": (0.1,),
    "batch_sizes": (8, 32),
    "epochs": 8,
    "budgets": ("epochs", "steps"),
}


def train_under_budgets(settings: BatchSizes) -> xr.Dataset:
    """All runs, over `budget` as well."""
    samples = samples_of(settings)
    first = reference(settings, samples)
    grid = itertools.product(settings.rates, settings.decays, settings.batch_sizes)
    cells = [
        dataclasses.replace(first, rate=rate, weight_decay=decay, batch_size=size)
        for rate, decay, size in grid
    ]
    named = [
        (budget, under(budget, first, cell, samples))
        for budget in settings.budgets
        for cell in cells
    ]
    if settings.full_batch_rate is not None:
        descent = dataclasses.replace(
            first, rate=settings.full_batch_rate, batch_size=samples
        )
        named.append(("full batch", under("forgetting", first, descent, samples)))
    budgets, recipes = zip(*named, strict=True)
    runs = train_all(settings, recipes).assign_coords(budget=("run", list(budgets)))
    print(table_of(runs, ("budget", "rate", "weight_decay", "batch_size", "steps")))
    return runs


def reference(settings: BatchSizes, samples: int) -> Recipe:
    """The run to which the budgets refer."""
    size, steps = settings.batch_sizes[0], settings.steps
    if settings.epochs is not None:
        steps = settings.epochs * (samples // size)
    return Recipe(
        net=settings.net,
        batch_size=size,
        rate=settings.rates[-1],
        weight_decay=settings.decays[-1],
        steps=steps,
        detach=settings.detach,
    )


def batch_claims(settings: BatchSizes, runs: xr.Dataset, source: str) -> list[Claim]:
    """Ranks rise with B, fall with η and λ, and stay at λ = 0: so the paper; and low rank
    is no matter of batches."""
    claims = []
    for budget in settings.budgets:
        under_it = runs.isel(run=np.flatnonzero(runs["budget"] == budget))
        claims += by_batch_size(settings, under_it, f"equal {budget}", source)
        claims += by_rate(settings, under_it, f"equal {budget}", source)
        claims += by_decay(settings, under_it, f"equal {budget}", source)
    full = full_rank(runs)
    first = at_largest_decay(
        settings, runs, settings.budgets[0], settings.rates[-1], settings.batch_sizes[0]
    )
    claims += low_but_fitting("smallest batches", first, full)
    if settings.full_batch_rate is not None:
        claims += low_but_fitting("full batch", of(runs, budget="full batch"), full)
    return claims


def at_largest_decay(
    settings: BatchSizes, runs: xr.Dataset, budget: Budget, rate: float, size: int
) -> xr.Dataset:
    """The run of this budget, rate and batch size."""
    decay = settings.decays[-1]
    return of(runs, budget=budget, rate=rate, batch_size=size, weight_decay=decay)


def by_batch_size(
    settings: BatchSizes, runs: xr.Dataset, name: str, source: str
) -> list[Claim]:
    """The smallest batches end at lower ranks than the largest, at each rate and decay."""
    small, large = settings.batch_sizes[0], settings.batch_sizes[-1]
    claims = []
    for rate, decay in itertools.product(settings.rates, settings.decays):
        if decay and small < large:
            fields = {"rate": rate, "weight_decay": decay}
            pair = [of(runs, batch_size=size, **fields) for size in (small, large)]
            what = f"η={rate:g}, λ={decay:g}: rank of B={small} below B={large}"
            claims.append(below(f"{name}, {what}", source, *pair))
    return claims


def by_rate(settings: BatchSizes, runs: xr.Dataset, name: str, source: str) -> list[Claim]:
    """The largest rate ends at lower ranks than the least, with the smallest batches."""
    slow, fast = settings.rates[0], settings.rates[-1]
    if slow == fast:
        return []
    size, decay = settings.batch_sizes[0], settings.decays[-1]
    fields = {"batch_size": size, "weight_decay": decay}
    pair = [of(runs, rate=rate, **fields) for rate in (fast, slow)]
    what = f"B={size}, λ={decay:g}: rank of η={fast:g} below η={slow:g}"
    return [below(f"{name}, {what}", source, *pair)]


def by_decay(settings: BatchSizes, runs: xr.Dataset, name: str, source: str) -> list[Claim]:
    """The largest λ ends at lower ranks than the least, which if 0 keeps them full."""
    weak, strong = settings.decays[0], settings.decays[-1]
    rate, full, claims = settings.rates[-1], full_rank(runs), []
    for size in settings.batch_sizes if weak < strong else ():
        fields = {"batch_size": size, "rate": rate}
        pair = [of(runs, weight_decay=decay, **fields) for decay in (strong, weak)]
        at = f"{name}, B={size}, η={rate:g}"
        what = f"{at}: rank of λ={strong:g} below λ={weak:g}"
        claims.append(below(what, source, *pair))
        if not weak:
            claims.append(keeps_rank(f"{at}, λ=0", source, pair[1], full))
    return claims


def low_but_fitting(name: str, run: xr.Dataset, full: float) -> list[Claim]:
    """After so many steps and at its Λ the run is of low rank, and fits."""
    steps, exponent = run["steps"].item(), run["forgetting"].item()
    statement = f"{name}, {steps} steps, Λ={exponent:.3g}"
    return [low_rank(statement, "ours", run, full), fits(statement, "ours", run)]


def draw_batches(settings: BatchSizes, runs: xr.Dataset) -> Figure:
    """At the largest λ average ranks above, accuracies below, a column for each budget and
    rate: means over the seeds, in the band of their range."""
    columns = list(itertools.product(settings.budgets, settings.rates))
    figure = Figure(figsize=(3.2 * len(columns), 5.4), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
    for (upper, lower), (budget, rate) in zip(axes.T, columns, strict=True):
        for i, size in enumerate(settings.batch_sizes):
            run = at_largest_decay(settings, runs, budget, rate, size)
            draw_run(upper, lower, run, f"C{i}", f"B={size}")
        upper.set_title(f"equal {budget}, η={rate:g}", fontsize="medium")
        lower.set_xlabel("part of the run")
    if settings.full_batch_rate is not None:
        upper, lower = axes[:, -1]
        draw_run(upper, lower, of(runs, budget="full batch"), "0.3", "full batch")
    for upper in axes[0]:
        upper.legend(fontsize="small", frameon=False)
    axes[0, 0].set_ylabel("average rank (1e-3)")
    axes[1, 0].set_ylabel("accuracy, train (—) and test (--)")
    return figure


def draw_decays(settings: BatchSizes, runs: xr.Dataset) -> Figure:
    """At the largest η average ranks above, accuracies below, a column for each budget and
    batch size: means over the seeds, in the band of their range."""
    columns = list(itertools.product(settings.budgets, settings.batch_sizes))
    figure = Figure(figsize=(2.8 * len(columns), 5.4), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
    for (upper, lower), (budget, size) in zip(axes.T, columns, strict=True):
        for i, decay in enumerate(settings.decays):
            fields = {"budget": budget, "rate": settings.rates[-1], "batch_size": size}
            run = of(runs, weight_decay=decay, **fields)
            draw_run(upper, lower, run, f"C{i}", f"λ={decay:g}")
        upper.set_title(f"equal {budget}, B={size}", fontsize="medium")
        lower.set_xlabel("part of the run")
        upper.legend(fontsize="small", frameon=False)
    axes[0, 0].set_ylabel("average rank (1e-3)")
    axes[1, 0].set_ylabel("accuracy, train (—) and test (--)")
    return figure


def draw_run(upper: Axes, lower: Axes, run: xr.Dataset, color: str, name: str) -> None:
    """Its ranks, and its accuracies but for that of the first net, which is chance."""
    label = f"{name}, Λ={run['forgetting'].item():.3g}"
    banded(upper, part(run), average_rank(run), color=color, label=label)
    shown = run.isel(save=slice(1, None))
    for accuracy, style in (("train_accuracy", "-"), ("test_accuracy", "--")):
        banded(lower, part(shown), shown[accuracy], color=color, ls=style)


def reproduce(
    number: int,
    settings: BatchSizes,
    make_claims: Callable[[BatchSizes, xr.Dataset, str], list[Claim]],
    draw: Callable[[BatchSizes, xr.Dataset], Figure],
) -> None:
    """Make a figure: train, and write data, figure and claims.

    Args:
        number: that of the figure.
        settings: of its runs.
        make_claims, draw: what it claims and shows.
    """
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    runs = train_under_budgets(settings)
    claims = make_claims(settings, runs, f"Fig. {number}")
    figures = {f"fig{number}": draw(settings, runs)}
    write(settings.out, settings, claims, {"runs": runs}, figures, started)
