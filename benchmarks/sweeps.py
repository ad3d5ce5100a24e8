"""What a second process brings to a sweep: its throughput over that of one.

A sweep of 200 points (20 000 steps of gradient descent each, on a teacher problem) in one
process and in two, once warm: the first quarter of the points does not count, in which the
processes start and compile.

    python benchmarks/sweeps.py [--smoke] [--out DIRECTORY]

writes `sweeps.json`, with the machine and the versions.
"""

import tempfile
from pathlib import Path

import jax
import tyro
from _report import write_report

import gfdyn as gf


S = gf.sweeps
PACKAGES = ("jax", "equinox", "numpy", "xarray", "scipy")


def sweep(points: int, steps: int, workers: int) -> S.Spec:
    """So many points, in so many processes."""
    return S.Spec(
        problem=S.ProblemSettings(samples=40),
        net=S.NetSettings(depth=3, width=16, init_scale=1.0),
        run=S.DescentSettings(learning_rate=0.01, steps=steps),
        records=("risk",),
        max_saves=50,
        axes={"net.seed": S.seeds(points)},
        engine=S.EngineSettings(name="processes", workers=workers),
    )


def points_per_second(spec: S.Spec) -> float:
    """Between the files that the processes wrote, after the first quarter of them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        S.run(spec, out, progress=False)
        times = sorted(file.stat().st_mtime for file in (out / "points").iterdir())
    cold = len(times) // 4
    return (len(times) - cold - 1) / (times[-1] - times[cold])


def main(out: Path = Path(__file__).parent, smoke: bool = False) -> None:
    """Measure, and write the numbers.

    Args:
        out: where to.
        smoke: few points of few steps.
    """
    jax.config.update("jax_enable_x64", True)
    points, steps = (12, 200) if smoke else (200, 20_000)
    rates = {n: points_per_second(sweep(points, steps, n)) for n in (1, 2)}
    row = {
        "points": points,
        "steps": steps,
        "points_per_second": rates,
        "ratio": rates[2] / rates[1],
    }
    write_report(out / "sweeps.json", PACKAGES, rows=[row])


if __name__ == "__main__":
    tyro.cli(main)
