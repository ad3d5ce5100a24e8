"""What Le & Jegelka assume of trajectories, and how far it is the case.

The paper has no experiment. Here (E11): signs that are stable, directions that converge to
one without zeros (Assumptions 1 and 2, Claim 1), the curve of Claim 2, and what risk makes
all margins positive. On two opposed neurons in closed form, a linear network, and a random
ReLU network.

    python experiments/le_jegelka_regimes.py [--smoke] [--out DIR]

writes the flows (NAME.nc), the figure and claims.json.
"""

import dataclasses
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import tyro
import xarray as xr
from _claims import Claim
from _descent_slack import held, separable
from _output import write
from matplotlib.figure import Figure

import gfdyn as gf
from gfdyn.nets import dense, sequential
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
    out: Path = Path("results/le_jegelka_regimes")
    """Folder to write to."""


SMOKE = {"length": 8.0, "rtol": 1e-6}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = tyro.cli(Settings, description=__doc__, args=arguments)
    if settings.smoke:
        settings = dataclasses.replace(settings, **SMOKE)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    data, claims = {}, []
    for name, (problem, ts, nets) in {
        "opposed": opposed(settings),
        "linear": along(settings, "identity"),
        "relu": along(settings, "relu"),
    }.items():
        data[name] = observed(problem, ts, nets)
        claims += regime_claims(name, data[name], nets)
    claims += [*rescaling_claims(), *risk_claims()]
    write(settings.out, settings, claims, data, {"regimes": draw(data)}, started)
    return 0


def opposed(settings: Settings) -> tuple[gf.Problem, np.ndarray, gf.nets.AbstractNet]:
    """The counterexample in closed form, by its arc length 2√q."""
    problem, net = lj.counterexample()
    ts = np.linspace(0, settings.length, 61)
    stack = jax.vmap(lambda c: jax.tree.map(lambda w: c * w, net))(jnp.asarray(1 + ts))
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


def observed(problem: gf.Problem, ts: np.ndarray, nets: gf.nets.AbstractNet) -> xr.Dataset:
    """What `lj.regime` sees, and the margins."""
    seen = eqx.filter_jit(lj.regime)(problem, jnp.asarray(ts), nets)
    margins = jax.vmap(lambda net: gf.diagnostics.margin(problem, net))(nets)
    series = ("sign_changes", "gate_changes", "distance", "norms")
    numbers = ("stable_signs_from", "stable_gates_from", "smallest_limit", "near_from")
    return xr.Dataset(
        {name: ("save", np.asarray(getattr(seen, name))) for name in series}
        | {name: float(getattr(seen, name)) for name in numbers}
        | {"margin": ("save", np.asarray(margins))},
        coords={"save": ts},
    )


def regime_claims(name: str, run: xr.Dataset, nets: gf.nets.AbstractNet) -> list[Claim]:
    """Claim 1 on all; the assumptions hold on two neurons, and generically do not."""
    label, end = f"E11, {name}: ", float(run["save"][-1])
    claim_1 = lj.near_the_limit_signs_agree(nets)
    claims = [held(f"{label}signs near the limit", "Claim 1", claim_1)]
    if name == "opposed":
        claims += [
            Claim(
                statement=f"{label}changes of signs and gates",
                source="Assumption 1",
                measured=int(run["sign_changes"].sum() + run["gate_changes"].sum()),
                high=0,
            ),
            Claim(
                statement=f"{label}least |entry| of the limit direction",
                source="Assumption 2",
                measured=float(run["smallest_limit"]),
                low=0.1,
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
                statement=f"{label}least |entry| of the direction at the end",
                source="ours; Assumption 2 wants it away from 0",
                measured=float(run["smallest_limit"]),
                high=0.05,
            ),
            Claim(
                statement=f"{label}last change of a sign, part of the arc length",
                source="ours; Assumption 1 is not certified by then",
                measured=float(run["stable_signs_from"]) / end,
                low=0.02,
            ),
        ]
    return claims


def rescaling_claims() -> list[Claim]:
    """Claim 2's curve v|t sin t|, on a net without biases and one with."""
    ts, x = np.linspace(0.1, 50, 5000), np.random.default_rng(1).normal(size=(8, 3))
    problem = gf.Problem(gf.Dataset(x, np.sign(x[:, :1])), gf.losses.logistic)
    claims = []
    for bias, ends in ((False, {"high": 0}), (True, {"low": 10})):
        blocks = [dense(6, bias=bias), dense(5, bias=bias), dense(1, "identity")]
        net = sequential(3, blocks, key=jr.key(0))
        rng = np.random.default_rng(2)
        net = jax.tree.map(lambda w, rng=rng: jnp.asarray(rng.normal(size=w.shape)), net)
        check = eqx.filter_jit(lj.rescaling_keeps_patterns)(problem, net, ts)
        claims.append(
            Claim(
                statement=f"E11: changes of gates along v|t sin t|, "
                f"{'with' if bias else 'without'} biases",
                source="Claim 2's curve",
                measured=float(check.lhs),
                **ends,
            )
        )
    return claims


def risk_claims() -> list[Claim]:
    """What risk makes all margins positive, of many random nets on two samples."""
    rng = np.random.default_rng(3)
    data = gf.Dataset(np.eye(2), [[1.0], [-1.0]])
    problem = gf.Problem(data, gf.losses.logistic)
    ws = [jnp.asarray(3 * rng.normal(size=(2000, *shape))) for shape in ((4, 2), (1, 4))]
    nets = jax.vmap(lambda *w: gf.nets.MLP.from_weights(w))(*ws)
    printed = jax.vmap(lambda net: lj.small_risk_separates(problem, net, "first"))(nets)
    enough = jax.vmap(lambda net: lj.small_risk_separates(problem, net))(nets)
    claims = []
    for name, check in (("as printed: R < ℓ(0)", printed), ("R < ℓ(0)/N", enough)):
        met = int(jnp.sum(check.applies))
        statement = f"E11: {name} makes margins positive, of {met} nets"
        claims.append(held(statement, "Cor. 1", check))
    return claims


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
