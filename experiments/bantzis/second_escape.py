"""The second escape of Fig. 1 of Bantzis et al., by the gradient flow itself.

A network on digits, small enough that a flow which follows every kink passes its second
saddle, and further: three layers by default, from norm 1e-3, with the cross-entropy of ten
classes, in the clock τ of escape. Beside it are gradient descent and SGD from the same net,
whose steps are all of one length in τ, as in the paper's Appendix B. What leads out of the
second saddle starts from next to nothing, to which a descent that jumps to and fro across
kinks adds: the longer its steps, the sooner it leaves. It comes to the flow as they fall.

It also tells what limits the flow: how many steps, how many events at kinks and what path
length each plateau and each escape takes. All numbers are ours; the paper has curves.

    python -m experiments.bantzis.second_escape [--smoke] [--out DIR]

writes the runs (flow.nc, descent_C.nc for each rate C, sgd.nc), what each stretch takes
(costs.nc), the figures and claims.json.
"""

import dataclasses
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

import gfdyn as gf
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.bantzis._image_training import RECORDS, spectra_over_time
from experiments.bantzis._second_escape_figure import claims_of, draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The network, its data, and how far it is followed."""

    samples: int = 60
    """Digits, the first of the file."""
    width: int = 16
    """Neurons of each hidden layer."""
    depth: int = 3
    """Number of weight matrices, 3 at least."""
    norm: float = 1e-3
    """‖θ‖ where the flow starts."""
    seed: int = 0
    """Of the initial weights."""
    t1: float = 60_000.0
    """Where the flow ends, in τ."""
    rtol: float = 1e-6
    """Relative tolerance of the flow per step."""
    flatness: float = 0.02
    """By how much the risk may fall on a plateau, of its total fall."""
    rates: tuple[float, ...] = (0.5, 0.1, 0.02, 0.004)
    """Of gradient descent, whose rate is c/‖θ‖^(L−2): each c, falling; of SGD the first."""
    batch_size: int = 20
    """Samples of a step of SGD."""
    saves: int = 400
    """Most accepted steps at which the flow is saved."""
    events: int = 200_000
    """Most events at kinks that are kept."""
    smoke: bool = False
    """A small network for a short time, whatever the other settings."""
    out: Path = Path("results/bantzis/second_escape")
    """Folder to write to."""


# Saves of a descent, about
_SAVES = 1000
SMOKE = {
    "samples": 20,
    "width": 6,
    "t1": 200.0,
    "saves": 128,
    "events": 1000,
    "rates": (0.5, 0.1),
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figures and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    digits = gf.data.digits(settings.samples, dtype="float64")
    problem = gf.Problem(digits, gf.losses.cross_entropy)
    widths = [digits.x.shape[1], *[settings.width] * (settings.depth - 1), 10]
    net = gf.nets.MLP(widths, key=jax.random.key(settings.seed))
    net = gf.nets.scaled_to_norm(net, settings.norm)
    traj = follow(settings, problem, net)
    minutes = (time.perf_counter() - started) / 60
    print(f"{traj.summary()}\n  cost             {minutes:.1f} minutes")
    found = gf.escape.episodes(traj, flatness=settings.flatness)
    print(found.summary())
    costs = costs_of(traj, found).assign_attrs(
        minutes=minutes, evaluations=int(traj.stats["num_field_evaluations"])
    )
    print(costs.to_dataframe().to_string(float_format="{:.4g}".format))
    end = min(1.2 * last_escape(found), settings.t1)
    descents = [descend(settings, problem, net, end, c, None) for c in settings.rates]
    sgd = descend(
        settings, problem, net, settings.t1, settings.rates[0], settings.batch_size
    )
    flow = traj.to_xarray()[["risk", "singular_values", "log_radius"]]
    claims = claims_of(traj, found, dict(zip(settings.rates, descents, strict=True)), sgd)
    figures = {
        "second_escape": draw(traj, found, descents, sgd),
        "second_escape_fig3": spectra_over_time(flow),
    }
    write(
        settings.out,
        settings,
        claims,
        {
            "flow": flow,
            "costs": costs,
            **{f"descent_{float(run['c']):g}": run for run in descents},
            "sgd": sgd,
        },
        figures,
        started,
    )
    return 0


def follow(
    settings: Settings, problem: gf.Problem, net: gf.nets.AbstractNet
) -> gf.Trajectory:
    """The gradient flow from a net, every kink followed."""
    with warnings.catch_warnings():
        # A claim shows by how much the energy identity fails.
        warnings.simplefilter("ignore", gf.CertificateWarning)
        return gf.solve(
            gf.EscapeFlow(problem),
            net,
            t1=settings.t1,
            ts=gf.AcceptedSteps(settings.saves),
            record=RECORDS,
            kinks=settings.events,
            solver=gf.solvers.ExactKinks(rtol=settings.rtol, verified=False),
            max_steps=1_000_000,
            throw=False,
            progress=True,
        )


def costs_of(traj: gf.Trajectory, found: Any) -> xr.Dataset:
    """What each stretch takes, plateaus and escapes in their order: its length in τ and in
    ‖dθ‖, accepted steps, events at kinks."""
    course, kinks = traj.course, traj.kinks
    assert course is not None and kinks is not None
    plateaus, escapes = found.plateaus, found.escapes
    starts = np.concatenate([plateaus.start, escapes.start])
    ends = np.concatenate([plateaus.end, escapes.end])
    order = np.argsort(starts)
    names = np.array(
        [f"plateau {k}" for k in range(len(plateaus.start))]
        + [f"escape {k}" for k in range(len(escapes.start))]
    )[order]
    starts, ends = starts[order], ends[order]
    weights = [np.asarray(w).reshape(len(traj.ts), -1) for w in traj.net.weights]
    theta = np.concatenate(weights, axis=1)
    lengths = np.linalg.norm(np.diff(theta, axis=0), axis=1)
    middles = 0.5 * np.asarray(traj.ts[1:] + traj.ts[:-1])
    each_step = int(traj.stats["num_steps"]) / (len(course.ts) - 1)

    def counted(times: Any, weights: Any = None) -> np.ndarray:
        times = np.asarray(times)
        weights = np.ones(len(times)) if weights is None else weights
        return np.array(
            [
                np.sum(weights[(times > start) & (times <= end)])
                for start, end in zip(starts, ends, strict=True)
            ]
        )

    path, events = counted(middles, lengths), counted(kinks.time)
    return xr.Dataset(
        {
            "tau": ("stretch", ends - starts),
            "path": ("stretch", path),
            "steps": ("stretch", each_step * counted(course.ts)),
            "events": ("stretch", events),
            "events_per_path": ("stretch", events / np.where(path > 0, path, np.inf)),
        },
        coords={"stretch": names},
    )


def last_escape(found: Any) -> float:
    """When the second escape ends, or the last before it, in τ."""
    ends = found.escapes.end[found.escapes.plateau <= 1]
    return float(ends[-1]) if len(ends) else float(found.plateaus.end[-1])


def descend(
    settings: Settings,
    problem: gf.Problem,
    net: gf.nets.AbstractNet,
    t1: float,
    c: float,
    batch_size: int | None,
) -> xr.Dataset:
    """Risk and singular values of a descent over τ; of SGD if there is a batch size."""
    step = float(gf.escape.tau_of_unit_sphere_time(c, settings.depth))
    every = max(1, round(t1 / step / _SAVES))
    traj = gf.descend(
        problem,
        net,
        gf.NormScaledRate(c),
        round(t1 / step),
        batch_size=batch_size,
        key=jax.random.key(settings.seed),
        save_every=every,
        record=RECORDS,
        progress=True,
        throw=False,
    )
    tau = step * np.minimum(every * np.arange(len(traj.ts)), round(t1 / step))
    return xr.Dataset(
        {
            "risk": ("save", np.asarray(traj.records["risk"])),
            "singular_values": (
                ("save", "layer", "value"),
                np.asarray(traj.records["singular_values"]),
            ),
        },
        coords={
            "c": c,
            "tau": ("save", tau),
            "layer": np.arange(1, settings.depth + 1),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
