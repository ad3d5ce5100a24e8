"""Low-rank tails of Le & Jegelka, and what gradient descent keeps.

The paper has no experiment. Here: linear layers behind a ReLU layer (E5), linear Free
blocks (E6) and a linear convolutional network (E7), with the bounds of Theorem 2 as they
are printed and sharper; and the slack of gradient descent (E9, first version, App. F). The
flows run in arc length, through gradients far below what a number can hold.

    python experiments/le_jegelka_tails.py [--smoke] [--out DIR]

writes the flows (NAME.nc), the descents (descent.nc), the figure and claims.json.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import tyro
import xarray as xr
from _claims import Claim
from _descent_slack import descents, held, separable
from _output import write
from _relu_then_linear import claims_on, flow, start
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
    """E5, E6, E7 and E9."""

    losses: tuple[str, ...] = ("logistic", "exponential", "squared")
    """Of the ReLU and linear layers (E5)."""
    length: float = 24.0
    """Of their trajectories."""
    fitted: float = 200.0
    """How long the squared loss is given."""
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


SMOKE: dict[str, Any] = {
    "losses": ("logistic",),
    "length": 4.0,
    "norm": 8.0,
    "rates": (0.1, 0.05),
    "duration": 5.0,
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = tyro.cli(Settings, description=__doc__, args=arguments)
    if settings.smoke:
        settings = dataclasses.replace(settings, **SMOKE)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    data, claims = {}, []
    for loss in settings.losses:
        end = settings.fitted if loss == "squared" else settings.length
        traj = flow(loss, end)
        data[loss], made = measured(f"E5, {loss}", traj, start(loss)[1])
        claims += [*made, *claims_on(loss, traj, settings.smoke)]
    for name, label, net in (
        ("free_blocks", "E6", free_blocks()),
        ("convolutions", "E7", convolutions()),
    ):
        traj = linear_flow(settings, net)
        data[name], made = measured(label, traj, net)
        claims += [*made, *growth_claims(label, data[name], settings.smoke)]
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
    radius = settings.norm / math.sqrt(net.degree or 1)
    return gf.solve(
        gf.GradientFlow(problem, clock="arc"),
        net,
        math.inf,
        ts=gf.AcceptedSteps(128),
        solver=gf.solvers.Adaptive(rtol=1e-8),
        stop=gf.stopping.RadiusAbove(radius),
    )


def measured(
    label: str, traj: gf.Trajectory, net: gf.nets.AbstractNet
) -> tuple[xr.Dataset, list[Claim]]:
    """Spectra, constants and all statements along a flow."""
    matrix = [f"W{member.layer}" for member in lj.linear_tail(net)]
    constants = {form: lj.tail_constants(net, form) for form in ("sharp", "printed")}
    spectra, alignment, norm, checks = along(net, traj.net)
    data: dict[str, Any] = {
        "ratio": (("save", "matrix"), spectra.ratio),
        "frobenius": (("save", "matrix"), spectra.frobenius),
        "tail": (("save", "matrix"), spectra.tail),
        "alignment": (("save", "pair"), alignment),
        "norm": ("save", norm),
    }
    for form, of in constants.items():
        data |= {f"limit_{form}": ("bounded", of.factor)}
        data |= {f"bound_{form}": ("bounded", of.bound)}
    claims = [
        held(f"{label}: {statement}", "Theorem 2", check)
        for statement, check in checks.items()
        if check.lhs.size
    ]
    return xr.Dataset(data, coords={"matrix": matrix}), claims


@eqx.filter_jit
def along(net: gf.nets.AbstractNet, nets: gf.nets.AbstractNet) -> tuple[Any, ...]:
    """What is measured of the nets of a flow, and what is claimed, in one program."""
    checks = {
        f"{name} inequality, {form}": jax.vmap(
            lambda n, s=statement, f=form: s(net, n, f, tolerance=TOLERANCE)
        )(nets)
        for form in ("sharp", "printed")
        for name, statement in STATEMENTS.items()
    }
    checks["alignment and its bound (15)"] = jax.vmap(
        lambda n: lj.alignment_bound(net, n, tolerance=TOLERANCE)
    )(nets)
    spectra, alignment = jax.vmap(lj.tail_spectra)(nets), jax.vmap(lj.alignment)(nets)
    return spectra, alignment, jax.vmap(gf.nets.norm)(nets), checks


def growth_claims(label: str, run: xr.Dataset, smoke: bool) -> list[Claim]:
    """Where tails are bounded ratios tend to 1, as norms do to infinity. Theorem 2 has it
    of the last matrix alone; of convolutions it has a limit of 1/V_c, and they stay away
    from rank one."""
    norm, tails = run["norm"].values, run["tail"].values[:, :-1]
    half = int(np.argmin(np.abs((norm / norm[-1]) ** 2 - 0.5)))
    growth = tails[-1] / tails[half]
    of_convolutions = label == "E7"
    others = growth[:-1].min() if of_convolutions else growth[:-1].max()
    doubled = "from half of ‖θ‖² to the end"
    claims = [
        Claim(
            statement=f"{label}: ratio of the matrix before the output, at the end",
            source="Theorem 2 (15), it tends to 1",
            measured=None if smoke else float(run["ratio"][-1, -2]),
            low=0.75,
        ),
        Claim(
            statement=f"{label}: growth of its tail {doubled}",
            source="Theorem 2 (13), it is bounded",
            measured=None if smoke else float(growth[-1]),
            high=1.05,
        ),
    ]
    if of_convolutions:
        statement, ends = f"{label}: least growth of the tails before it", {"low": 1.2}
    else:
        statement, ends = f"{label}: largest growth of the tails before it", {"high": 1.05}
    claims.append(
        Claim(
            statement=f"{statement} {doubled}",
            source="ours; Theorem 2 has limits below 1 here",
            measured=None if smoke else float(others),
            **ends,
        )
    )
    return claims


def draw(data: dict[str, xr.Dataset]) -> Figure:
    """‖W‖_2²/‖W‖_F² over ‖θ‖, and the sharp bound below it."""
    figure = Figure(figsize=(3.7 * len(data), 3.6), layout="constrained")
    panels = np.ravel(figure.subplots(1, len(data), sharey=True))
    for ax, (name, run) in zip(panels, data.items(), strict=True):
        for j, matrix in enumerate(run["matrix"].values[:-1]):
            of = run.isel(matrix=j)
            ax.plot(run["norm"], of["ratio"], color=f"C{j}", label=matrix)
            least = run["limit_sharp"][j] - run["bound_sharp"][j] / of["frobenius"]
            ax.plot(run["norm"], least, color=f"C{j}", linestyle="--")
        ax.plot([], [], color="0.3", linestyle="--", label="lower bound")
        ax.set(ylim=(0, 1.02), xlabel=r"$\|\theta\|$", title=name.replace("_", " "))
        ax.legend(fontsize=8, loc="lower right")
    panels[0].set_ylabel(r"$\|W\|_2^2 / \|W\|_F^2$")
    return figure


if __name__ == "__main__":
    sys.exit(main())
