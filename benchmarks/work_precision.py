"""Error against work on flows that meet kinks: `ExactKinks` and what one would use instead.

Each method is run at several tolerances (gradient descent with falling steps) on each
problem; its error is the distance of the end to a run of `ExactKinks` at rtol 1e-8 (which
the tests compare with the oracle). A run that takes too long is cut off, and says so. Wall
times are those of a second run, without compilation.

    python benchmarks/work_precision.py [--smoke] [--out DIRECTORY]

writes `work_precision.json`, with the machine and the versions, and `work_precision.png`.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import tyro
from _digits import digits_flow
from _report import write_report
from matplotlib.figure import Figure
from tqdm import tqdm

import gfdyn as gf
from gfdyn._atomic import replace_atomically


PACKAGES = ("jax", "diffrax", "equinox", "scipy", "numpy", "torch", "torchdiffeq")


@dataclasses.dataclass(frozen=True)
class Case:
    """A flow from a net, to a time."""

    name: str
    flow: gf.flows.AbstractFlow
    net: gf.nets.AbstractNet
    t1: float


@dataclasses.dataclass(frozen=True)
class Run:
    """Where a method ended, and its work: None where it cannot be counted."""

    end: np.ndarray
    steps: int | None
    evaluations: int | None
    finished: bool


Method = Callable[[Case, float, int], Run]


def cases(smoke: bool) -> Iterator[Case]:
    """Problems of 2 to 6 layers, with 20 to 1797 samples."""
    squared, logistic = gf.losses.squared, gf.losses.logistic
    yield _random("2 layers, squared", [3, 8, 1], 20, squared, 20.0, 0)
    if smoke:
        return
    yield _random("3 layers, squared", [3, 8, 8, 1], 20, squared, 20.0, 1)
    yield _random("2 layers, logistic", [3, 12, 1], 40, logistic, 40.0, 2)
    yield _random("3 layers, escape", [3, 8, 8, 1], 20, squared, 80.0, 3, escape=True)
    yield _digits("digits, 4 layers, 300 samples", [64, 50, 50, 50, 10], 300, 4.0)
    yield _digits("digits, 6 layers, 1797 samples", [64, *[32] * 5, 10], 1797, 5.0)


def _random(
    name: str,
    widths: list[int],
    samples: int,
    loss: Any,
    t1: float,
    seed: int,
    escape: bool = False,
) -> Case:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(samples, widths[0])), rng.normal(size=(samples, widths[-1]))
    y = np.sign(y) if loss is gf.losses.logistic else y
    problem = gf.Problem(gf.Dataset(x, y), loss)
    net = gf.nets.MLP(widths, key=jax.random.key(seed), scale=0.5)
    if not escape:
        return Case(name, gf.GradientFlow(problem), net, t1)
    return Case(name, gf.EscapeFlow(problem), gf.nets.scaled_to_norm(net, 1e-4), t1)


def _digits(name: str, widths: list[int], samples: int, t1: float) -> Case:
    flow, net = digits_flow(widths, samples)
    return Case(name, flow, net, t1)


def of_gfdyn(make: Callable[[float], Any]) -> Method:
    """A solver of gfdyn."""

    def run(case: Case, rtol: float, most: int) -> Run:
        traj = gf.solve(
            case.flow,
            case.net,
            case.t1,
            ts=[case.t1],
            solver=make(rtol),
            max_steps=most,
            throw=False,
        )
        finished = bool(traj.result == gf.RESULTS.successful)
        steps = int(traj.stats["num_steps"] + traj.stats["num_rejected"])
        evaluations = int(traj.stats["num_field_evaluations"])
        return Run(_flat(traj.final_direction), steps, evaluations, finished)

    return run


def of_diffrax(solver: dfx.AbstractSolver, stages: int | None) -> Method:
    """Plain diffrax on the network's own ReLUs."""

    def field(t: Any, y: Any, flow: Any) -> Any:
        return flow.velocity(y).position

    @eqx.filter_jit
    def solved(flow: Any, start: Any, t1: Any, rtol: Any, most: int) -> Any:
        return dfx.diffeqsolve(
            dfx.ODETerm(field),  # pyright: ignore[reportArgumentType]
            solver,
            0.0,
            t1,
            None,
            start,
            args=flow,
            stepsize_controller=dfx.PIDController(rtol=rtol, atol=1e-3 * rtol),
            max_steps=most,
            throw=False,
        )

    def run(case: Case, rtol: float, most: int) -> Run:
        start, t1 = case.flow.start(case.net), jnp.asarray(case.t1)
        found = solved(case.flow, start, t1, jnp.asarray(rtol), most)
        assert found.ys is not None
        end = jax.tree.map(lambda leaf: leaf[-1], found.ys)
        steps = int(found.stats["num_steps"])
        finished = bool(found.result == dfx.RESULTS.successful)
        count = None if stages is None else stages * steps
        return Run(_flat(case.flow.direction(end)), steps, count, finished)

    return run


class _TooMuchWork(Exception):
    pass


def of_scipy(name: str) -> Method:
    """scipy.integrate.solve_ivp on the compiled field."""

    def run(case: Case, rtol: float, most: int) -> Run:
        start, unravel = jax.flatten_util.ravel_pytree(case.flow.start(case.net))
        flow = case.flow

        @jax.jit
        def velocity(y: Any) -> Any:
            moved = flow.velocity(unravel(y)).position
            return jax.flatten_util.ravel_pytree(moved)[0]

        evaluations, last = 0, start

        def field(t: float, y: np.ndarray) -> np.ndarray:
            nonlocal evaluations, last
            evaluations, last = evaluations + 1, y
            if evaluations > 6 * most:
                raise _TooMuchWork
            return np.asarray(velocity(y))

        try:
            found = scipy.integrate.solve_ivp(
                field,
                (0.0, case.t1),
                np.asarray(start),
                name,  # pyright: ignore[reportArgumentType]
                t_eval=[case.t1],
                rtol=rtol,
                atol=1e-3 * rtol,
            )
            end, finished, steps = found.y[:, -1], bool(found.success), None
        except _TooMuchWork:
            end, finished, steps = last, False, None
        direction = case.flow.direction(unravel(jnp.asarray(end)))
        return Run(_flat(direction), steps, evaluations, finished)

    return run


def torch_field(case: Case) -> tuple[Callable[[Any, Any], Any], Any]:
    """−∇R by PyTorch's automatic differentiation, and the start, both as flat tensors."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(os.cpu_count() or 1)
    data = case.flow.problem.data
    x, y = (torch.from_numpy(np.array(a)) for a in (data.x, data.y))
    shapes = [w.shape for w in case.net.weights]
    sizes = [a * b for a, b in shapes]
    logistic = case.flow.problem.loss is gf.losses.logistic

    def field(t: Any, theta: Any) -> Any:
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            a = x
            parts = torch.split(theta, sizes)
            for i, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
                a = a @ part.reshape(shape).T
                a = torch.relu(a) if i < len(shapes) - 1 else a
            if logistic:
                risk = torch.nn.functional.softplus(-y * a).mean()
            else:
                risk = 0.5 * torch.sum((a - y) ** 2) / len(x)
            (gradient,) = torch.autograd.grad(risk, theta)
        return -gradient

    return field, torch.from_numpy(np.array(_flat(case.net)))


def of_torchdiffeq(case: Case, rtol: float, most: int) -> Run:
    """torchdiffeq's dopri5, the gradient taken by PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]
    import torchdiffeq  # pyright: ignore[reportMissingImports]

    field, start = torch_field(case)
    evaluations = 0

    def counted(t: Any, theta: Any) -> Any:
        nonlocal evaluations
        evaluations += 1
        if evaluations > 6 * most:
            raise _TooMuchWork
        return field(t, theta)

    times = torch.tensor([0.0, case.t1], dtype=torch.float64)
    try:
        tolerances = {"rtol": rtol, "atol": 1e-3 * rtol}
        found: Any = torchdiffeq.odeint(
            counted, start, times, method="dopri5", **tolerances
        )
        end, finished = found[-1].numpy(), True
    except _TooMuchWork:
        end, finished = start.numpy(), False
    return Run(end, None, evaluations, finished)


def of_torch_descent(case: Case, step: float, most: int) -> Run:
    """Gradient descent as one writes it in PyTorch, a step at a time."""
    field, theta = torch_field(case)
    number = round(case.t1 / step)
    done = min(number, 6 * most)
    for _ in range(done):
        theta = theta + step * field(None, theta)
    return Run(theta.numpy(), done, done, done == number)


def of_descent(case: Case, step: float, most: int) -> Run:
    """Gradient descent, whose limit of small steps is the flow, as one compiled loop."""
    number = round(case.t1 / step)
    done = min(number, 6 * most)
    end = gf.descend(case.flow.problem, case.net, step, done).final
    return Run(_flat(end), done, done, done == number)


def methods() -> dict[str, tuple[Method, list[float]]]:
    """Every method with its tolerances, or steps."""
    fine = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
    coarse = [1e-3, 1e-4, 1e-5, 1e-6]
    chord = dfx.VeryChord(rtol=1e-8, atol=1e-10)
    found: dict[str, tuple[Method, list[float]]] = {
        "ExactKinks": (of_gfdyn(lambda rtol: gf.solvers.ExactKinks(rtol)), fine),
        "Adaptive": (of_gfdyn(lambda rtol: gf.solvers.Adaptive(rtol=rtol)), coarse),
        "diffrax Tsit5": (of_diffrax(dfx.Tsit5(), 6), coarse),
        "diffrax Dopri8": (of_diffrax(dfx.Dopri8(), 13), coarse),
        "diffrax Kvaerno5": (of_diffrax(dfx.Kvaerno5(root_finder=chord), None), coarse[:3]),
        "scipy RK45": (of_scipy("RK45"), coarse),
        "scipy LSODA": (of_scipy("LSODA"), coarse),
        "gradient descent": (of_descent, [1e-1, 1e-2, 1e-3, 1e-4]),
    }
    try:
        version("torchdiffeq")
    except PackageNotFoundError:
        return found
    steps = [1e-1, 1e-2, 1e-3, 1e-4]
    return found | {
        "torchdiffeq dopri5": (of_torchdiffeq, coarse),
        "gradient descent, PyTorch": (of_torch_descent, steps),
    }


def applies(name: str, case: Case) -> bool:
    """Whether a method can be run on a problem in reasonable time and memory."""
    plain = isinstance(case.flow, gf.GradientFlow)
    large = case.flow.problem.data.x.shape[0] >= 300
    if name == "diffrax Kvaerno5" and large:
        return False  # a dense Jacobian of some 10 000 parameters at each step
    if name == "scipy LSODA" and large:
        return False  # its Jacobian by differences: thousands of evaluations each
    in_torch = ("torchdiffeq dopri5", "gradient descent, PyTorch")
    if name in in_torch and large:
        return False  # the cross-entropy is not written in their field
    return plain or name not in ("gradient descent", *in_torch)


def measure(case: Case, reference: np.ndarray, most: int, seconds: float) -> list[dict]:
    """All methods on one problem; a method stops where it has taken too long."""
    rows = []
    chosen = {k: v for k, v in methods().items() if applies(k, case)}
    for name, (method, tolerances) in tqdm(chosen.items(), desc=case.name, leave=False):
        for tolerance in tolerances:
            started = time.perf_counter()
            run = method(case, tolerance, most)
            first = wall = time.perf_counter() - started
            if first < seconds:
                started = time.perf_counter()
                run = method(case, tolerance, most)
                wall = time.perf_counter() - started
            error = np.linalg.norm(run.end - reference) / np.linalg.norm(reference)
            rows.append(
                {
                    "problem": case.name,
                    "method": name,
                    "tolerance": tolerance,
                    "error": float(error) if run.finished else None,
                    "finished": run.finished,
                    "steps": run.steps,
                    "field_evaluations": run.evaluations,
                    "seconds": wall,
                    "first_seconds": first,
                }
            )
            if first > seconds or not run.finished:
                break
    return rows


def draw(rows: list[dict]) -> Figure:
    """Error against steps or evaluations, and against wall time, a column a problem."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    names = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(3.2 * len(problems), 6), layout="constrained")
    axes = figure.subplots(2, len(problems), sharey=True, squeeze=False)
    for column, problem in enumerate(problems):
        for i, name in enumerate(names):
            mine = [
                row
                for row in rows
                if row["problem"] == problem and row["method"] == name and row["finished"]
            ]
            style = {"marker": "o", "ms": 4, "color": f"C{i}", "label": name}
            style["lw"] = 2.5 if name == "ExactKinks" else 1.0
            for row, key in enumerate(("field_evaluations", "seconds")):
                points = [(m[key], m["error"]) for m in mine if m[key] is not None]
                if points:
                    axes[row, column].loglog(*zip(*points, strict=True), **style)
        axes[0, column].set(title=problem, xlabel="field evaluations")
        axes[1, column].set(xlabel="seconds")
    for axis in axes[:, 0]:
        axis.set_ylabel("relative error at the end")
    # Not every method has a point in every column.
    labelled = {}
    for axis in axes.flat:
        handles, labels = axis.get_legend_handles_labels()
        labelled |= dict(zip(labels, handles, strict=True))
    figure.legend(
        labelled.values(), labelled, loc="outside lower center", ncols=5, frameon=False
    )
    return figure


def main(
    out: Path = Path(__file__).parent,
    smoke: bool = False,
    seconds: float = 20.0,
    most: int = 100_000,
    only: str = "",
) -> None:
    """Measure, and write the numbers and the figure.

    Args:
        out: where to.
        smoke: one problem, a few tolerances, few steps.
        seconds: a method that took longer is not run at a finer tolerance.
        most: most steps of a run; field evaluations six times as many.
        only: measure problems with this in their name; what there is on others is kept.
    """
    jax.config.update("jax_enable_x64", True)
    if smoke:
        seconds, most = 0.0, 300
    file, rows = out / "work_precision.json", []
    if only and file.exists():
        rows = json.loads(file.read_text())["rows"]
    settings = {"seconds": seconds, "most": most}
    problems = list(cases(smoke))
    order = [case.name for case in problems]
    for case in problems:
        if only not in case.name:
            continue
        rows = [row for row in rows if row["problem"] != case.name]
        tight = of_gfdyn(lambda rtol: gf.solvers.ExactKinks(rtol))
        reference = tight(case, 1e-6 if smoke else 1e-8, most)
        if not (reference.finished or smoke):
            raise RuntimeError(f"no reference for {case.name!r}: raise --most {most}")
        rows += measure(case, reference.end, most, seconds)
        rows.sort(key=lambda row: order.index(row["problem"]))
        # After each problem, so that a run that is cut off leaves something.
        write_report(file, PACKAGES, settings=settings, rows=rows)
        save = partial(draw(rows).savefig, dpi=110, format="png")
        replace_atomically(out / "work_precision.png", save)


def _flat(net: gf.nets.AbstractNet) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(w)) for w in net.weights])


if __name__ == "__main__":
    tyro.cli(main)
