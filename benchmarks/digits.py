"""Error and work on digits, over several draws of the net: where chance decides.

300 digits, cross-entropy, four layers of width 50, to t = 20. Errors are those of the end,
relative to ‖θ‖, against a run of `ExactKinks` at rtol 1e-7. Of most draws they follow the
tolerance. Of some a unit touches a kink that repels: crossing it or not parts the
trajectories of every method, and only a tight tolerance tells which is the flow's.

    python benchmarks/digits.py [--smoke] [--out DIRECTORY]

writes `digits.json`, with the machine and the versions.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from _machine import machine
from tqdm import tqdm

import gfdyn as gf
from gfdyn._serialise import replace_atomically


PACKAGES = ("jax", "diffrax", "equinox", "numpy")
METHODS = {
    "ExactKinks": gf.solvers.ExactKinks(5e-6),
    "ExactKinks, Bosh3": gf.solvers.ExactKinks(5e-6, method=dfx.Bosh3()),
    "Adaptive": gf.solvers.Adaptive(rtol=1e-6),
}
TIGHT = gf.solvers.ExactKinks(1e-7)


def draw(seed: int, samples: int, width: int) -> tuple[gf.GradientFlow, gf.nets.MLP]:
    """The flow, and a net with entries of N(0, 1/fan-in)/2."""
    problem = gf.Problem(gf.data.digits(samples), gf.losses.cross_entropy)
    rng = np.random.default_rng(seed)
    widths = (64, width, width, width, 10)
    shapes = zip(widths[1:], widths[:-1], strict=True)
    weights = [rng.normal(size=(b, a)) * 0.5 / np.sqrt(a) for b, a in shapes]
    net = gf.nets.MLP.from_weights([jnp.asarray(w) for w in weights])
    return gf.GradientFlow(problem), net


def measure(seed: int, samples: int, width: int, t1: float) -> list[dict[str, Any]]:
    """Each method's error and work on a draw."""
    flow, net = draw(seed, samples, width)

    def end(solver: gf.solvers.AbstractSolver) -> gf.Trajectory:
        return gf.solve(flow, net, t1, ts=[t1], solver=solver, max_steps=100_000)

    wanted = end(TIGHT)
    size = gf.nets.norm(wanted.final)
    rows = []
    for method, solver in METHODS.items():
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
    report = {"machine": machine(PACKAGES), "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1) + "\n"
    replace_atomically(out / "digits.json", partial(Path.write_text, data=text))


if __name__ == "__main__":
    tyro.cli(main)
