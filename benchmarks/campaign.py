"""Does the exact flow end where gradient descent of small steps does, on random networks?

Weights N(0, 1/fan-in), data and targets N(0, 1), float64; the mean squared loss, or one of
the kinds of `_cases.py`: biases, leaky ReLU, ... Each flow is
taken twice, by `ExactKinks(verified=False)` and by `ExactKinks(verified=True)`, and set
against gradient descent at several steps. A run is

* *in line* if its relative distance to one of these ends is at most half that step, or
  30 rtol, or falls with the step;
* *elsewhere* if it is near none of them;
* *failed* if the solve did not reach its end.

Gradient descent of plain networks runs in C++ (`descent.cpp`) where there is a g++.

`choices` counts the runs whose certificate says that the flow was not unique; `seconds`
is the mean of a solve, compilation apart but where a run takes more places, and `ratio`
that of `verified` over the other.

    python benchmarks/campaign.py [--smoke] [--cases 3-3-3-1:16 biases/3-6-6-1:16 ...]

writes `campaign.json`, or what `--name` says, with the machine and the versions.
"""

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from _cases import drawn, is_plain, keeps_physical_time
from _descents import descents, flat
from _report import write_report
from tqdm import tqdm

import gfdyn as gf


PACKAGES = ("jax", "diffrax", "equinox", "numpy")


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        cases: widths, and the number of samples behind a colon; behind a kind.
        seeds: so many of each case, from 0.
        t1: the end of each flow, in its clock.
        rtol: the tolerance of each flow.
        steps: of gradient descent.
        out: where the report goes.
        name: of the report.
        smoke: a trial, of small size.
    """

    cases: tuple[str, ...] = ("3-3-3-1:16", "2-3-3-1:16", "2-20-1:20", "4-8-8-8-1:16")
    seeds: int = 40
    t1: float = 40.0
    rtol: float = 1e-7
    steps: tuple[float, ...] = (1e-4, 7e-5, 4e-5)
    out: Path = Path(__file__).parent
    name: str = "campaign"
    smoke: bool = False


def verdict(distances: dict[float, float], rtol: float) -> str:
    """In line or elsewhere, from the distances to the descents by step."""
    near = any(gap <= max(0.5 * step, 30 * rtol) for step, gap in distances.items())
    finest, coarsest = min(distances), max(distances)
    falls = distances[finest] <= 0.6 * distances[coarsest]
    return "in line" if near or falls and distances[finest] <= 3 * finest else "elsewhere"


def row_of(case: str, settings: Settings) -> dict[str, Any]:
    """How the flows of a case end, by each way to decide at kinks."""
    ways = {
        way: gf.solvers.ExactKinks(rtol=settings.rtol, verified=way == "verified")
        for way in ("sides", "verified")
    }
    found: dict[str, Any] = {
        way: {"in line": 0, "elsewhere": [], "failed": [], "choices": 0, "seconds": 0.0}
        for way in ways
    }
    flows, nets = zip(*(drawn(case, seed) for seed in range(settings.seeds)), strict=True)
    # Deep escapes have a clock of their own, and end each at another physical time.
    together = keeps_physical_time(case)
    descent = partial(descents, is_plain(case), steps=settings.steps)
    ends = descent(flows, nets, t1=settings.t1) if together else {}
    for seed in tqdm(range(settings.seeds), desc=case):
        flow, net = flows[seed], nets[seed]
        for way, solver in ways.items():
            start = time.perf_counter()
            traj = gf.solve(
                flow,
                net,
                t1=settings.t1,
                ts=[settings.t1],
                solver=solver,
                max_steps=20_000,
                throw=False,
            )
            end = flat(jax.block_until_ready(traj.final))
            if seed:
                found[way]["seconds"] += time.perf_counter() - start
            if not together:
                time_there = math.exp(traj.final_log_time)
                ends[seed] = descent([flow], [net], t1=time_there)[0]
            size = np.linalg.norm(end)
            away = np.linalg.norm(end - ends[seed], axis=1) / size
            gaps = dict(zip(settings.steps, away.tolist(), strict=True))
            found[way]["choices"] += int(traj.certificate.choices > 0)
            if float(traj.final_time) < settings.t1 * (1 - 1e-9):
                found[way]["failed"].append(seed)
            elif verdict(gaps, settings.rtol) == "in line":
                found[way]["in line"] += 1
            else:
                least, choices = min(gaps.values()), int(traj.certificate.choices)
                said = {"seed": seed, "distance": least, "choices": choices}
                found[way]["elsewhere"].append(said)
    for way in ways:
        found[way]["seconds"] /= max(settings.seeds - 1, 1)
    ratio = found["verified"]["seconds"] / max(found["sides"]["seconds"], 1e-9)
    return {"case": case, "seeds": settings.seeds, **found, "ratio": ratio}


def main(settings: Settings) -> None:
    """Run all cases and write the report."""
    jax.config.update("jax_enable_x64", True)
    cases, small = settings.cases, settings
    if settings.smoke:
        cases = ("2-3-1:6", "biases/2-3-1:6", "escape/2-3-1:6")
        small = Settings(cases, 2, 2.0, settings.rtol, (1e-3, 7e-4, 4e-4), settings.out)
    rows = [row_of(case, small) for case in cases]
    for row in rows:
        for way in ("sides", "verified"):
            said = row[way]
            print(
                f"{row['case']:24s} {way:9s} in line {said['in line']} of {row['seeds']}, "
                f"failed {len(said['failed'])}, {said['seconds']:.3f} s"
            )
    write_report(
        settings.out / f"{settings.name}.json",
        PACKAGES,
        t1=small.t1,
        rtol=small.rtol,
        steps=small.steps,
        rows=rows,
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
