"""The flow through its second escape beside descents: claims and figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim


def claims_of(
    traj: gf.Trajectory,
    found: Any,
    descents: Mapping[float, xr.Dataset],
    sgd: xr.Dataset,
) -> list[Claim]:
    """The flow passes its second saddle, exactly, and where descents of ever smaller steps
    do."""
    certificate, rtol = traj.certificate, float(traj.rtol)
    ranks = found.plateaus.bottleneck_rank
    claims = [
        Claim(
            statement="flow: plateaus, of which the third follows the second escape",
            source="Fig. 1a",
            measured=float(len(ranks)),
            low=3,
        ),
        *(
            Claim(
                statement=f"flow: bottleneck rank of the {name} plateau",
                source="Fig. 1b",
                measured=float(ranks[k]) if k < len(ranks) else None,
                low=rank,
                high=rank,
            )
            for k, name, rank in ((1, "second", 1), (2, "third", 2))
        ),
        Claim(
            statement="flow: energy residual over what its certificate allows",
            source="not in the paper",
            measured=float(certificate.energy_residual / certificate.residual_limit),
            high=1,
        ),
        Claim(
            statement="flow: drift of the balance, in units of rtol",
            source="Le & Jegelka, Theorem 1",
            measured=float(certificate.balance_drift) / rtol,
            high=100,
        ),
        Claim(
            statement="flow: largest rise of the risk in a step, in units of rtol",
            source="not in the paper",
            measured=float(certificate.risk_increase) / rtol,
            high=100,
        ),
    ]
    flow = traj.to_xarray()
    runs = {f"descent, c={c:g}": run for c, run in descents.items()} | {"SGD": sgd}
    for name, run in runs.items():
        claims.append(
            Claim(
                statement=f"{name}: risk amid the second plateau, over the flow's",
                source="Fig. 1a",
                measured=_at_plateau(run, flow, found),
                low=0.99,
                high=1.01,
            )
        )
    times = [_at_escape(run, flow, found) for run in descents.values()]
    known = [time for time in times if time is not None]
    falls = float(np.min(np.diff(known))) if len(known) > 1 else None
    return [
        *claims,
        Claim(
            statement="descent: least growth of τ of the second escape, over the flow's, "
            "as c falls",
            source="not in the paper",
            measured=falls,
            low=0.0,
        ),
        Claim(
            statement=f"descent, c={min(descents):g}: τ of the second escape, over the "
            "flow's",
            source="not in the paper",
            measured=times[-1],
            low=0.95,
            high=1.05,
        ),
        Claim(
            statement="SGD: τ of the second escape, over the flow's",
            source="not in the paper",
            measured=_at_escape(sgd, flow, found),
            low=0.1,
            high=1.0,
        ),
    ]


def _at_plateau(run: xr.Dataset, flow: xr.Dataset, found: Any) -> float | None:
    """The risk of a descent over that of the flow where both rest at the second saddle: at
    a quarter of the plateau, in log τ; None if the flow did not come to it."""
    plateaus = found.plateaus
    if len(plateaus.loss) < 2:
        return None
    early = plateaus.start[1] ** 0.75 * plateaus.end[1] ** 0.25
    theirs, own = (np.interp(early, each["tau"], each["risk"]) for each in (run, flow))
    return float(theirs / own)


def _at_escape(run: xr.Dataset, flow: xr.Dataset, found: Any) -> float | None:
    """The τ at which a descent has fallen half the way from the second plateau to the
    third, over the flow's; None if the flow did not come there."""
    losses = found.plateaus.loss
    if len(losses) < 3:
        return None
    level = 0.5 * (losses[1] + losses[2])
    return _first_below(run, level) / _first_below(flow, level)


def _first_below(run: xr.Dataset, level: float) -> float:
    """The first τ at which the risk is below a level; infinite if never."""
    below = np.flatnonzero(run["risk"].values < level)
    return float(run["tau"][below[0]]) if len(below) else np.inf


def draw(
    traj: gf.Trajectory, found: Any, descents: Sequence[xr.Dataset], sgd: xr.Dataset
) -> Figure:
    """Risk, the first singular values of W₂, and the events and steps so far, over τ."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    risk, spectrum, work = figure.subplots(1, 3)
    tau = np.asarray(traj.ts)
    shades = np.linspace(0.25, 0.85, len(descents))
    for shade, run in zip(shades, descents, strict=True):
        label = f"descent, c = {float(run['c']):g}"
        colour = (1.0, 0.5 * (1.2 - shade), 0.0, shade)
        risk.plot(run["tau"], run["risk"], color=colour, lw=1, label=label)
    risk.plot(sgd["tau"], sgd["risk"], color="C2", lw=0.8, label="SGD")
    risk.plot(tau, traj.records["risk"], color="C0", lw=1.5, label="exact flow")
    risk.set(ylabel="loss", ylim=0)
    risk.set_title("Loss", pad=16)
    risk.legend(fontsize="small", frameon=False)
    plateaus = found.plateaus
    for start, end, rank in zip(
        plateaus.start, plateaus.end, plateaus.bottleneck_rank, strict=True
    ):
        for ax in (risk, spectrum, work):
            ax.axvspan(max(start, tau[1]), end, color="C0", alpha=0.08, lw=0)
        top = (np.sqrt(max(start, tau[1]) * end), 1.02)
        risk.annotate(
            f"{rank}", top, xycoords=("data", "axes fraction"), ha="center", fontsize=8
        )
    values = np.asarray(traj.records["singular_values"])[:, 1]
    for i in range(min(4, values.shape[1])):
        spectrum.plot(tau, values[:, i], color=f"C{i}", label=rf"$\sigma_{i + 1}$")
    spectrum.set(yscale="log", title="$W_2$ of the flow", ylabel="singular value")
    spectrum.set_ylim(values[:, 0].min() * 1e-3)
    spectrum.legend(fontsize="small", frameon=False)
    _work(work, traj)
    for ax in (risk, spectrum, work):
        ax.set(xlabel="τ", xscale="log", xlim=(max(tau[1], 1.0), tau[-1]))
    return figure


def _work(ax: Axes, traj: gf.Trajectory) -> None:
    """The part of all steps, and of all events at kinks, up to each τ."""
    course, kinks = traj.course, traj.kinks
    assert course is not None and kinks is not None
    for times, name in ((course.ts, "steps"), (kinks.time, "events at kinks")):
        ordered = np.asarray(times)
        ax.plot(ordered, np.linspace(0, 1, len(ordered)), label=name)
    ax.set(ylabel="part of all", title="What the flow costs", ylim=(0, 1))
    ax.legend(fontsize="small", frameon=False)
