"""Whole chains of saddles: steps, and how they grow as the start shrinks.

* `linear`: balanced spectral networks of depth 2, 3 and 4 (`gf.escape.chain`), for targets
  whose strengths are far apart, so that each direction is learned before the next one moves
  even from 1e-2, and for such that are near, so that from 1e-2 two are learned at once.
  Risks of the plateaus and times of the escapes against closed forms.
* `orthogonal`: two layers of ReLU on orthogonal data (`gf.flows.BranchFlow`), with a saddle
  for each sign of the targets.
* `teachers`: two layers of ReLU that learn two orthogonal neurons, from white inputs, of
  strengths 4 and 0.4, from e^-10 through both saddles to a risk of 1e-9. `away` is how far
  descents of several steps are at `t1`, over the norm: from there on in proportion to the
  step, if they have come to the same flow.

    python benchmarks/chains.py [--smoke]

writes `chains.json`, with the machine and the versions.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import tyro
from _closed_forms import log_half_time
from _descents import descents, flat
from _report import write_report

import gfdyn as gf


PACKAGES = ("jax", "diffrax", "equinox", "numpy")
STRENGTHS = {"far apart": (16.0, 2.0, 0.25), "near": (3.0, 2.0, 0.8)}
TEACHER = np.array([4.0, 0.4])
TARGETS = np.array([1.0, 2.0, -1.5, 0.7, -0.4])


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        depths: of the linear networks.
        log_norms: log ‖θ‖ at the start, the largest first.
        teachers: how many seeds.
        samples: of each teacher.
        width: of its students.
        t1: when descents are compared.
        steps: of the descents.
        out: where the report goes.
        smoke: a trial, of small size.
    """

    depths: tuple[int, ...] = (2, 3, 4)
    log_norms: tuple[float, ...] = (math.log(1e-2), -10.0, -60.0, -200.0)
    teachers: int = 10
    samples: int = 60
    width: int = 10
    t1: float = 200.0
    steps: tuple[float, ...] = (2e-3, 1e-3, 5e-4)
    out: Path = Path(__file__).parent
    smoke: bool = False


def linear(name: str, depth: int, settings: Settings) -> dict[str, Any]:
    """A chain from each norm, and how far it is from the closed forms."""
    strengths = np.array(STRENGTHS[name])
    rng = np.random.default_rng(0)
    x = math.sqrt(12) * np.linalg.qr(rng.normal(size=(12, 3)))[0]
    problem = gf.Problem(gf.Dataset(x, x * strengths), gf.losses.squared)
    runs = []
    for log_norm in settings.log_norms:
        net = gf.escape.spectral(problem, depth, math.exp(log_norm))
        chain = gf.escape.chain(problem, net)
        log_gain = log_norm - 0.5 * math.log(3 * depth)
        branches = np.concatenate([passage.branches for passage in chain.passages])
        times = np.concatenate([passage.log_times for passage in chain.passages])
        exact = [log_half_time(float(strengths[b]), depth, log_gain) for b in branches]
        risks = [0.5 * sum(strengths[~s.learned] ** 2) for s in chain.saddles]
        found = [saddle.risk for saddle in chain.saddles]
        runs.append(
            {
                "log_norm": log_norm,
                "steps": chain.num_steps,
                "saddles": len(chain.passages),
                "error_log_time": float(np.abs(times - exact).max()),
                "error_risk": float(np.abs(np.subtract(found, risks)).max()),
            }
        )
    growth = runs[-1]["steps"] / runs[0]["steps"]
    return {"strengths": name, "depth": depth, "growth": growth, "runs": runs}


def along(traj: gf.Trajectory) -> dict[str, Any]:
    """What a flow took, and what it kept to."""
    numbers, certificate = traj.stats, traj.certificate
    return {
        "finished": traj.stopped_by == "RiskBelow",
        "steps": int(numbers["num_steps"]),
        "evaluations": int(numbers["num_field_evaluations"]),
        "crossings": int(numbers["num_crossings"]),
        "choices": int(certificate.choices),
        "energy_residual": float(certificate.energy_residual),
        "balance_drift": float(certificate.balance_drift),
        "risk_increase": float(certificate.risk_increase),
    }


def fitted(problem: gf.Problem, net: gf.nets.MLP) -> gf.Trajectory:
    """From a small network past all saddles to the fit."""
    return gf.solve(
        gf.flows.BranchFlow(problem),
        net,
        jnp.inf,
        ts=gf.AcceptedSteps(256),
        stop=gf.stopping.RiskBelow(1e-9),
        solver=gf.solvers.ExactKinks(rtol=1e-6),
        throw=False,
    )


def orthogonal(settings: Settings) -> list[dict[str, Any]]:
    """Two saddles, from each scale of the weights."""
    problem = gf.Problem(
        gf.Dataset(2 * jnp.eye(5), jnp.asarray(TARGETS)[:, None]), gf.losses.squared
    )
    nets = {
        log_scale: gf.nets.MLP([5, 12, 1], key=jr.key(0), scale=math.exp(log_scale))
        for log_scale in settings.log_norms
    }
    return [
        {"log_scale": log_scale, "saddles": 2, **along(fitted(problem, net))}
        for log_scale, net in nets.items()
    ]


def teacher(seed: int, settings: Settings) -> tuple[gf.Problem, gf.nets.MLP]:
    """Two neurons, and a student at e^-10."""
    rng = np.random.default_rng(seed)
    features = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    outputs = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    half = settings.samples // 2
    x = np.linalg.qr(rng.normal(size=(half, 6)))[0] * math.sqrt(half)
    x = np.concatenate([x, -x])
    y = (np.maximum(x @ features, 0) * TEACHER) @ outputs.T
    widths = [6, settings.width, 2]
    net = gf.nets.MLP(widths, key=jr.key(seed + 100), scale=math.exp(-10))
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared), net


def teachers(settings: Settings) -> list[dict[str, Any]]:
    """Each to its fit, and beside descents at `t1`."""
    starts = [teacher(seed, settings) for seed in range(settings.teachers)]
    flows = [gf.GradientFlow(problem) for problem, _ in starts]
    nets = [net for _, net in starts]
    ends = descents(True, flows, nets, settings.steps, settings.t1)
    rows = []
    for seed, (problem, net) in enumerate(starts):
        begin = time.perf_counter()
        traj = jax.block_until_ready(fitted(problem, net))
        seconds = time.perf_counter() - begin
        there = gf.solve(
            gf.flows.BranchFlow(problem),
            net,
            settings.t1,
            solver=gf.solvers.ExactKinks(rtol=1e-7),
        )
        end = flat(there.final)
        away = np.linalg.norm(ends[seed] - end, axis=1) / np.linalg.norm(end)
        told = {"seed": seed, "saddles": 2, **along(traj)}
        rows.append({**told, "seconds": seconds, "away": away.tolist()})
        print(rows[-1], flush=True)
    return rows


def main(settings: Settings) -> None:
    """Run all chains and write the report."""
    if settings.smoke:
        settings = Settings(
            (2,), settings.log_norms[::3], 1, 12, 4, 2.0, (1e-2, 5e-3), settings.out, True
        )
    jax.config.update("jax_enable_x64", True)
    names = ("far apart",) if settings.smoke else tuple(STRENGTHS)
    chains = [linear(name, depth, settings) for name in names for depth in settings.depths]
    write_report(
        settings.out / "chains.json",
        PACKAGES,
        linear=chains,
        orthogonal=orthogonal(settings),
        t1=settings.t1,
        descent_steps=settings.steps,
        teachers=teachers(settings),
    )


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
