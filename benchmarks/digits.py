"""Error and work on digits, over several draws of the net: where chance decides.

300 digits, cross-entropy, four layers of width 50, to t = 20. Errors are those of the end,
relative to ‖θ‖, against a run of `ExactKinks` at rtol 1e-7. Of most draws they follow the
tolerance. Of some a unit touches a kink that repels: crossing it or not parts the
trajectories of every method, and only a tight tolerance tells which is the flow's.

    python benchmarks/digits.py [--smoke] [--out DIRECTORY]

writes `digits.json`, with the machine and the versions.
"""

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


def methods() -> dict[str, gf.solvers.AbstractSolver]:
    """Those that are compared."""
    return {
        "ExactKinks": gf.solvers.ExactKinks(5e-6),
        "ExactKinks, Bosh3": gf.solvers.ExactKinks(5e-6, method=dfx.Bosh3()),
        "Adaptive": gf.solvers.Adaptive(rtol=1e-6),
    }


def measure(seed: int, samples: int, width: int, t1: float) -> list[dict[str, Any]]:
    """Each method's error and work on a draw."""
    flow, net = digits_flow((64, width, width, width, 10), samples, seed)

    def end(solver: gf.solvers.AbstractSolver) -> gf.Trajectory:
        return gf.solve(flow, net, t1, ts=[t1], solver=solver, max_steps=100_000)

    wanted = end(gf.solvers.ExactKinks(1e-7))
    size = gf.nets.norm(wanted.final)
    rows = []
    for method, solver in methods().items():
        traj = end(solver)
        rows.append(
            {
                "draw": seed,
                "method": method,
                "error": float(gf.distance(wanted, traj).total[-1] / size),
                "steps": int(traj.stats["num_steps"] + traj.stats["num_rejected"]),
                "evaluations": int(traj.stats["num_field_evaluations"]),
                "crossings": int(traj.stats["num_crossings"]),
            }
        )
    return rows


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
        rows += measure(seed, samples, width, t1)
    for row in rows:
        print(
            f"draw {row['draw']}  {row['method']:18} error {row['error']:.1e} in "
            f"{row['evaluations']} field evaluations"
        )
    write_report(out / "digits.json", PACKAGES, rows=rows)


if __name__ == "__main__":
    tyro.cli(main)
