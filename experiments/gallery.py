"""Every figure of `gfdyn.plotting`, in the style and the sizes of a paper.

`gf.plot` of the escape of a ReLU network, of a deep linear one, of a classifier in arc
length, of a stochastic descent and of a batch; and of the first each of the
functions that draw on axes of one's own.

    python -m experiments.gallery [--smoke] [--out DIR]

writes the figures, the trajectories' datasets and claims.json, with their certificates.
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim
from experiments._common.output import write
from experiments._common.settings import read_settings
from gfdyn import plotting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The figures of `gfdyn.plotting`."""

    width: int = 16
    """Width of the networks."""
    depth: int = 6
    """Depth of the linear one."""
    saves: int = 400
    """Times at which trajectories are saved."""
    lanes: int = 20
    """Trajectories of the batch."""
    smoke: bool = False
    """Small and linear networks, whatever the other settings."""
    out: Path = Path("results/gallery")
    """Folder to write to."""


SMOKE = {"width": 4, "depth": 3, "saves": 20, "lanes": 3}
RECORD = {
    name: getattr(gf.diagnostics, name)
    for name in (
        "risk",
        "log_risk",
        "escape_speed",
        "singular_values",
        "stable_rank",
        "layer_norms",
        "neuron_balance",
    )
}


def main(arguments: list[str] | None = None) -> int:
    """Solve, draw, and write."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    solved = {
        "escape": escape(settings),
        "linear": linear(settings),
        "classifier": classifier(settings),
        "descent": descent(settings),
    }
    lanes = batch(settings)
    figures = {name: gf.plot(traj) for name, traj in solved.items()}
    figures["batch"] = gf.plot(lanes)
    figures["one_column"] = gf.plot(
        solved["escape"], layers=(), width=plotting.ONE_COLUMN, caption=False
    )
    dataset = solved["escape"].to_xarray()
    for name, draw in panels(solved["escape"]).items():
        figures[f"panel_{name}"] = single(draw, dataset)
    claims = [
        Claim(
            statement=f"{name}: energy residual over what the certificate allows",
            source="gfdyn",
            measured=float(
                jnp.max(certificate.energy_residual / certificate.residual_limit)
            ),
            high=1.0,
        )
        for name, certificate in (
            *((name, traj.certificate) for name, traj in solved.items()),
            ("batch", lanes.certificate),
        )
        # The noise of a stochastic descent is no flow's.
        if name != "descent"
    ]
    data = {name: traj.to_xarray() for name, traj in solved.items()}
    write(settings.out, settings, claims, data, figures, started)
    return 0


def solver(settings: Settings) -> gf.solvers.AbstractSolver:
    """Of a trial one that compiles fast: its networks meet no kinks."""
    return gf.solvers.Adaptive() if settings.smoke else gf.solvers.ExactKinks()


def escape(settings: Settings) -> gf.Trajectory:
    """A network leaves the origin from ‖θ(0)‖ = 1e-6."""
    data = gf.data.rank_one(8, 3, key=jax.random.key(0), noise=0.1)
    flow = gf.EscapeFlow(gf.Problem(data, gf.losses.squared))
    kind = "identity" if settings.smoke else "relu"
    net = gf.nets.MLP([3, *[settings.width] * 2, 1], key=jax.random.key(1), activation=kind)
    net = gf.nets.scaled_to_norm(net, 1e-6)
    ts = jnp.linspace(0.0, 40.0, settings.saves)
    return gf.solve(flow, net, ts=ts, record=RECORD, solver=solver(settings))


def linear(settings: Settings) -> gf.Trajectory:
    """A deep linear network in physical time."""
    data = gf.data.teacher(40, [5, 4, 3], key=jax.random.key(1))
    widths = [5, *[settings.width] * (settings.depth - 1), 3]
    net = gf.nets.MLP(widths, key=jax.random.key(2), activation="identity")
    net = gf.nets.scaled_to_norm(net, settings.depth**0.5)
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    ts = jnp.insert(jnp.geomspace(1.0, 400.0, settings.saves), 0, 0.0)
    return gf.solve(flow, net, ts=ts, solver=solver(settings))


def classifier(settings: Settings) -> gf.Trajectory:
    """Two points told apart, in the arc clock until their risk is e^-9900."""
    problem, net = gf.theory.le_jegelka.counterexample()
    flow = gf.GradientFlow(problem, clock="arc")
    end = 10.0 if settings.smoke else 199.0
    ts = jnp.linspace(0.0, end, settings.saves)
    return gf.solve(flow, net, ts=ts, solver=solver(settings))


def descent(settings: Settings) -> gf.Trajectory:
    """Stochastic gradient descent with weight decay."""
    data = gf.data.teacher(40, [5, 4, 3], key=jax.random.key(1))
    net = gf.nets.MLP([5, *[settings.width] * 2, 3], key=jax.random.key(4), scale=0.4)
    problem = gf.Problem(data, gf.losses.squared)
    steps = 10 * settings.saves
    return gf.descend(
        problem,
        net,
        0.05,
        steps,
        batch_size=8,
        key=jax.random.key(5),
        weight_decay=0.003,
        save_every=10,
    )


def batch(settings: Settings) -> gf.Trajectory:
    """Escapes of linear networks from many starts, in one program."""
    data = gf.data.teacher(40, [5, 4, 3], key=jax.random.key(1))
    flow = gf.EscapeFlow(gf.Problem(data, gf.losses.squared))
    ts = jnp.linspace(0.0, 40.0, settings.saves)

    def solve(key: jax.Array) -> gf.Trajectory:
        net = gf.nets.MLP([5, settings.width, 3], key=key, activation="identity")
        net = gf.nets.scaled_to_norm(net, jnp.asarray(1e-3))
        return gf.solve(flow, net, ts=ts, solver=gf.solvers.Adaptive())

    return jax.vmap(solve)(jax.random.split(jax.random.key(6), settings.lanes))


def panels(traj: gf.Trajectory) -> dict[str, Callable[[Axes, xr.Dataset], None]]:
    """What is drawn on one pair of axes."""
    return {
        "loss": plotting.loss,
        "log_risk": plotting.log_risk,
        "radius": plotting.radius,
        "escape_speed": plotting.escape_speed,
        "singular_values": partial(plotting.singular_values, layer=2),
        "stable_rank": plotting.stable_rank,
        "balance_drift": plotting.balance_drift,
        "episodes": partial(plotting.episodes, found=gf.escape.episodes(traj)),
    }


def single(draw: Callable[[Axes, xr.Dataset], None], dataset: xr.Dataset) -> Figure:
    """A figure of one column."""
    with plotting.style():
        figure = Figure(layout="constrained")
        ax = figure.subplots()
        draw(ax, dataset)
        if draw in (plotting.stable_rank, plotting.balance_drift):
            # Their labels are kept apart in the layout.
            figure.draw_without_rendering()
            plotting.label_ends(ax)
    return figure


if __name__ == "__main__":
    sys.exit(main())
