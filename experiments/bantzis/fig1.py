"""Figs. 1 and 3 of Bantzis et al.: saddle to saddle in six layers, rank one to rank two.

SGD on all digits (or MNIST), as in their Appendix B, and beside it what it approximates:
the gradient flow in the clock of escape, of as many digits and units as it can be followed
along every kink of, out of the first saddle and a way along the plateau that follows, to
where hundreds of gates slide at once; `second_escape` goes on through the second escape of
three layers. All numbers of the claims are ours; the paper has curves.

How long the second plateau lasts is chance, but of the initial weights, not of SGD: plain
NumPy leaves it after 170 to over 6500 epochs, depending on its seed; within 10 % the same
for other orders of the batches, and at the same τ for a rate four times smaller. At the
paper's scale of 1/width some nets leave the first saddle along rank two at once. Hence a
second set of runs from smaller weights, where all rest at rank one, for longer.

    python -m experiments.bantzis.fig1 [--smoke] [--out DIR]
    python -m experiments.bantzis.fig1 --data mnist --path FILE

writes the runs (sgd.nc, flow.nc), the figures and claims.json.
"""

import dataclasses
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.bantzis._image_training import (
    BAND,
    RECORDS,
    Training,
    draw_losses,
    hidden_width,
    make_net,
    make_problem,
    plateau_table,
    ratios,
    spectra_over_time,
    train,
)
from experiments.bantzis._plateau_claims import plateau_claims, second_plateau


DEPTH = 6
# The loss falls along a plateau, by up to this part of its total fall.
FLATNESS = 0.05
# Epochs by the scale of the initial weights.
DIGITS = {1.0: 6500, 0.7: 20_000}
MNIST = {1.0: 1000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """Figs. 1 and 3: six layers."""

    scales: tuple[float, ...] | None = None
    """Standard deviations of the initial weights, over 1/width; 1 as in the paper, and for
    digits 0.7 as well, if None."""
    epochs: int | None = None
    """Epochs of SGD; the paper's 1000 for MNIST, for digits 6500 at scale 1 and 20 000 at
    others, if None."""
    c: float | None = None
    """SGD's rate is c/‖θ‖⁴; c = 40 for digits, 10 for MNIST, if None."""
    flow: bool = True
    """Whether to integrate the gradient flow as well."""
    flow_samples: int = 50
    """Samples of the flow, of those of SGD."""
    flow_width: int = 16
    """Neurons of each hidden layer of the flow."""
    flow_norm: float = 1e-6
    """‖θ‖ where the flow starts."""
    rtol: float = 1e-5
    """Relative tolerance of the flow per step."""
    settled: float = 1e-2
    """The flow has settled once the loss falls at this fraction of the largest rate."""
    further: float = 300.0
    """How far the flow goes on from there, in τ."""
    max_steps: int = 6000
    """Most steps of either part of the flow."""
    out: Path = Path("results/bantzis/fig1")
    """Folder to write to."""


SMOKE = {
    "data": "digits",
    "scales": (1.0,),
    "samples": 300,
    "width": 16,
    "epochs": 400,
    "saves": 100,
    "seeds": (0,),
    "flow_samples": 30,
    "flow_width": 8,
    "further": 3.0,
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figures and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    problem = make_problem(settings)
    default_c = 40.0 if settings.data == "digits" else 10.0
    c = default_c if settings.c is None else settings.c
    claims, data, figures = [], {}, {}
    for scale, epochs in protocol(settings).items():
        start = scale / hidden_width(settings)
        runs = train(settings, problem, DEPTH, start, c, epochs, FLATNESS)
        print(f"Scale {scale:g}\n{plateau_table(runs)}")
        claims += plateau_claims(settings, runs, scale)
        data[f"sgd_{scale:g}"] = runs
        figures[f"fig1_{scale:g}"] = draw(runs, scale)
        figures[f"fig3_{scale:g}"] = spectra_over_time(runs.isel(seed=0))
    if settings.flow:
        first, second = flow_out_of_the_saddle(settings, problem)
        claims += flow_claims(first, second)
        data["flow"] = flow = joined(first, second)
        figures["fig3_flow"] = spectra_over_time(flow, zoom=True)
    write(settings.out, settings, claims, data, figures, started)
    return 0


def protocol(settings: Settings) -> dict[float, int]:
    """The epochs for each scale of the initial weights."""
    known = DIGITS if settings.data == "digits" else MNIST
    scales, longest = settings.scales or known, max(known.values())
    return {scale: settings.epochs or known.get(scale, longest) for scale in scales}


def flow_out_of_the_saddle(
    settings: Settings, problem: gf.Problem
) -> tuple[gf.Trajectory, gf.Trajectory]:
    """The gradient flow in float64 from a small net of the first seed, to where it settles
    on the next plateau; and further along that."""
    images = jax.tree.map(
        lambda a: a[: settings.flow_samples].astype(jnp.float64), problem.data
    )
    flow = gf.EscapeFlow(gf.Problem(images, problem.loss))
    drawn = dataclasses.replace(settings, dtype="float64", width=settings.flow_width)
    net = make_net(drawn, flow.problem, DEPTH, 1.0, settings.seeds[0])
    net = gf.nets.scaled_to_norm(net, settings.flow_norm)

    def follow(net: gf.nets.AbstractNet, t1: float, settled: float) -> gf.Trajectory:
        return gf.solve(
            flow,
            net,
            t1=t1,
            ts=gf.AcceptedSteps(256),
            record=RECORDS,
            solver=gf.solvers.ExactKinks(rtol=settings.rtol),
            stop=gf.stopping.NextPlateau(settled),
            max_steps=settings.max_steps,
            throw=False,
            progress=True,
        )

    first = follow(net, np.inf, settings.settled)
    # Nothing falls at less than no rate: the same compiled program goes on to t1.
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


def flow_claims(first: gf.Trajectory, second: gf.Trajectory) -> list[Claim]:
    """The gradient flow leaves along rank one, onto a plateau."""
    reached = first.stopped_by == "NextPlateau"
    parts = first.certificate, second.certificate
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
        Claim(
            statement="flow: energy residual, larger of both parts",
            source="ours",
            measured=max(float(part.energy_residual) for part in parts),
            high=float(first.certificate.residual_limit),
        ),
        Claim(
            statement="flow: largest rise of the risk, relative",
            source="ours",
            measured=max(float(part.risk_increase) for part in parts),
            high=100 * float(first.rtol),
        ),
    ]


def draw(runs: xr.Dataset, scale: float) -> Figure:
    """The loss, and of the first seed, whose plateaus are shaded, the spectra on the second
    one and at the end."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    loss, middle, last = figure.subplots(1, 3)
    draw_losses(loss, runs)
    loss.set_title(f"SGD, scale {scale:g}/width")
    run = runs.isel(seed=0)
    for start, end in zip(run["plateau_start"], run["plateau_end"], strict=True):
        loss.axvspan(float(start), float(end), color="C0", alpha=0.08, lw=0)
    second = second_plateau(run)
    if second is None:
        save, what = len(run["epoch"]) // 2, ""
    else:
        save = int(second["plateau_save"])
        what = f", bottleneck rank {int(second['bottleneck_rank'])}"
    for ax, i, rank in ((middle, save, what), (last, -1, "")):
        epoch = float(run["epoch"][i])
        title = f"seed {int(run['seed'])}, epoch {epoch:.0f}{rank}"
        loss.axvline(epoch, color="0.6", lw=1, ls="--")
        for layer, values in enumerate(run["singular_values"][i].values, 1):
            ax.plot(np.arange(1, len(values) + 1), values, "o-", ms=3, label=f"$W_{layer}$")
        ax.set(xlabel="index", ylabel="singular value", title=title)
        ax.set_ylim(bottom=0)
    last.legend(fontsize="small", frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(main())
