"""What an accelerator does for gfdyn: large networks, steps, ensembles, `make run`.

In float32, but for the last. Compilation apart:

* `agreement`: solves on the device against the same ones on the processor;
* `field`: gradients of the risk of a 784-1000x5-10 network on 60 000 samples, as a part of
  the matrix products a second that the device reaches at the same shapes;
* `steps`: an attempted step of `ExactKinks` over one of `Adaptive`, and the kernels in its
  program (`_kernels.py`), at 1e5, 1e6 and 1e7 gates;
* `ensembles`: solves of so many small networks by `jax.vmap` over the same one by one;
* `escape`: seconds of `gfdyn escape`, the job of `make run`, compilation included.

    python benchmarks/gpu.py [--smoke] [--out DIRECTORY] [--parts PART ...]

writes `gpu.json`, with the machine and the versions.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from _descents import flat
from _kernels import num_kernels
from _report import write_report

import gfdyn as gf


PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "numpy")
# Both below one power of two, for which one program serves.
ATTEMPTS = 17, 32
ESCAPE = "import sys; from gfdyn.cli import main; main(sys.argv[1:])"


def seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """The least of some runs, once warm."""
    jax.block_until_ready(run())
    least = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(run())
        least = min(least, time.perf_counter() - started)
    return least


def setting(widths: list[int], samples: int) -> tuple[gf.GradientFlow, gf.nets.MLP]:
    """A network of these widths on Gaussian data with a teacher's labels."""
    teacher = [widths[0], 4, widths[-1]]
    data = gf.data.teacher(samples, teacher, key=jax.random.key(0), dtype="float32")
    net = gf.nets.MLP(widths, key=jax.random.key(1), dtype="float32")
    return gf.GradientFlow(gf.Problem(data, gf.losses.squared)), net


def field(widths: list[int], samples: int) -> dict[str, Any]:
    """Operations a second of a field evaluation, and of bare matrix products."""
    flow, net = setting(widths, samples)
    # Forwards, to the weights, and to the inputs but for the data
    products = 3 * sum(a * b for a, b in pairwise(widths)) - widths[0] * widths[1]
    width = widths[1]
    a = jnp.ones((samples, width), jnp.float32)
    b = jnp.ones((width, width), jnp.float32)
    rates = {}
    for precision in ("highest", "default"):
        with jax.default_matmul_precision(precision):
            velocity = eqx.filter_jit(lambda flow, net: flow.velocity(net))
            of_field = seconds(lambda velocity=velocity: velocity(flow, net))
            product = jax.jit(lambda a, b: a @ b)
            of_product = seconds(lambda product=product: product(a, b))
        rates[precision] = {
            "seconds": of_field,
            "field": 2 * samples * products / of_field,
            "ceiling": 2 * samples * width**2 / of_product,
        }
        rates[precision]["part"] = rates[precision]["field"] / rates[precision]["ceiling"]
    return {"widths": widths, "samples": samples, **rates}


def attempt(
    flow: gf.GradientFlow, net: gf.nets.MLP, solver: Any, counted: bool
) -> dict[str, Any]:
    """Seconds of an attempted step, evaluations in it, kernels in its program."""

    def run(attempts: int) -> gf.Trajectory:
        return gf.solve(
            flow, net, t1=10.0, ts=[10.0], solver=solver, max_steps=attempts, throw=False
        )

    few, many = ATTEMPTS
    started = time.perf_counter()
    ends = run(few), run(many)
    first_calls = time.perf_counter() - started
    evaluations = [int(end.stats["num_field_evaluations"]) for end in ends]
    spent = seconds(lambda: run(many)) - seconds(lambda: run(few))
    return {
        "seconds": spent / (many - few),
        "evaluations": (evaluations[1] - evaluations[0]) / (many - few),
        "events": int(ends[1].stats["num_crossings"] + ends[1].stats["num_slides"]),
        "first_calls": first_calls,
        "kernels": kernels(flow, net, solver) if counted else None,
    }


def kernels(flow: gf.GradientFlow, net: gf.nets.MLP, solver: Any) -> int:
    """Kernels of the compiled solve, nearly all of them in the step."""
    arrays, rest = eqx.partition((flow, net), eqx.is_array)

    def run(arrays: Any) -> Any:
        flow, net = eqx.combine(arrays, rest)
        return gf.solve(flow, net, t1=10.0, ts=[10.0], solver=solver, throw=False).final

    return num_kernels(jax.jit(run).lower(arrays).compile().as_text() or "")


def steps(widths: list[int], samples: int, counted: bool) -> dict[str, Any]:
    """Attempts of both solvers on one network."""
    flow, net = setting(widths, samples)
    solvers = gf.solvers.ExactKinks(rtol=1e-4), gf.solvers.Adaptive(rtol=1e-4)
    exact, adaptive = (attempt(flow, net, solver, counted) for solver in solvers)
    each = exact["seconds"] / exact["evaluations"]
    return {
        "gates": samples * sum(widths[1:-1]),
        "widths": widths,
        "samples": samples,
        "ExactKinks": exact,
        "Adaptive": adaptive,
        "ratio": exact["seconds"] / adaptive["seconds"],
        "ratio_per_evaluation": each * adaptive["evaluations"] / adaptive["seconds"],
    }


def ensemble(number: int, singles: int, t1: float) -> dict[str, Any]:
    """Solves of so many [3, 8, 1] at once, and of a few one by one."""
    flow, _ = setting([3, 8, 1], 12)
    keys = jax.random.split(jax.random.key(2), number)
    nets = jax.vmap(
        lambda key: gf.nets.MLP([3, 8, 1], key=key, scale=0.5, dtype="float32")
    )(keys)
    solver = gf.solvers.ExactKinks(rtol=1e-4)

    def run(net: gf.nets.MLP) -> gf.Trajectory:
        return gf.solve(flow, net, t1=t1, ts=[t1], solver=solver, throw=False)

    few = [jax.tree.map(lambda w, i=i: w[i], nets) for i in range(singles)]
    started = time.perf_counter()
    jax.block_until_ready(run(few[0]))
    first_single = time.perf_counter() - started
    one_by_one = seconds(lambda: [run(net) for net in few]) / singles
    together = jax.vmap(run)
    started = time.perf_counter()
    jax.block_until_ready(together(nets))
    first_together = time.perf_counter() - started
    each = seconds(lambda: together(nets)) / number
    return {
        "networks": number,
        "seconds_each": {"one by one": one_by_one, "together": each},
        "first_call": {"one by one": first_single, "together": first_together},
        "faster": one_by_one / each,
    }


def escape(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Seconds of the command, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", ESCAPE, "escape", "--out", folder, *arguments]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
    return {"arguments": arguments, "seconds": time.perf_counter() - started}


def agreement() -> dict[str, Any]:
    """How far a solve on the device ends from the same one on the processor, in units of
    rtol and of the norm."""
    rtol = 1e-5
    ends: dict[str, list[np.ndarray]] = {"gradient": [], "escape": []}
    for device in (jax.devices()[0], jax.devices("cpu")[0]):
        with jax.default_device(device):
            flow, net = setting([3, 8, 8, 1], 16)
            flows = {"gradient": flow, "escape": gf.EscapeFlow(flow.problem)}
            for name, each in flows.items():
                solver = gf.solvers.ExactKinks(rtol=rtol)
                end = gf.solve(each, net, t1=3.0, solver=solver).final
                ends[name].append(flat(end).astype(np.float64))
    far = {
        name: float(np.linalg.norm(there - here) / np.linalg.norm(here) / rtol)
        for name, (there, here) in ends.items()
    }
    return {"rtol": rtol, "units_of_rtol": far}


Part = Literal["agreement", "field", "steps", "ensembles", "escape"]


def main(
    out: Path = Path(__file__).parent,
    smoke: bool = False,
    parts: tuple[Part, ...] = get_args(Part),
) -> None:
    """Measure, print and write the numbers, after every one of them.

    Args:
        out: where to.
        smoke: small networks, few steps.
        parts: which of the measurements.
    """
    fields = [([784, *[1000] * 5, 10], 60_000)]
    sizes = [([64, h, h, h, 10], n) for h, n in ((64, 512), (160, 2048), (320, 10_240))]
    numbers, job, t1 = (64, 1024), (), 5.0
    if smoke:
        fields, sizes, numbers = [([8, 16, 16, 2], 64)], [([3, 8, 1], 12)], (3,)
        job = ("--depth", "2", "--samples", "12", "--width", "4", "--tau-max", "1")
        t1 = 0.5
    # Kernels do not grow with the size, and to count them is to compile once more.
    measurements: dict[Part, list[Callable[[], dict[str, Any]]]] = {
        "agreement": [agreement],
        "field": [partial(field, *shape) for shape in fields],
        "steps": [partial(steps, *shape, i == 0) for i, shape in enumerate(sizes)],
        "ensembles": [partial(ensemble, n, min(n, 16), t1) for n in numbers],
        "escape": [partial(escape, job)],
    }
    report: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for measure in measurements[part]:
            row = measure()
            report.setdefault(part, []).append(row)
            print(f"{part}: {row}", flush=True)
            write_report(out / "gpu.json", PACKAGES, **report)


if __name__ == "__main__":
    tyro.cli(main)
