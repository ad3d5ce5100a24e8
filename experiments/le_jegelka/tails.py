"""Low-rank tails of Le & Jegelka, and what gradient descent keeps.

The paper has no experiment. Here: linear layers behind a ReLU layer (E5), linear Free
blocks (E6) and a linear convolutional network (E7), with the bounds of Theorem 2 as they
are printed and sharper; and the slack of gradient descent (E9, first version, App. F). The
flows run in arc length, through gradients far below what a number can hold.

    python -m experiments.le_jegelka.tails [--smoke] [--out DIR]

writes the flows (NAME.nc), the descents (descent.nc), the figure and claims.json.
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim, held, violations
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.le_jegelka._descent_slack import descents
from experiments.le_jegelka._random_nets import normal_net, separable
from experiments.le_jegelka._relu_then_linear import claims_on, flow, start
from gfdyn.nets import conv, dense, resnet_free
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
    linear: tuple[str, ...] = ("free_blocks", "convolutions")
    """Which linear nets (E6, E7)."""
    seeds: int = 3
    """Of these nets and their data."""
    linear_length: float = 13.0
    """Of their trajectories; ‖θ‖² is about 200 at their end."""
    rates: tuple[float, ...] = (0.5, 0.1, 0.01)
    """Of gradient descent (E9), falling."""
    duration: float = 20.0
    """Rate times steps."""
    smoke: bool = False
    """Shorter, one loss, one linear net, fewer rates."""
    out: Path = Path("results/le_jegelka/tails")
    """Folder to write to."""


SMOKE: dict[str, Any] = {
    "losses": ("logistic",),
    "length": 4.0,
    "linear": ("convolutions",),
    "seeds": 1,
    "linear_length": 6.0,
    "rates": (0.1, 0.05),
    "duration": 5.0,
}
LABELS = {"free_blocks": "E6", "convolutions": "E7"}
# Of the linear nets, as of the generic ones (E2).
SCALE = 0.3


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    data, claims = {}, []
    for loss in settings.losses:
        end = settings.fitted if loss == "squared" else settings.length
        traj = flow(loss, end, settings.smoke)
        data[loss], made = measured(f"E5, {loss}", traj, start(loss)[1])
        claims += [*made, *claims_on(loss, traj)]
    for name in settings.linear:
        runs = []
        for seed in range(settings.seeds):
            net, traj = linear_flow(settings, name, seed)
            run, made = measured(f"{LABELS[name]}, seed {seed}", traj, net)
            runs.append(run)
            claims += made
        data[name] = xr.concat(runs, xr.IndexVariable("seed", range(settings.seeds)))
        claims += ratio_claims(name, data[name])
    figures = {"tails": draw(data)}
    data["descent"], made = descents(settings.rates, settings.duration)
    claims += made
    write(settings.out, settings, claims, data, figures, started)
    return 0


def linear_flow(
    settings: Settings, name: str, seed: int
) -> tuple[gf.nets.LayeredNet, gf.Trajectory]:
    """A linear net, and its flow in arc length.

    E6: FC, two Free blocks and the output. E7: two convolutions to 4 positions of 3
    channels, FC and the output.
    """
    problem, rng = separable(seed, 4)
    of, out = "identity", dense(1, "identity")
    if name == "free_blocks":
        free = [resnet_free(4, 5, of), resnet_free(4, 5, of)]
        net = normal_net(4, [dense(5, of), *free, out], rng, SCALE)
    else:
        convs = [conv(3, 3, 1, 1, of), conv(3, 3, 1, 1, of)]
        net = normal_net((4, 1), [*convs, dense(4, of), out], rng, SCALE)
    traj = gf.solve(
        gf.GradientFlow(problem, clock="arc"),
        net,
        ts=np.linspace(0, settings.linear_length, 61),
        solver=gf.solvers.ExactKinks(rtol=1e-8),
    )
    return net, traj


def measured(
    label: str, traj: gf.Trajectory, net: gf.nets.AbstractNet
) -> tuple[xr.Dataset, list[Claim]]:
    """Spectra, constants and all statements along a flow."""
    matrix = [f"W{member.layer}" for member in lj.linear_tail(net)]
    found = along(net, traj.net)
    spectra, alignment, norm, constants, violated = jax.tree.map(np.asarray, found)
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
        held(f"{label}: {statement}", source, number)
        for (statement, source), number in violated.items()
    ]
    return xr.Dataset(data, coords={"matrix": matrix}), claims


@eqx.filter_jit
def along(net: gf.nets.AbstractNet, nets: gf.nets.AbstractNet) -> tuple[Any, ...]:
    """What is measured of the nets of a flow, and what is claimed, in one program."""
    checks = {
        (f"{name} inequality, {form}", "Theorem 2"): jax.vmap(
            lambda n, s=statement, f=form: s(net, n, f, tolerance=TOLERANCE)
        )(nets)
        for form in ("sharp", "printed")
        for name, statement in STATEMENTS.items()
    }
    checks[("alignment and its bound", "Theorem 2 (15)")] = jax.vmap(
        lambda n: lj.alignment_bound(net, n, tolerance=TOLERANCE)
    )(nets)
    checks[("σ² of neighbours, apart by M(0)", "Theorem 1, Weyl")] = jax.vmap(
        lambda n: lj.neighbouring_singular_values(net, n, tolerance=TOLERANCE)
    )(nets)
    constants = {form: lj.tail_constants(net, form) for form in ("sharp", "printed")}
    spectra, alignment = jax.vmap(lj.tail_spectra)(nets), jax.vmap(lj.alignment)(nets)
    violated = {name: violations(c) for name, c in checks.items() if c.lhs.size}
    return spectra, alignment, jax.vmap(gf.nets.norm)(nets), constants, violated


def ratio_claims(name: str, runs: xr.Dataset) -> list[Claim]:
    """Ratios that tend to 1 rise, and are what they should be by then. Theorem 2 has it of
    the matrix before the output alone; a convolution is as far from rank one as what is
    behind it, reordered, which may be anything."""
    label, norm = LABELS[name], runs["norm"].values
    ratio = runs["ratio"].values[:, :, :-1]
    half = np.argmin(np.abs((norm / norm[:, -1:]) ** 2 - 0.5), axis=1)
    risen = ratio[:, -1] - ratio[np.arange(len(half)), half]

    if name == "free_blocks":
        return [
            Claim(
                statement=f"{label}: least ratio at the end, of all matrices and seeds",
                source="ours, .89 to .97 at ‖θ‖² = 185 to 203",
                measured=float(ratio[:, -1].min()),
                low=0.89,
            ),
            Claim(
                statement=f"{label}: least rise of a ratio from half of ‖θ‖² to the end",
                source="ours, they rise",
                measured=float(risen.min()),
                low=0,
            ),
        ]
    return [
        Claim(
            statement=f"{label}: least ratio of FC at the end, of all seeds",
            source="ours, .92; Theorem 2 (15): it tends to 1",
            measured=float(ratio[:, -1, 2].min()),
            low=0.92,
        ),
        Claim(
            statement=f"{label}: least rise of that of FC from half of ‖θ‖² to the end",
            source="Theorem 2 (15), it tends to 1",
            measured=float(risen[:, 2].min()),
            low=0,
        ),
        Claim(
            statement=f"{label}: largest ratio of T1 at the end, of all seeds",
            source="ours, .86 of one net; Theorem 2 has 1/9 as limit",
            measured=float(ratio[:, -1, 0].max()),
            low=0.86,
        ),
        Claim(
            statement=f"{label}: largest ratio of T2 at the end, of all seeds",
            source="ours, .95 of one net; Theorem 2 has 1/3 as limit",
            measured=float(ratio[:, -1, 1].max()),
            low=0.95,
        ),
    ]


def draw(data: dict[str, xr.Dataset]) -> Figure:
    """‖W‖_2²/‖W‖_F² over ‖θ‖, of the first seed, and the sharp bound below it."""
    figure = Figure(figsize=(3.2 * len(data), 4.0), layout="constrained")
    panels = np.ravel(figure.subplots(1, len(data), sharey=True))
    for ax, (name, runs) in zip(panels, data.items(), strict=True):
        run = runs.isel(seed=0) if "seed" in runs.dims else runs
        for j, matrix in enumerate(run["matrix"].values[:-1]):
            of = run.isel(matrix=j)
            ax.plot(run["norm"], of["ratio"], color=f"C{j}", label=matrix)
            least = run["limit_sharp"][j] - run["bound_sharp"][j] / of["frobenius"]
            ax.plot(run["norm"], least, color=f"C{j}", linestyle="--")
        for seed in runs["seed"].values[1:] if "seed" in runs.dims else ():
            other = runs.sel(seed=seed)
            for j in range(runs.sizes["matrix"] - 1):
                ax.plot(other["norm"], other["ratio"][:, j], color=f"C{j}", alpha=0.3)
        ax.plot([], [], color="0.3", linestyle="--", label="lower bound")
        ax.set(ylim=(0, 1.02), xlabel=r"$\|\theta\|$", title=name.replace("_", " "))
        # Below the panel: bounds of small C are at its foot.
        ax.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    panels[0].set_ylabel(r"$\|W\|_2^2 / \|W\|_F^2$")
    return figure


if __name__ == "__main__":
    sys.exit(main())
