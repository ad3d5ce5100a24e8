"""What Le & Jegelka assume of trajectories, and how far it is the case.

The paper has no experiment. Here (E11): signs that are stable, directions that converge to
one without zeros (Assumptions 1 and 2, Claim 1), the curve of Claim 2, and what risk makes
all margins positive. On two opposed neurons in closed form, a linear network, and a random
ReLU network.

    python -m experiments.le_jegelka.regimes [--smoke] [--out DIR]

writes the flows (NAME.nc), the figure and claims.json.
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
from experiments._common.claims import Claim, held, near, violations
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.le_jegelka._random_nets import normal_net, separable
from gfdyn.nets import dense
from gfdyn.theory import le_jegelka as lj


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """E11."""

    length: float = 30.0
    """Of the trajectories."""
    rtol: float = 1e-7
    """Of the flows."""
    smoke: bool = False
    """Shorter ones."""
    out: Path = Path("results/le_jegelka/regimes")
    """Folder to write to."""


SMOKE = {"length": 8.0}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    data, claims = {}, []
    for name, (problem, ts, nets) in {
        "opposed": opposed(settings),
        "linear": along(settings, "identity"),
        "relu": along(settings, "relu"),
    }.items():
        data[name], claim_1 = observed(problem, ts, nets)
        claims += regime_claims(name, data[name], claim_1)
    claims += [*rescaling_claims(), *risk_claims()]
    write(settings.out, settings, claims, data, {"regimes": draw(data)}, started)
    return 0


def opposed(settings: Settings) -> tuple[gf.Problem, np.ndarray, gf.nets.AbstractNet]:
    """The counterexample in closed form, by its arc length 2√q."""
    problem, net = lj.counterexample()
    ts = np.linspace(0, settings.length, 61)
    scales = 1 + ts
    stack = jax.tree.map(lambda w: jnp.asarray(np.multiply.outer(scales, w)), net)
    return problem, ts, stack


def along(
    settings: Settings, activation: str
) -> tuple[gf.Problem, np.ndarray, gf.nets.AbstractNet]:
    """A random network of eight neurons in arc length."""
    problem, rng = separable(0, 4)
    ws = [0.3 * rng.normal(size=shape) for shape in ((8, 4), (1, 8))]
    traj = gf.solve(
        gf.GradientFlow(problem, clock="arc"),
        gf.nets.MLP.from_weights(ws, activation),
        ts=np.linspace(0, settings.length, 61),
        solver=gf.solvers.ExactKinks(rtol=settings.rtol),
    )
    return problem, np.asarray(traj.ts), traj.net


def observed(
    problem: gf.Problem, ts: np.ndarray, nets: gf.nets.AbstractNet
) -> tuple[xr.Dataset, int]:
    """What `lj.regime` sees, and the margins; and how often Claim 1 is violated."""
    seen, margins, claim_1 = jax.tree.map(
        np.asarray, measured(problem, jnp.asarray(ts), nets)
    )
    series = ("sign_changes", "gate_changes", "distance", "norms")
    numbers = ("stable_signs_from", "stable_gates_from", "smallest_limit", "near_from")
    data = xr.Dataset(
        {name: ("save", getattr(seen, name)) for name in series}
        | {name: float(getattr(seen, name)) for name in numbers}
        | {"margin": ("save", margins)},
        coords={"save": ts},
    )
    return data, int(claim_1)


@eqx.filter_jit
def measured(
    problem: gf.Problem, ts: Array, nets: gf.nets.AbstractNet
) -> tuple[lj.Regime, Array, Array]:
    """The regime, the margins, and how often Claim 1 is violated."""
    margins = jax.vmap(lambda net: gf.diagnostics.margin(problem, net))(nets)
    seen = lj.regime(problem, ts, nets)
    return seen, margins, violations(lj.near_the_limit_signs_agree(nets))


def regime_claims(name: str, run: xr.Dataset, claim_1: int) -> list[Claim]:
    """Claim 1 on all; the assumptions hold on two neurons, and generically do not."""
    label = f"E11, {name}: "
    claims = [held(f"{label}signs near the limit", "Claim 1", claim_1)]
    if name == "opposed":
        claims += [
            Claim(
                statement=f"{label}changes of signs and gates",
                source="Assumption 1",
                measured=int(run["sign_changes"].sum() + run["gate_changes"].sum()),
                high=0,
            ),
            near(
                f"{label}least |entry| of the limit direction, 1/√20",
                "Assumption 2; closed form",
                float(run["smallest_limit"]),
                1 / math.sqrt(20),
                1e-12,
            ),
        ]
    else:
        claims += [
            Claim(
                statement=f"{label}smallest margin at the end",
                source="Assumption 3, norms diverge",
                measured=float(run["margin"][-1]),
                low=0,
            ),
            Claim(
                statement=f"{label}changes of signs on the way",
                source="ours; Assumption 1 is not met from the start",
                measured=int(run["sign_changes"].sum()),
                low=1,
            ),
        ]
    if name == "relu":
        claims.append(
            Claim(
                statement=f"{label}least |entry| of the direction at the end",
                source="ours, 2e-4 to 4e-3; Assumption 2 wants it above 0",
                measured=float(run["smallest_limit"]),
                high=4.5e-3,
            )
        )
    return claims


def rescaling_claims() -> list[Claim]:
    """Claim 2's curve v|t sin t|, on a net without biases and one with."""
    ts, x = np.linspace(0.1, 50, 5000), np.random.default_rng(1).normal(size=(8, 3))
    problem = gf.Problem(gf.Dataset(x, np.sign(x[:, :1])), gf.losses.logistic)
    claims = []
    for bias, low, high in ((False, -np.inf, 0), (True, 10, np.inf)):
        blocks = [dense(6, bias=bias), dense(5, bias=bias), dense(1, "identity")]
        net = normal_net(3, blocks, np.random.default_rng(2))
        check = eqx.filter_jit(lj.rescaling_keeps_patterns)(problem, net, ts)
        claims.append(
            Claim(
                statement=f"E11: changes of gates along v|t sin t|, "
                f"{'with' if bias else 'without'} biases",
                source="Claim 2's curve",
                measured=float(check.lhs),
                low=low,
                high=high,
            )
        )
    return claims


def risk_claims() -> list[Claim]:
    """What risk makes all margins positive, of many random nets on two samples."""
    rng = np.random.default_rng(3)
    data = gf.Dataset(np.eye(2), [[1.0], [-1.0]])
    problem = gf.Problem(data, gf.losses.logistic)
    ws = [3 * rng.normal(size=(2000, *shape)) for shape in ((4, 2), (1, 4))]
    nets = eqx.tree_at(
        lambda net: net.matrices,
        gf.nets.MLP.from_weights([w[0] for w in ws]),
        tuple(jnp.asarray(w) for w in ws),
    )
    claims = []
    for version, name in (("first", "as printed: R < ℓ(0)"), ("corrected", "R < ℓ(0)/N")):
        violated, met = map(int, separated(problem, nets, version))
        statement = f"E11: {name} makes margins positive, of {met} nets"
        known_false = version == "first"
        claims.append(held(statement, "Cor. 1", violated, known_false=known_false))
    return claims


@eqx.filter_jit
def separated(problem: gf.Problem, nets: gf.nets.MLP, version: Any) -> tuple[Array, Array]:
    """Of how many nets of a stack the risk is small but a margin is not positive, and of
    how many it is small."""
    check = jax.vmap(lambda net: lj.small_risk_separates(problem, net, version))(nets)
    return violations(check), jnp.sum(check.applies)


def draw(data: dict[str, xr.Dataset]) -> Figure:
    """Distances of the directions from the last one, and changes of signs."""
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    ax = figure.subplots()
    for i, (name, run) in enumerate(data.items()):
        distance = run["distance"][:-1]
        ax.plot(run["save"][:-1], np.maximum(distance, 1e-16), color=f"C{i}", label=name)
        changed = (run["sign_changes"] > 0)[:-1]
        ax.plot(run["save"][:-1][changed], np.maximum(distance[changed], 1e-16), f"C{i}o")
    ax.plot([], [], "o", color="0.3", label="signs change")
    ax.set(yscale="log", xlabel="arc length", ylabel="distance of directions from the last")
    ax.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    sys.exit(main())
