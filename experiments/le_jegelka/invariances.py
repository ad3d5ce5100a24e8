"""What gradient flow conserves on which architecture: the table of Le & Jegelka, corrected.

The paper has no experiment. Here (E8) by exact gradient flow through crossings and slides:
every architecture with ReLU, leaky ReLU and linear units, and the logistic, exponential and
squared loss. What `gf.diagnostics.invariants` lists stands still; what is not listed moves:
other entries for units with kinks, and each way to flatten that is wrong. And on the way
the drift law: its integral is what M has moved by.

    python -m experiments.le_jegelka.invariances [--smoke] [--out DIR]

writes invariances.nc, the figure and claims.json.
"""

import dataclasses
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Int
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.le_jegelka._architectures import GRAPH, NAMES, build, controls
from experiments.le_jegelka._drift_law import drift_claims
from gfdyn._program_limit import make_room
from gfdyn._progress import progress_bar


LOSSES = {
    "logistic": gf.losses.logistic,
    "exponential": gf.losses.exponential,
    "squared": gf.losses.squared,
}
ACTIVATIONS = ("relu", "leaky_relu(0.1)", "identity")
MOVES = 1e-2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """E8."""

    architectures: tuple[str, ...] = NAMES
    """Which architectures."""
    activations: tuple[str, ...] = ACTIVATIONS
    """Which activations."""
    losses: tuple[str, ...] = tuple(LOSSES)
    """Which losses."""
    samples: int = 16
    """Of normal inputs and random signs."""
    t1: float = 20.0
    """How long each flow runs."""
    rtol: float = 1e-7
    """Of the flows."""
    seed: int = 0
    """Of nets and data."""
    smoke: bool = False
    """One architecture with one kind of units and one loss."""
    out: Path = Path("results/le_jegelka/invariances")
    """Folder to write to."""


SMOKE: dict[str, Any] = {
    "architectures": ("conv–Free",),
    "activations": ("identity",),
    "losses": ("logistic",),
}


class OneOf(gf.losses.AbstractLoss):
    """One of the losses by its number: one compiled flow does for all of them."""

    number: Int[Array, ""]

    def targets(self, y: Array) -> Array:
        """Signs ±1."""
        return gf.losses.logistic.targets(y)

    def values(self, outputs: Array, targets: Array) -> Array:
        """ℓ of the loss."""
        each = [loss.values for loss in LOSSES.values()]
        return jax.lax.switch(self.number, each, outputs, targets)

    def log_values(self, outputs: Array, targets: Array) -> Array:
        """log ℓ of the loss."""
        each = [loss.log_values for loss in LOSSES.values()]
        return jax.lax.switch(self.number, each, outputs, targets)

    def margins(self, outputs: Array, targets: Array) -> Array:
        """y f."""
        return gf.losses.logistic.margins(outputs, targets)


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    rows = []
    nets = list(itertools.product(settings.architectures, settings.activations))
    for name, activation in progress_bar(
        iterable=nets, desc="nets", disable=settings.smoke
    ):
        rows += flows(settings, name, activation)
        make_room()
    table = as_dataset(settings, rows)
    claims = table_claims(settings, rows)
    if not settings.smoke:
        claims += drift_claims(settings.rtol)
    write(
        settings.out,
        settings,
        claims,
        {"invariances": table},
        {"invariances": draw(table)},
        started,
    )
    return 0


def flows(settings: Settings, name: str, activation: str) -> list[dict[str, Any]]:
    """An architecture with one activation, by all losses: what stands still, and moves."""
    rng = np.random.default_rng(settings.seed)
    size = build(name, activation, settings.seed).in_size
    x = rng.normal(size=(settings.samples, size))
    net = with_unlike_units(name, activation, settings.seed, x)
    data = gf.Dataset(x, np.sign(rng.normal(size=(settings.samples, 1))))
    solver = gf.solvers.ExactKinks(rtol=settings.rtol)
    rows = []
    for loss in settings.losses:
        number = jnp.asarray(list(LOSSES).index(loss))
        traj = gf.solve(
            gf.GradientFlow(gf.Problem(data, OneOf(number))),
            net,
            ts=np.linspace(0, settings.t1, 9),
            solver=solver,
            max_steps=5000,
            throw=False,
        )
        moved = moves(name, traj)
        rows.append(
            {
                "architecture": name,
                "activation": activation,
                "loss": loss,
                "stays": float(traj.certificate.balance_drift),
                "moves": moved,
                "slides": int(traj.stats["num_slides"]),
                "reached": float(traj.final_time) / settings.t1,
            }
        )
    return rows


def with_unlike_units(
    name: str, activation: str, seed: int, x: np.ndarray
) -> gf.nets.AbstractNet:
    """The net of the first seed from this one on with two units in each layer that not
    all samples open alike: where all are dead, or alike, everything is conserved.
    The graph has twins, and layers of one."""
    candidates = (build(name, activation, s) for s in itertools.count(seed))

    def serves(net: gf.nets.AbstractNet) -> bool:
        open_for = [np.asarray(z) > 0 for z in net.preactivations(jnp.asarray(x))]
        return name == GRAPH or all(np.any(on != on[:, :1]) for on in open_for)

    return next(net for net in candidates if serves(net))


@eqx.filter_jit
def moves(name: str, traj: gf.Trajectory) -> dict[str, Array]:
    """How far each control gets from where it was."""
    values = jax.vmap(lambda net: controls(name, net))(traj.net)
    return {key: jnp.max(jnp.abs(m - m[:1])) for key, m in values.items()}


def as_dataset(settings: Settings, rows: list[dict[str, Any]]) -> xr.Dataset:
    """The table; of what moves, the control that does least, NaN where there is none."""
    coords = {
        "architecture": list(settings.architectures),
        "activation": list(settings.activations),
        "loss": list(settings.losses),
    }
    shape = tuple(len(axis) for axis in coords.values())
    table = {name: [row[name] for row in rows] for name in ("stays", "slides", "reached")}
    table["moves"] = [
        min((float(m) for m in row["moves"].values()), default=np.nan) for row in rows
    ]
    columns = {name: (tuple(coords), np.reshape(v, shape)) for name, v in table.items()}
    return xr.Dataset(columns, coords=coords)


def table_claims(settings: Settings, rows: list[dict[str, Any]]) -> list[Claim]:
    """Of each architecture and activation, over the losses."""
    claims = [
        Claim(
            statement="E8: flows that do not reach their end",
            source="ours",
            measured=sum(row["reached"] < 1 for row in rows),
            high=0,
        )
    ]
    for name in settings.architectures:
        for activation in settings.activations:
            cells = [
                row
                for row in rows
                if (row["architecture"], row["activation"]) == (name, activation)
            ]
            label = f"E8, {name}, {activation}: "
            slides = sum(row["slides"] for row in cells)
            claims.append(
                Claim(
                    statement=f"{label}drift of what is conserved, {slides} slides",
                    source="corrected Theorem 1 and Lemma 2",
                    measured=max(row["stays"] for row in cells),
                    high=100 * settings.rtol,
                )
            )
            claims += [
                Claim(
                    statement=f"{label}drift of {control}",
                    source="not conserved",
                    measured=min(float(row["moves"][control]) for row in cells),
                    low=MOVES,
                )
                for control in cells[0]["moves"]
            ]
    return claims


def draw(table: xr.Dataset) -> Figure:
    """Drifts in colour: what is conserved, and what is not."""
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    names = table["architecture"].values
    columns = [
        f"{activation.split('_')[0].replace('identity', 'linear')}, {loss}"
        for activation in table["activation"].values
        for loss in table["loss"].values
    ]
    titles = {"stays": "What is conserved", "moves": "The least of what is not"}
    images = []
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        drift = np.log10(np.maximum(table[name].values.reshape(len(names), -1), 1e-16))
        images.append(ax.imshow(drift, vmin=-12, vmax=0, cmap="viridis", aspect="auto"))
        ax.set(title=title, yticks=range(len(names)), yticklabels=names)
        ax.set_xticks(range(len(columns)), columns, rotation=90)
    figure.colorbar(images[0], ax=axes, label=r"$\log_{10}$ of the drift")
    return figure


if __name__ == "__main__":
    sys.exit(main())
