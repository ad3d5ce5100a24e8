"""The `gfdyn` command: `escape`, `flow` and `descend` on a data set, with figures; `sweep`
and `report`.

This is an application: here, and only here, the precision of jax is set.
"""

import contextlib
import dataclasses
import io
import json
import math
import platform
import sys
import time
import warnings
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from matplotlib.figure import Figure

from .. import stopping
from .._atomic import replace_atomically
from ..descent import NormScaledRate, descend
from ..flows import AbstractFlow, EscapeFlow, GradientFlow
from ..nets import MLP
from ..problem import Problem
from ..run import AcceptedSteps, CertificateWarning, SolveError, Trajectory, is_ok, solve
from ..solvers import Adaptive, ExactKinks
from ._commands import FULL_WIDTH, Descend, Escape, Flow, Integration, Setup
from ._problem import make_net, make_problem
from ._report import RECORDS, figures, report
from ._sweep import Report, Sweep, expand, run_sweep, write_report
from ._usage import in_one_line


_SOLVERS = {"adaptive": Adaptive, "exact": ExactKinks}


Command = (
    Annotated[Escape, tyro.conf.subcommand("escape")]
    | Annotated[Flow, tyro.conf.subcommand("flow")]
    | Annotated[Descend, tyro.conf.subcommand("descend")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"gfdyn {version('gfdyn')}")
        return 0
    command = _parsed(expand(arguments))
    try:
        if isinstance(command, Sweep):
            return run_sweep(command)
        if isinstance(command, Report):
            return write_report(command)
        jax.config.update("jax_enable_x64", command.dtype == "float64")
        return run(command)
    except (ValueError, OverflowError, OSError, ImportError, MemoryError) as error:
        return _refuse(str(error) or "there is not enough memory for that.")
    except jax.errors.JaxRuntimeError as error:
        # Of the device, where memory for an array is not to be had.
        return _refuse(str(error))


def _parsed(arguments: list[str]) -> Any:
    """The command that the arguments describe; ends the process if they describe none."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Command,  # pyright: ignore[reportArgumentType]
                prog="gfdyn",
                description="The exact gradient flow of ReLU networks. --version tells "
                "which.",
                args=arguments,
            )
    except SystemExit as end:
        if end.code:
            _refuse(in_one_line(said.getvalue()))
        raise


def _refuse(reason: str) -> int:
    """Say in one line why there is no result; the exit status."""
    print(f"gfdyn: {' '.join(reason.split())}", file=sys.stderr)
    return 2


def run(command: Escape | Flow | Descend) -> int:
    """Run a command: integrate, print the summary, write the results.

    Returns:
        The exit status: 1 if the solve failed, in which case what there is is written;
        with --strict 3 if it succeeded but its certificate does not hold.
    """
    if isinstance(command, Escape) and command.full:
        command = dataclasses.replace(command, samples="all", width=FULL_WIDTH)
    problem, net = make_problem(command), make_net(command)
    name = type(command).__name__.lower()
    out = command.out / name
    out.mkdir(parents=True, exist_ok=True)
    print(_announcement(command, problem, net), flush=True)
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # The report says the same.
            warnings.simplefilter("ignore", CertificateWarning)
            traj = _integrate(command, problem, net)
    except SolveError as error:
        # What was integrated is still worth a look, and is labelled as what it is.
        print(f"gfdyn: {error}", file=sys.stderr)
        traj = error.trajectory
    seconds = time.perf_counter() - started
    print(report(traj))
    print(f"  wall time        {seconds:.1f} s with compilation")
    traj.save(out / "trajectory.nc")
    settings = _settings(command, traj, seconds)
    replace_atomically(
        out / "config.json",
        lambda path: path.write_text(
            json.dumps(_strict(settings), indent=2, allow_nan=False)
        ),
    )
    for figure_name, figure in figures(traj).items():
        replace_atomically(out / f"{figure_name}.png", partial(_write_figure, figure))
    print(f"  written          {out}/: trajectory.nc, config.json, *.png")
    if not is_ok(traj.result):
        return 1
    strict = isinstance(command, Integration) and command.strict
    return 3 if strict and not traj.certificate.holds else 0


def _integrate(command: Escape | Flow | Descend, problem: Problem, net: MLP) -> Trajectory:
    if isinstance(command, Descend):
        rate = command.learning_rate
        return descend(
            problem,
            net,
            NormScaledRate(rate) if command.norm_scaled else rate,
            command.steps,
            batch_size=command.batch_size,
            key=jax.random.fold_in(jax.random.key(command.seed), 2),
            weight_decay=command.weight_decay,
            save_every=max(1, command.steps // command.max_saves),
            record=RECORDS,
            progress=True,
        )
    flow: AbstractFlow
    if isinstance(command, Escape):
        flow = EscapeFlow(problem, localized=command.localized)
        if command.localized:
            stop = [stopping.GradientBelow(1e-3)]
        else:
            stop = [stopping.NextPlateau(command.settled)]
        end = command.tau_max
    else:
        flow = GradientFlow(problem, command.weight_decay, command.clock)
        below = command.risk_below
        stop = [] if below is None else [stopping.RiskBelow(below)]
        end = command.t1
    return solve(
        flow,
        net,
        t1=end,
        ts=AcceptedSteps(command.max_saves + command.max_saves % 2),
        record=RECORDS,
        solver=_SOLVERS[command.solver](rtol=command.rtol),
        stop=stop,
        max_steps=command.max_steps,
        progress=True,
    )


def _announcement(command: Setup, problem: Problem, net: MLP) -> str:
    n, d = problem.data.x.shape
    widths = " → ".join(str(w) for w in (d, *(w.shape[0] for w in net.weights)))
    how = f"rtol {command.rtol:g}" if isinstance(command, Integration) else "no tolerance"
    return (
        f"gfdyn {type(command).__name__.lower()}: {command.data}, {n} samples, "
        f"{type(problem.loss).__name__} loss; {command.activation} network {widths}, "
        f"‖θ(0)‖ = {command.init_scale:g}; {how}, {command.dtype}, seed {command.seed}"
    )


def _settings(command: Setup, traj: Trajectory, seconds: float) -> dict[str, Any]:
    """All settings, the outcome, and the versions that made it."""
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(command).items()
    } | {"samples": traj.problem.data.num_samples}
    packages = ("gfdyn", "jax", "jaxlib", "diffrax", "equinox", "optax", "numpy")
    outcome = traj.to_xarray().attrs
    return {
        "command": type(command).__name__.lower(),
        "settings": settings,
        "outcome": {k: v for k, v in outcome.items() if k not in ("flow", "net")},
        "seconds": seconds,
        "versions": {name: version(name) for name in packages},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {jax.devices()[0].device_kind}",
    }


def _strict(value: Any) -> Any:
    """As strict JSON holds it: numbers that are not finite by name."""
    if isinstance(value, dict):
        return {name: _strict(entry) for name, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _write_figure(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="png", dpi=150)
