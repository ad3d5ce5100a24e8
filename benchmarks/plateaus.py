"""Field evaluations along plateaus: a method that is stabilised, and one that is not.

Networks of some 1e5 parameters (linear, tanh, ReLU) are brought to a plateau of a teacher
whose directions differ in strength, and followed along it; of ReLU one on orthogonal data,
where no kink on the plateau matters, and one on random data, where they bound each step. By
Tsit5 and a Chebyshev method in turn (`Stabilised`, `ExactKinks`), and by an explicit pair
alone (`Adaptive`, and `ExactKinks` with Dopri5, which has as many stages as Tsit5, and its
stability). The error is the distance of the end to a run at a tight tolerance. A last case
is an escape, which is not stiff.

    python benchmarks/plateaus.py [--smoke]

writes `plateaus.json`, with the machine and the versions. `saved` is how many times more
evaluations the plain method takes for the error that the stabilised one has, by the line
through its runs, or the least of them where all are more accurate.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from _descents import flat
from _report import write_report

import gfdyn as gf


PACKAGES = ("jax", "diffrax", "equinox", "numpy")


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        width: of the hidden layers.
        samples: of the teacher.
        rtols: tolerances of both methods.
        reference: that of the run that is taken for the truth.
        max_steps: of a run.
        out: where the report goes.
        smoke: a trial, of small size.
    """

    width: int = 300
    samples: int = 40
    rtols: tuple[float, ...] = (1e-4, 1e-5, 1e-6, 1e-7)
    reference: float = 1e-9
    max_steps: int = 50_000
    out: Path = Path(__file__).parent
    smoke: bool = False


@dataclass(frozen=True)
class Stretch:
    """A part of a flow from weights of this scale, between two times."""

    scale: float
    begin: float
    end: float


# The second plateau of each network of width 300, or the third, by its risk over time; and
# what is followed of a small network.
TRIAL = Stretch(0.5, 10.0, 60.0)
STRETCHES = {
    "linear": (Stretch(0.002, 200.0, 800.0), TRIAL),
    "tanh": (Stretch(0.002, 200.0, 800.0), TRIAL),
    "relu": (Stretch(0.002, 80.0, 500.0), TRIAL),
    "relu, kinks": (Stretch(0.002, 55.0, 100.0), TRIAL),
    "linear, not stiff": (Stretch(0.002, 10.0, 20.0), Stretch(0.5, 0.1, 1.1)),
}


@dataclass(frozen=True)
class Case:
    """A flow from where a stretch begins, for so long."""

    name: str
    flow: gf.GradientFlow
    net: gf.nets.AbstractNet
    duration: float
    stabilised: Any
    plain: Any


def cases(settings: Settings) -> Iterator[Case]:
    """Each network on its plateau, and a linear one in its escape."""
    smooth = gf.solvers.Stabilised, gf.solvers.Adaptive

    def exact(rtol: float) -> gf.solvers.ExactKinks:
        return gf.solvers.ExactKinks(rtol=rtol, method=dfx.Dopri5())

    for name, (full, trial) in STRETCHES.items():
        stretch = trial if settings.smoke else full
        kind, width = name.split(",")[0], settings.width
        stabilised, plain = (gf.solvers.ExactKinks, exact) if kind == "relu" else smooth
        if name == "relu":
            flow = gf.GradientFlow(orthogonal(settings.samples, max(width, 20)))
            widths = [flow.problem.data.x.shape[1], width, 5]
        else:
            flow = gf.GradientFlow(teacher(settings.samples))
            widths = [20, width, width, 5]
        net = network(kind, widths, stretch.scale)
        solver = stabilised(rtol=1e-6)
        start = gf.solve(flow, net, ts=[stretch.begin], solver=solver, max_steps=50_000)
        duration = stretch.end - stretch.begin
        yield Case(name, flow, start.final, duration, stabilised, plain)


def network(kind: str, widths: list[int], scale: float) -> gf.nets.AbstractNet:
    """A network of these widths, its weights N(0, scale²)."""
    key = jax.random.key(0)
    activation = "relu" if kind == "relu" else "identity"
    net = gf.nets.MLP(widths, key=key, activation=activation, scale=scale)
    if kind != "tanh":
        return net
    inner = widths[1], len(widths) - 2
    tanh = eqx.nn.MLP(widths[0], widths[-1], *inner, jnp.tanh, use_bias=False, key=key)
    with_weights = eqx.tree_at(
        lambda m: [layer.weight for layer in m.layers], tanh, list(net.weights)
    )
    return gf.nets.wrap(with_weights)


def teacher(samples: int) -> gf.Problem:
    """A linear teacher whose directions have strengths 3, 0.3, 0.03."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(n, 3)))[0] for n in (5, 20))
    x = rng.normal(size=(samples, 20))
    y = x @ right @ np.diag([3.0, 0.3, 0.03]) @ left.T
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared)


def orthogonal(samples: int, inputs: int) -> gf.Problem:
    """Orthogonal samples, each with one of three orthogonal targets, of lengths 10, 1 and
    0.01."""
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.normal(size=(inputs, samples)))[0].T * np.sqrt(samples)
    targets = np.linalg.qr(rng.normal(size=(5, 3)))[0] * [10.0, 1.0, 0.01]
    y = targets.T[np.arange(samples) % 3]
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared)


def run(case: Case, solver: Any, settings: Settings) -> tuple[np.ndarray, dict[str, Any]]:
    """The end, and what it took; seconds without compilation."""

    def solve() -> gf.Trajectory:
        return gf.solve(
            case.flow,
            case.net,
            ts=[case.duration],
            solver=solver,
            max_steps=settings.max_steps,
            throw=False,
        )

    solve()
    begin = time.perf_counter()
    traj = jax.block_until_ready(solve())
    seconds = time.perf_counter() - begin
    numbers = traj.stats
    row = {
        "evaluations": int(numbers["num_field_evaluations"]),
        "steps": int(numbers["num_steps"] + numbers["num_rejected"]),
        "events": int(numbers["num_crossings"] + numbers["num_slides"]),
        "energy_residual": float(traj.certificate.energy_residual),
        "finished": bool(traj.result == gf.RESULTS.successful),
        "seconds": seconds,
    }
    return flat(traj.final_direction), row


def of_case(case: Case, settings: Settings) -> dict[str, Any]:
    """All runs of a case, and what is saved at each tolerance."""
    truth, _ = run(case, case.plain(rtol=settings.reference), settings)
    rows: dict[str, list[dict[str, Any]]] = {"stabilised": [], "plain": []}
    for name, found in rows.items():
        for rtol in settings.rtols:
            end, row = run(case, getattr(case, name)(rtol=rtol), settings)
            error = float(np.linalg.norm(end - truth) / np.linalg.norm(truth))
            found.append({"rtol": rtol, "error": error, **row})
            print(case.name, name, found[-1], flush=True)
    errors, costs = (
        np.log([row[key] for row in reversed(rows["plain"])])
        for key in ("error", "evaluations")
    )
    # In the order of their errors, between which the cost is a line
    order = np.argsort(errors)
    saved = [
        float(
            np.exp(np.interp(np.log(row["error"]), errors[order], costs[order]))
            / row["evaluations"]
        )
        for row in rows["stabilised"]
    ]
    return {"case": case.name, "saved": saved, **rows}


def main(settings: Settings) -> None:
    """Run all cases and write the report."""
    if settings.smoke:
        settings = Settings(
            width=6, samples=8, rtols=(1e-6, 1e-7), out=settings.out, smoke=True
        )
    jax.config.update("jax_enable_x64", True)
    rows = [of_case(case, settings) for case in cases(settings)]
    write_report(settings.out / "plateaus.json", PACKAGES, rows=rows)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
