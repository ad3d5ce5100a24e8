"""Figs. 1 and 3 of Bantzis et al.: saddle to saddle in six layers, rank one to rank two.

SGD on all digits (or MNIST), as in their Appendix B, and beside it what it approximates:
the gradient flow in the clock of escape, from the same direction, out of the first saddle
and a way along the plateau that follows. (To the end of that plateau an explicit solver
takes millions of steps.) All numbers of the claims are ours; the paper has curves.

    python experiments/bantzis_fig1.py [--smoke] [--out DIR]
    python experiments/bantzis_fig1.py --data mnist --path FILE

writes the runs (sgd.nc, flow.nc), the figures and claims.json.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
import xarray as xr
from _claims import Claim, near
from _image_training import (
    BAND,
    RECORDS,
    Plateaus,
    Training,
    draw_losses,
    find_plateaus,
    hidden_width,
    make_net,
    make_problem,
    ratios,
    spectra_over_time,
    train,
)
from _output import write
from matplotlib.figure import Figure

import gfdyn as gf


DEPTH = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """Figs. 1 and 3: six layers."""

    epochs: int | None = None
    """Epochs of SGD; 6500 for digits, the paper's 1000 for MNIST, if None."""
    c: float | None = None
    """SGD's rate is c/‖θ‖⁴; c = 40 for digits, 10 for MNIST, if None."""
    flow: bool = True
    """Whether to integrate the gradient flow as well."""
    flow_samples: int = 600
    """Samples of the flow, of those of SGD."""
    flow_norm: float = 1e-6
    """‖θ‖ where the flow starts."""
    rtol: float = 1e-4
    """Relative tolerance of the flow per step."""
    settled: float = 1e-2
    """The flow has settled once the loss falls at this fraction of the largest rate."""
    further: float = 300.0
    """How far the flow goes on from there, in τ."""
    max_steps: int = 6000
    """Most steps of either part of the flow."""
    out: Path = Path("results/bantzis_fig1")
    """Folder to write to."""


SMOKE = {
    "data": "digits",
    "samples": 300,
    "width": 16,
    "epochs": 400,
    "saves": 100,
    "seeds": (0,),
    "flow_samples": 100,
    "further": 3.0,
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figures and claims."""
    settings = tyro.cli(Settings, description=__doc__, args=arguments)
    if settings.smoke:
        settings = dataclasses.replace(settings, **SMOKE)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    problem = make_problem(settings)
    scale = 1 / hidden_width(settings)
    epochs, c = (6500, 40.0) if settings.data == "digits" else (1000, 10.0)
    epochs = epochs if settings.epochs is None else settings.epochs
    c = c if settings.c is None else settings.c
    sgd = train(settings, problem, DEPTH, scale, c, epochs)
    plateaus = [find_plateaus(risk) for risk in sgd["risk"].values]
    claims = sgd_claims(settings, sgd, plateaus)
    data = {"sgd": sgd}
    figures = {"fig1": draw(sgd, plateaus[0]), "fig3": spectra_over_time(sgd.isel(seed=0))}
    if settings.flow:
        first, second = flow_out_of_the_saddle(settings, problem)
        claims += flow_claims(first, second)
        data["flow"] = flow = joined(first, second)
        figures["fig3_flow"] = spectra_over_time(flow, zoom=True)
    write(settings.out, settings, claims, data, figures, started)
    return 0


def flow_out_of_the_saddle(
    settings: Settings, problem: gf.Problem
) -> tuple[gf.Trajectory, gf.Trajectory]:
    """The gradient flow in float64 from the first net, scaled down, to where it settles on
    the next plateau; and further along that."""
    images = jax.tree.map(
        lambda a: a[: settings.flow_samples].astype(jnp.float64), problem.data
    )
    flow = gf.EscapeFlow(gf.Problem(images, problem.loss))
    double = dataclasses.replace(settings, dtype="float64")
    scale, seed = 1 / hidden_width(settings), settings.seeds[0]
    net = make_net(double, flow.problem, DEPTH, scale, seed)
    net = gf.nets.scaled_to_norm(net, settings.flow_norm)

    def follow(net: gf.nets.AbstractNet, t1: float, settled: float) -> gf.Trajectory:
        return gf.solve(
            flow,
            net,
            t1=t1,
            ts=gf.AcceptedSteps(256),
            record=RECORDS,
            solver=gf.solvers.Adaptive(rtol=settings.rtol),
            stop=gf.stopping.NextPlateau(settled),
            max_steps=settings.max_steps,
            throw=False,
            progress=True,
        )

    first = follow(net, np.inf, settings.settled)
    # Nothing falls at less than no rate: the same compiled program, which goes on to t1.
    return first, follow(first.final, settings.further, 0.0)


def joined(first: gf.Trajectory, second: gf.Trajectory) -> xr.Dataset:
    """The records of both parts over one τ."""
    parts = [
        part.to_xarray()[["risk", "singular_values", "log_radius"]]
        for part in (first, second)
    ]
    parts[1] = parts[1].isel(save=slice(1, None))
    parts[1]["tau"] = parts[1]["tau"] + float(first.final_time)
    return xr.concat(parts, "save")


def sgd_claims(
    settings: Settings, runs: xr.Dataset, plateaus: list[Plateaus]
) -> list[Claim]:
    """What Figs. 1 and 3 show, for each seed."""
    claims = []
    for i, found in enumerate(plateaus):
        run, seed = runs.isel(seed=i), f"SGD, seed {settings.seeds[i]}"
        claims += _spectra_claims(seed, run, found)
        if settings.data == "digits" and not settings.smoke:
            claims += _digits_claims(seed, run, found)
    return claims


def _spectra_claims(seed: str, run: xr.Dataset, found: Plateaus) -> list[Claim]:
    """One dominant singular value on the second plateau, two at the end."""
    risk, values = run["risk"].values, run["singular_values"].values
    first = shallow = deep = third = second = None
    if found.first_left is not None and found.middle is not None:
        first = float(risk[found.first_left // 2])
        rank_one = ratios(values[found.middle], 2, 1)
        shallow, deep = float(rank_one[0]), float(rank_one[2:].max())
    if found.solved is not None:
        third = float(ratios(values[-1], 3, 2)[2:5].max())
        second = float(ratios(values[-1], 2, 1)[2:5].min())
    on_second, at_end = "on the second plateau", "at the end"

    def claim(what: str, source: str, measured: float | None, **ends: float) -> Claim:
        return Claim(statement=f"{seed}: {what}", source=source, measured=measured, **ends)

    return [
        near(f"{seed}: loss on the first plateau", "Fig. 1a", first, math.log(10), 1e-3),
        claim(f"largest s2/s1 of W3 to W6 {on_second}", "Fig. 1b", deep, high=0.15),
        claim(f"s2/s1 of W1 {on_second}", "Fig. 1b", shallow, low=0.25),
        claim(f"largest s3/s2 of W3 to W5 {at_end}", "Fig. 1c", third, high=0.45),
        claim(f"smallest s2/s1 of W3 to W5 {at_end}", "Fig. 1c", second, low=0.3),
    ]


def _digits_claims(seed: str, run: xr.Dataset, found: Plateaus) -> list[Claim]:
    """The level of the second plateau, and how long both are."""
    epochs, level = run["epoch"].values, None
    if found.middle is not None:
        level = float(np.median(run["risk"].values[found.start : found.end]))
    return [
        near(f"{seed}: loss on the second plateau", "Fig. 1a", level, 1.8, 0.05),
        _left(f"{seed}: first plateau left", epochs, found.first_left, 107, 112),
        _left(f"{seed}: second plateau left", epochs, found.left, 2328, 4077),
        _left(f"{seed}: loss below 0.1", epochs, found.solved, 2613, 4406),
    ]


def _left(
    statement: str, epochs: np.ndarray, save: int | None, earliest: int, latest: int
) -> Claim:
    """Within 50 % of the epochs at which other seeds, of other code, were seen to."""
    low, high = 0.5 * earliest, 1.5 * latest
    happened = None if epochs[-1] < high else np.inf
    return Claim(
        statement=f"{statement}, epoch",
        source="ours, 3 seeds",
        measured=happened if save is None else float(epochs[save]),
        low=low,
        high=high,
    )


def flow_claims(first: gf.Trajectory, second: gf.Trajectory) -> list[Claim]:
    """The gradient flow leaves along rank one, onto a plateau."""
    reached = first.stopped_by == "NextPlateau"
    leaving, later = (
        ratios(np.asarray(part.records["singular_values"][-1]), 2, 1)
        for part in (first, second)
    )
    further = f"further along the plateau, by τ = {float(second.final_time):.3g}"
    return [
        Claim(
            statement="flow: largest s2/s1 of all layers where it settles",
            source="Thm 3.1",
            measured=float(leaving.max()) if reached else None,
            high=0.15,
        ),
        Claim(
            statement=f"flow: largest s2/s1 of W3 to W6, {further}",
            source="Fig. 1b",
            measured=float(later[2:].max()) if reached else None,
            high=1e-3,
        ),
        Claim(
            statement=f"flow: fall of the loss {further}",
            source="Fig. 1a",
            measured=float(first.final_risk - second.final_risk) if reached else None,
            low=0.0,
            high=BAND,
        ),
    ]


def draw(runs: xr.Dataset, plateaus: Plateaus) -> Figure:
    """The loss, and of the first seed the spectra on the second plateau and at the end."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    loss, first, last = figure.subplots(1, 3)
    draw_losses(loss, runs)
    run = runs.isel(seed=0)
    save = len(run["epoch"]) // 2 if plateaus.middle is None else plateaus.middle
    for ax, i in ((first, save), (last, -1)):
        epoch = float(run["epoch"][i])
        title = f"seed {int(run['seed'])}, epoch {epoch:.0f}"
        loss.axvline(epoch, color="0.6", lw=1, ls="--")
        for layer, values in enumerate(run["singular_values"][i].values, 1):
            ax.plot(np.arange(1, len(values) + 1), values, "o-", ms=3, label=f"$W_{layer}$")
        ax.set(xlabel="index", ylabel="singular value", title=title)
        ax.set_ylim(bottom=0)
    last.legend(fontsize="small", frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(main())
