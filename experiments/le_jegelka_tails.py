"""Low-rank tails of Le & Jegelka, and what gradient descent keeps.

The paper has no experiment. Here: linear Free blocks (E6) and a linear convolutional
network (E7), with the bounds of Theorem 2 as they are printed and sharper; and the slack of
gradient descent (E9, first version, App. F). The flows run in the clock of the loss, in log
domain: that of arc length ends where gradients underflow in their squares, at 1e-154.

    python experiments/le_jegelka_tails.py [--smoke] [--out DIR]

writes the flows (NAME.nc), the descents (descent.nc), the figure and claims.json.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import tyro
import xarray as xr
from _claims import Claim
from _descent_slack import descents, held, separable
from _output import write
from matplotlib.figure import Figure

import gfdyn as gf
from gfdyn.nets import conv, dense, resnet_free, sequential
from gfdyn.theory import le_jegelka as lj


STATEMENTS = {
    "step": lj.step_inequality,
    "telescoped": lj.telescoped_inequality,
    "tail": lj.tail_bound,
    "ratio": lj.ratio_bound,
}
# What a solve may err in squares of norms, relative.
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """E6, E7 and E9."""

    norm: float = 14.0
    """‖θ‖ up to which the linear nets run (E6, E7)."""
    rates: tuple[float, ...] = (0.5, 0.1, 0.01)
    """Of gradient descent (E9), falling."""
    duration: float = 20.0
    """Rate times steps."""
    smoke: bool = False
    """Smaller norms, fewer rates."""
    out: Path = Path("results/le_jegelka_tails")
    """Folder to write to."""


SMOKE = {"norm": 8.0, "rates": (0.1, 0.05), "duration": 5.0}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = tyro.cli(Settings, description=__doc__, args=arguments)
    if settings.smoke:
        settings = dataclasses.replace(settings, **SMOKE)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    data, claims = {}, []
    for name, label, net in (
        ("free_blocks", "E6", free_blocks()),
        ("convolutions", "E7", convolutions()),
    ):
        traj = linear_flow(settings, net)
        data[name], made = measured(settings, label, traj, net)
        claims += made
    figures = {"tails": draw(data)}
    data["descent"], made = descents(settings.rates, settings.duration)
    claims += made
    write(settings.out, settings, claims, data, figures, started)
    return 0


def free_blocks() -> gf.nets.LayeredNet:
    """E6: FC, two Free blocks and the output, all linear."""
    linear = "identity"
    blocks = [
        dense(5, linear),
        resnet_free(4, 5, linear),
        resnet_free(4, 5, linear),
        dense(1, linear),
    ]
    return sequential(4, blocks, key=jr.key(0), scale=0.5)


def convolutions() -> gf.nets.LayeredNet:
    """E7: two convolutions to 4 positions of 3 channels, FC and the output, all linear."""
    linear = "identity"
    blocks = [conv(3, 3, 1, 1, linear), conv(3, 3, 1, 1, linear), dense(4, linear)]
    return sequential((4, 1), [*blocks, dense(1, linear)], key=jr.key(0), scale=0.5)


def linear_flow(settings: Settings, net: gf.nets.LayeredNet) -> gf.Trajectory:
    """Up to the norm that is asked for."""
    problem, _ = separable(1, net.in_size)
    flow = gf.GradientFlow(problem, clock="loss")
    radius = settings.norm / math.sqrt(net.degree or 1)
    return gf.solve(
        flow,
        net,
        math.inf,
        ts=gf.AcceptedSteps(128),
        solver=gf.solvers.Adaptive(rtol=1e-8),
        stop=gf.stopping.RadiusAbove(radius),
    )


def measured(
    settings: Settings, label: str, traj: gf.Trajectory, net: gf.nets.AbstractNet
) -> tuple[xr.Dataset, list[Claim]]:
    """Spectra, constants and all statements along a flow."""
    spectra = jax.vmap(lj.tail_spectra)(traj.net)
    matrix = [f"W{member.layer}" for member in lj.linear_tail(net)]
    data: dict[str, Any] = {
        "ratio": (("save", "matrix"), spectra.ratio),
        "frobenius": (("save", "matrix"), spectra.frobenius),
        "tail": (("save", "matrix"), spectra.tail),
        "alignment": (("save", "pair"), jax.vmap(lj.alignment)(traj.net)),
        "norm": ("save", jax.vmap(gf.nets.norm)(traj.net)),
    }
    claims = []
    for form in ("sharp", "printed"):
        constants = lj.tail_constants(net, form)
        data[f"limit_{form}"] = ("bounded", constants.factor)
        data[f"bound_{form}"] = ("bounded", constants.bound)
        for name, statement in STATEMENTS.items():
            check = jax.vmap(
                lambda n, s=statement, f=form: s(net, n, f, tolerance=TOLERANCE)
            )(traj.net)
            claims.append(held(f"{label}: {name} inequality, {form}", "Theorem 2", check))
    check = jax.vmap(lambda n: lj.alignment_bound(net, n, tolerance=TOLERANCE))(traj.net)
    if check.lhs.size:
        claims.append(held(f"{label}: alignment and its bound", "Theorem 2 (15)", check))
    claims.append(
        Claim(
            statement=f"{label}: least ratio of the tail at the end",
            source="ours; it tends to 1 behind the last Free block and convolution",
            # Not at small norms.
            measured=None if settings.smoke else float(jnp.min(spectra.ratio[-1])),
            low=0.85,
        )
    )
    return xr.Dataset(data, coords={"matrix": matrix}), claims


def draw(data: dict[str, xr.Dataset]) -> Figure:
    """‖W‖_2²/‖W‖_F² over ‖θ‖, and the sharp bound below it."""
    figure = Figure(figsize=(3.7 * len(data), 3.6), layout="constrained")
    panels = np.ravel(figure.subplots(1, len(data), sharey=True))
    for ax, (name, flow) in zip(panels, data.items(), strict=True):
        for j, matrix in enumerate(flow["matrix"].values[:-1]):
            of = flow.isel(matrix=j)
            ax.plot(flow["norm"], of["ratio"], color=f"C{j}", label=matrix)
            least = flow["limit_sharp"][j] - flow["bound_sharp"][j] / of["frobenius"]
            ax.plot(flow["norm"], least, color=f"C{j}", linestyle="--")
        ax.plot([], [], color="0.3", linestyle="--", label="lower bound")
        ax.set(ylim=(0, 1.02), xlabel=r"$\|\theta\|$", title=name.replace("_", " "))
        ax.legend(fontsize=8, loc="lower right")
    panels[0].set_ylabel(r"$\|W\|_2^2 / \|W\|_F^2$")
    return figure


if __name__ == "__main__":
    sys.exit(main())
