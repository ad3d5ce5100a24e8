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
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import tyro
from matplotlib.figure import Figure

from .. import losses, stopping
from .._atomic import replace_atomically
from ..data import Dataset
from ..descent import NormScaledRate, descend
from ..flows import AbstractFlow, EscapeFlow, GradientFlow
from ..nets import MLP
from ..problem import Problem
from ..run import AcceptedSteps, CertificateWarning, SolveError, Trajectory, is_ok, solve
from ..solvers import Adaptive, ExactKinks
from ..sweeps.spec import (
    NUM_SAMPLES,
    DataName,
    LossName,
    check_memory,
    draw_net,
    load_dataset,
    num_parameters,
)
from ._report import RECORDS, figures, report
from ._sweep import Report, Sweep, expand, run_sweep, write_report
from ._usage import in_one_line


SolverName = Literal["adaptive", "exact"]
_SOLVERS = {"adaptive": Adaptive, "exact": ExactKinks}
_FULL_WIDTH = 64
_DEFAULT_SAMPLES = 600
_ESCAPE_SAMPLES = 50
_IMAGES = ("digits", "mnist")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """The problem, the network and where results go; common to all commands."""

    data: DataName = "digits"
    """Data set."""
    path: Path | None = None
    """File or folder with MNIST (IDX, gzipped or not, or npz), for --data mnist."""
    samples: int | Literal["all"] | None = None
    """Number of samples, drawn at random from digits and mnist, of which there may be all;
    600 if None, 8 on the circle."""
    loss: LossName | None = None
    """Loss; cross_entropy for digits and mnist, squared otherwise, if None."""
    depth: int = 6
    """L, the number of weight matrices."""
    width: int = 64
    """Neurons in each hidden layer."""
    activation: str = "relu"
    """relu, identity or leaky_relu(SLOPE)."""
    init_scale: float = 1e-6
    """Norm of all parameters together at the start."""
    seed: int = 0
    """Seed of the network and of the choice of samples."""
    dtype: Literal["float32", "float64"] = "float64"
    """Precision of data and parameters."""
    max_saves: int = 256
    """Most rows kept of the trajectory."""
    out: Path = Path("results")
    """Folder for trajectory, settings and figures; a subfolder is made per command."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Integration(Setup):
    """How a flow is integrated; common to `escape` and `flow`."""

    rtol: float = 1e-6
    """Relative tolerance per step."""
    solver: SolverName = "exact"
    """exact, through kinks and along those that neurons slide on; or adaptive, which is
    blind to them."""
    max_steps: int = 20_000
    """Most steps to attempt."""
    strict: bool = False
    """Exit with status 3 if the certificate does not hold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Escape(Integration):
    """Saddle escape: the gradient flow of the full loss in escape coordinates, from a small
    initialisation to the plateau that follows the first one."""

    samples: int | Literal["all"] | None = None
    """Number of samples, drawn at random from digits and mnist, of which there may be all;
    50 if None, 8 on the circle."""
    width: int = 16
    """Neurons in each hidden layer."""
    full: bool = False
    """All samples at width 64, in place of --samples and --width."""
    localized: bool = False
    """Integrate the localized loss, and stop when the direction has converged."""
    settled: float = 1e-3
    """Stop once the mean rate of fall of the risk is this fraction of its largest."""
    tau_max: float = math.inf
    """Stop at this τ at the latest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow(Integration):
    """Gradient flow in physical time, or in the clock of the loss or of arc length."""

    init_scale: float = 10.0
    """Norm of all parameters together at the start."""
    depth: int = 3
    """L, the number of weight matrices."""
    t1: float = 20.0
    """End of the run, in the clock chosen."""
    clock: Literal["physical", "loss", "arc"] = "physical"
    """The clock to integrate in."""
    weight_decay: float = 0.0
    """λ of the penalty λ‖θ‖² (its gradient is 2λθ)."""
    risk_below: float | None = None
    """Stop once the risk is this small."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descend(Setup):
    """Gradient descent, or SGD, on the time axis t = Σ lr."""

    init_scale: float = 10.0
    """Norm of all parameters together at the start."""
    depth: int = 3
    """L, the number of weight matrices."""
    learning_rate: float = 0.02
    """Learning rate; with --norm-scaled the constant c of c/‖θ‖^(L−2)."""
    norm_scaled: bool = False
    """Divide the learning rate by ‖θ‖^(L−2), as Bantzis et al. do."""
    steps: int = 1000
    """Number of steps."""
    batch_size: int | None = None
    """Samples a step, without replacement within an epoch; all if None."""
    weight_decay: float = 0.0
    """λ of the penalty λ‖θ‖² (its gradient is 2λθ)."""


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
        command = dataclasses.replace(command, samples="all", width=_FULL_WIDTH)
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


def make_problem(setup: Setup) -> Problem:
    """The problem that the settings describe."""
    dataset = _dataset(setup)
    loss = setup.loss or ("cross_entropy" if setup.data in _IMAGES else "squared")
    return Problem(dataset, getattr(losses, loss))


def make_net(setup: Setup) -> MLP:
    """The network that the settings describe, at its initial norm.

    Raises:
        ValueError: on a depth, width or scale that makes no network.
    """
    for name in ("depth", "width", "init_scale", "max_saves"):
        if not getattr(setup, name) > 0:
            raise ValueError(
                f"--{name.replace('_', '-')} {getattr(setup, name)}: must be positive."
            )
    dataset = _dataset(setup)
    ends = dataset.x.shape[1], dataset.y.shape[-1]
    numbers = num_parameters(ends[0], setup.width, setup.depth, ends[1])
    check_memory("--depth and --width", (setup.depth, setup.width), numbers)
    kept = setup.max_saves * numbers
    check_memory("--max-saves", setup.max_saves, kept, copies=1)
    widths = [ends[0], *[setup.width] * (setup.depth - 1), ends[1]]
    scale = jnp.asarray(setup.init_scale, setup.dtype)
    key = jax.random.key(setup.seed)
    return draw_net(widths, setup.activation, key, scale, setup.dtype)


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


def _dataset(setup: Setup) -> Dataset:
    if setup.data == "mnist" and setup.path is None:
        raise ValueError("--data mnist needs --path FILE; nothing is downloaded.")
    if setup.data != "mnist" and setup.path is not None:
        raise ValueError(f"--path {setup.path}: is for --data mnist.")
    samples = _num_samples(setup)
    return load_dataset(setup.data, samples, setup.seed, setup.dtype, setup.path)


def _num_samples(setup: Setup) -> int | None:
    """How many samples are asked for, None for all; refused where there are none such."""
    data, samples = setup.data, setup.samples
    if samples is None:
        few = _ESCAPE_SAMPLES if isinstance(setup, Escape) else _DEFAULT_SAMPLES
        return NUM_SAMPLES["circle"] if data == "circle" else few
    if samples == "all":
        if data not in _IMAGES:
            raise ValueError(f"--samples all: {data} data are made; give a number.")
        return None
    if samples < 1:
        raise ValueError(f"--samples {samples}: must be positive.")
    if data == "digits" and samples > NUM_SAMPLES["digits"]:
        raise ValueError(
            f"--samples {samples}: there are {NUM_SAMPLES['digits']} digits; give no more, "
            "or all."
        )
    if data == "circle" and samples % 2:
        raise ValueError(f"--samples {samples}: must be even on the circle.")
    return samples


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
