"""Error and work on digits, over several draws of the net: where chance decides.

300 digits, cross-entropy, four layers of width 50, to t = 20. Errors are those of the end,
relative to ‖θ‖, against a run of `ExactKinks` at rtol 1e-8. Of most draws they follow the
tolerance. Of some a unit touches a kink that repels: crossing it or not parts the
trajectories of every method, and only a tight tolerance tells which is the flow's. What
that run and one at 1e-7 differ by says how far the flow is known at all.

    python benchmarks/digits.py [--smoke] [--out DIRECTORY]

writes `digits.json`, with the machine and the versions.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffrax as dfx
import jax
import tyro
from _digits import digits_flow
from _report import write_report
from tqdm import tqdm

import gfdyn as gf


PACKAGES = ("jax", "diffrax", "equinox", "numpy")
TIGHT, TIGHTEST = 1e-7, 1e-8


def solvers() -> Iterator[tuple[str, float, gf.solvers.AbstractSolver]]:
    """Those that are compared: name, rtol, solver."""
    yield "Adaptive", 1e-6, gf.solvers.Adaptive(rtol=1e-6)
    for rtol in (5e-6, 4e-6, 3e-6, 2e-6):
        yield "ExactKinks", rtol, gf.solvers.ExactKinks(rtol)
        third_order = gf.solvers.ExactKinks(rtol, method=dfx.Bosh3())
        yield "ExactKinks, Bosh3", rtol, third_order
    yield "ExactKinks", TIGHT, gf.solvers.ExactKinks(TIGHT)


def measure(seed: int, samples: int, width: int, t1: float) -> list[dict[str, Any]]:
    """Each method's error and work on a draw."""
    flow, net = digits_flow((64, width, width, width, 10), samples, seed)

    def end(solver: gf.solvers.AbstractSolver) -> gf.Trajectory:
        return gf.solve(flow, net, t1, ts=[t1], solver=solver, max_steps=100_000)

    wanted = end(gf.solvers.ExactKinks(TIGHTEST))
    size = gf.nets.norm(wanted.final)
    rows = []
    for method, rtol, solver in solvers():
        traj = end(solver)
        rows.append(
            {
                "draw": seed,
                "method": method,
                "rtol": rtol,
                "error": float(gf.distance(wanted, traj).total[-1] / size),
                "steps": int(traj.stats["num_steps"] + traj.stats["num_rejected"]),
                "evaluations": int(traj.stats["num_field_evaluations"]),
                "crossings": int(traj.stats["num_crossings"]),
            }
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> str:
    """Of a draw: how far the flow is known, Adaptive's error and work, and what comes
    nearest with no more work."""
    adaptive = next(row for row in rows if row["method"] == "Adaptive")
    known = next(row for row in rows if row["rtol"] == TIGHT)
    within = [row for row in rows if row["evaluations"] <= adaptive["evaluations"]]
    best = min(within, key=lambda row: row["error"])
    return (
        f"draw {adaptive['draw']}: the flow is known to {known['error']:.1e}; "
        f"Adaptive {adaptive['error']:.1e} in {adaptive['evaluations']} field evaluations; "
        f"nearest with no more: {best['method']} at {best['rtol']:.0e}, "
        f"{best['error']:.1e} in {best['evaluations']}"
    )


def main(out: Path = Path(__file__).parent, smoke: bool = False, draws: int = 6) -> None:
    """Measure, print and write the numbers.

    Args:
        out: where to.
        smoke: one draw of a narrow net on few samples, for a short time.
        draws: of the net.
    """
    jax.config.update("jax_enable_x64", True)
    samples, width, t1 = (20, 4, 0.5) if smoke else (300, 50, 20.0)
    rows = []
    for seed in tqdm(range(1 if smoke else draws), desc="draws", disable=smoke):
        of_draw = measure(seed, samples, width, t1)
        rows += of_draw
        tqdm.write(summary(of_draw))
        # After each draw, so that a run that is cut off leaves something.
        write_report(out / "digits.json", PACKAGES, rows=rows)


if __name__ == "__main__":
    tyro.cli(main)
