"""Where the first version of Le & Jegelka is false, and the corrected one is not.

The paper has no experiment. Here, by gradient flow: two opposed neurons in closed form
(E1), random networks (E2), the velocities of Lemma 4 at a point (E3), and neurons in
classes of equal activation (E4). The first version claims that all matrices align and come
near rank one, and that W₂ᵀW₂ − W₁W₁ᵀ stands still; its claims are marked as such.

    python -m experiments.le_jegelka.refutation [--smoke] [--out DIR]

writes the flows (opposed.nc, generic.nc, classes.nc), the figure and claims.json.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim, near
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.le_jegelka._generic_nets import generic, generic_claims
from experiments.le_jegelka._neuron_classes import FIRST, class_claims, classes
from gfdyn.theory import Check, le_jegelka as lj


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """E1 to E4."""

    t1: float = 1000.0
    """How long the two opposed neurons run."""
    seeds: int = 6
    """Random networks."""
    length: float = 30.0
    """Of their trajectories."""
    rtol: float = 1e-11
    """Of the other flows."""
    smoke: bool = False
    """For a while only, and one random network."""
    out: Path = Path("results/le_jegelka/refutation")
    """Folder to write to."""


SMOKE = {"t1": 20.0, "rtol": 1e-10, "seeds": 1, "length": 8.0}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    data = {
        "opposed": opposed(settings),
        "generic": generic(settings.seeds, settings.length),
        "classes": classes(settings.rtol),
    }
    claims = [*opposed_claims(data["opposed"]), *generic_claims(data["generic"])]
    claims += point_claims()
    claims += class_claims(data["classes"], settings.rtol)
    figures = {"refutation": draw(data)}
    write(settings.out, settings, claims, data, figures, started)
    return 0


def opposed(settings: Settings) -> xr.Dataset:
    """E1: the flow of `lj.counterexample` and its closed form, for two angles. An ordinary
    solve, as neither neuron meets a kink."""
    ts = np.concatenate([[0.0], np.geomspace(0.1, settings.t1, 60)])
    solver = gf.solvers.Adaptive(rtol=settings.rtol, atol=settings.rtol)
    q, runs = np.asarray(lj.counterexample_square(ts)), []
    degrees = (120.0, 91.0)
    for angle in degrees:
        problem, net = lj.counterexample(math.radians(angle))
        traj = gf.solve(gf.GradientFlow(problem), net, ts=ts, solver=solver)
        runs.append(jax.tree.map(np.asarray, opposed_series(problem, net, traj.net)))
    dims = ("angle", "time")
    return xr.Dataset(
        {name: (dims, np.stack([run[name] for run in runs])) for name in runs[0]}
        | {"closed_form": ("time", q)},
        coords={"angle": list(degrees), "time": ts},
    )


@eqx.filter_jit
def opposed_series(
    problem: gf.Problem, net: gf.nets.MLP, nets: gf.nets.AbstractNet
) -> dict[str, Array]:
    """What the claims of E1 are on, at each save."""
    spectra = jax.vmap(lambda n: lj.tail_spectra(n, "first"))(nets)
    m = jax.vmap(lambda n: n.conserved()[0].matrix)(nets)
    on = jax.vmap(lambda n: n.preactivations(problem.data.x)[0] > 0)(nets)
    bound = lj.tail_constants(net, version="first").bound
    return {
        "ratio": spectra.ratio[:, 0],
        "tail": spectra.tail[:, 0],
        "off_diagonal": m[:, 0, 1],
        "diagonal": jnp.max(jnp.abs(jnp.diagonal(m, axis1=1, axis2=2)), axis=1),
        "alignment": jax.vmap(lambda n: lj.alignment(n, "first")[0])(nets),
        "margin": jax.vmap(problem.outputs)(nets)[:, 0, 0],
        "risk": jax.vmap(problem.risk)(nets),
        "gates": jnp.any(on != on[:1], axis=(1, 2)).astype(m.dtype),
        "bound": jnp.broadcast_to(bound, (len(m),)),
    }


def opposed_claims(flow: xr.Dataset) -> list[Claim]:
    """The closed form holds, and with it the first version does not."""
    claims = []
    for angle in flow["angle"].values:
        of, q = flow.sel(angle=angle), flow["closed_form"]
        cosine, name = abs(math.cos(math.radians(angle))), f"E1, {angle:.0f}°: "
        gaps = {
            "q against log q + Ei(q)": of["margin"] - q,
            "ratio of W1 against (1 + |cos θ|)/2": of["ratio"] - (1 + cosine) / 2,
            "tail of W1 against q (1 − |cos θ|)": of["tail"] - q * (1 - cosine),
            "M_12 against −q (1 + cos θ)": of["off_diagonal"] + q * (1 - cosine),
        }
        claims += [
            Claim(
                statement=f"{name}{what}, largest gap",
                source="ours, closed form",
                measured=float(abs(gap).max()),
                high=1e-8,
            )
            for what, gap in gaps.items()
        ]
        claims += [
            Claim(
                statement=f"{name}changes of gates; signs and gates are stable",
                source="Assumption 1",
                measured=float(of["gates"].max()),
                high=0,
            ),
            Claim(
                statement=f"{name}drift of the diagonal of M",
                source="corrected Lemma 2",
                measured=float(of["diagonal"].max()),
                high=1e-9,
            ),
            Claim(
                statement=f"{name}{FIRST}drift of M",
                source="first version, Theorem 1",
                measured=float(np.ptp(of["off_diagonal"].values)),
                high=1e-6,
                known_false=True,
            ),
            Claim(
                statement=f"{name}{FIRST}tail of W1 over its bound D",
                source="first version, Theorem 2",
                measured=float((of["tail"] / of["bound"]).max()),
                high=1,
                known_false=True,
            ),
            Claim(
                statement=f"{name}{FIRST}ratio of W1 at the end",
                source="first version, Cor. 1",
                measured=float(of["ratio"][-1]),
                low=0.99,
                known_false=True,
            ),
        ]
    return claims


def point_claims() -> list[Claim]:
    """E3: Lemma 4 of the corrected version at one point."""
    x = np.asarray([[1.0, 0.5]]) / math.sqrt(1.25)
    problem = gf.Problem(gf.Dataset(x, np.ones((1, 1))), gf.losses.logistic)
    weights = [[[10.0, 2.0], [-0.1, -0.05]], [[0.1, 10.0]]]
    net = gf.nets.MLP.from_weights([np.asarray(w) for w in weights])
    velocity, ranks, lemma = jax.tree.map(np.asarray, point(problem, net))
    into, out = float(velocity.incoming[0, 1]), float(velocity.outgoing[0, 1])
    gap = np.max(np.abs(lemma.lhs - lemma.rhs)) / np.max(np.abs(lemma.lhs))
    return [
        near("E3: velocity of (W1 W1ᵀ)_12", "corrected Lemma 4", into, -0.0030424, 1e-7),
        near("E3: velocity of (W2ᵀ W2)_12", "corrected Lemma 4", out, 26.7735, 1e-4),
        Claim(
            statement="E3: both against their sums, relative gap",
            source="corrected Lemma 4, eqs. 65 and 67",
            measured=float(gap),
            high=1e-13,
        ),
        Claim(
            statement="E3: largest rank of a velocity",
            source="corrected Remark 1",
            measured=int(ranks.max()),
            low=2,
            high=2,
        ),
        Claim(
            statement=f"E3: {FIRST}velocity of M_12",
            source="first version, eq. 5",
            measured=abs(out - into),
            high=1e-6,
            known_false=True,
        ),
    ]


@eqx.filter_jit
def point(problem: gf.Problem, net: gf.nets.MLP) -> tuple[Any, Array, Check]:
    """The velocities of both Gram matrices, their ranks, and Lemma 4."""
    [velocity] = gf.diagnostics.gram_velocities(problem, net).values()
    return velocity, velocity.ranks(), lj.noninvariance(problem, net)


def draw(data: dict[str, xr.Dataset]) -> Figure:
    """Tails of the two neurons; M within and across classes."""
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    left, middle = figure.subplots(1, 2)
    flow = data["opposed"].isel(time=slice(1, None))
    for i, angle in enumerate(flow["angle"].values):
        of, colour = flow.sel(angle=angle), f"C{i}"
        left.plot(of["time"], of["tail"], color=colour, label=f"tail, {angle:.0f}°")
        left.plot(of["time"], of["bound"], color=colour, linestyle="--")
    left.plot([], [], color="0.3", linestyle="--", label="bound D of the first version")
    left.set(xscale="log", yscale="log", xlabel="t", ylabel=r"$\sigma_2^2$ of $W_1$")
    left.set_title("Two opposed neurons")
    left.legend(fontsize=8)
    flow = data["classes"].isel(save=slice(1, None))
    for i, name in enumerate(("three", "two")):
        progress = flow[f"{name}_clock"] / flow[f"{name}_clock"][-1]
        colour = f"C{i}"
        middle.plot(progress, flow[f"{name}_across"], color=colour, label=f"{name} layers")
        middle.plot(progress, flow[f"{name}_within"], color=colour, linestyle=":")
    middle.plot([], [], color="0.3", label="across classes")
    middle.plot([], [], color="0.3", linestyle=":", label="within classes")
    middle.set(yscale="log", xlabel="clock / its end", ylabel=r"$|M - M(0)|$")
    middle.set_title("Classes of neurons")
    middle.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    sys.exit(main())
