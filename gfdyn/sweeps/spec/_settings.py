"""What a point of a sweep is: the problem, the net, the run and the solver.

Each class says which of its fields are arguments of the compiled program (`ARGUMENTS`),
and which of these are left out of it at 0 or None (`SWITCHES`). All other fields decide
its shape, and each of their values compiles anew.
"""

import dataclasses
import math
from typing import Any, ClassVar, Literal

from ...nets import activation
from ._fields import conform, require


DataName = Literal["digits", "circle", "teacher", "mnist"]
LossName = Literal["squared", "logistic", "exponential", "cross_entropy"]
_IMAGES = ("digits", "mnist")
# How many samples there are; or are made, of what is synthetic.
NUM_SAMPLES = {"digits": 1797, "mnist": 60_000, "circle": 8, "teacher": 300}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemSettings:
    """The data and the loss.

    Attributes:
        data: the data set.
        samples: how many, drawn at random where there are more; if None all of the
            images, 8 on the circle, 300 of the teacher.
        loss: cross_entropy for images, squared otherwise, if None.
        seed: of the teacher, and of the choice of samples.
        teacher: its widths, from the inputs to the outputs.
        path: file or folder with MNIST.
    """

    data: DataName = "teacher"
    samples: int | None = None
    loss: LossName | None = None
    seed: int = 0
    teacher: tuple[int, ...] = (10, 5, 1)
    path: str | None = None

    ARGUMENTS: ClassVar = ("seed",)
    SWITCHES: ClassVar = ()

    def __post_init__(self):
        """Check the fields."""
        conform(self, "problem")
        n = self.samples
        require(n is None or n >= 1, "problem.samples", n, "must be 1 or more.")
        if self.data == "circle":
            fits = n is None or n % 2 == 0
            require(fits, "problem.samples", n, "must be even on the circle.")
        if self.data == "digits":
            most = NUM_SAMPLES["digits"]
            fits = n is None or n <= most
            require(fits, "problem.samples", n, f"exceeds the {most} digits there are.")
        fits = len(self.teacher) >= 2 and min(self.teacher) >= 1
        remedy = "must list 2 or more positive widths, as [10, 5, 1]."
        require(fits, "problem.teacher", list(self.teacher), remedy)
        fits = self.data != "mnist" or self.path is not None
        remedy = "names no file; mnist is read from disk, nothing is downloaded."
        require(fits, "problem.path", self.path, remedy)

    @property
    def loss_name(self) -> str:
        """The loss, with its default filled in."""
        return self.loss or ("cross_entropy" if self.data in _IMAGES else "squared")

    @property
    def ends(self) -> tuple[int, int]:
        """The numbers of inputs and outputs."""
        images = {"digits": (64, 10), "mnist": (784, 10)}
        synthetic = {"circle": (2, 1), "teacher": (self.teacher[0], self.teacher[-1])}
        return (images | synthetic)[self.data]

    @property
    def num_samples(self) -> int:
        """How many samples, with the default filled in; of MNIST at most."""
        return NUM_SAMPLES[self.data] if self.samples is None else self.samples


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetSettings:
    """The network where it starts.

    Attributes:
        depth: L, the number of weight matrices.
        width: neurons in each hidden layer.
        activation: relu, identity or leaky_relu(SLOPE).
        init_scale: norm of all parameters together.
        seed: of the draw.
    """

    depth: int = 3
    width: int = 32
    activation: str = "relu"
    init_scale: float = 1e-3
    seed: int = 0

    ARGUMENTS: ClassVar = ("init_scale", "seed")
    SWITCHES: ClassVar = ()

    def __post_init__(self):
        """Check the fields."""
        conform(self, "net")
        require(self.depth >= 1, "net.depth", self.depth, "must be 1 or more.")
        require(self.width >= 1, "net.width", self.width, "must be 1 or more.")
        positive = 0 < self.init_scale < math.inf
        remedy = "must be positive and finite: it is the norm of all parameters."
        require(positive, "net.init_scale", self.init_scale, remedy)
        try:
            activation(self.activation)
        except ValueError as error:
            raise ValueError(f"net.{error}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class EscapeSettings:
    """Gradient flow in escape coordinates.

    Attributes:
        localized: integrate the localized loss until the direction has converged.
        settled: stop once the mean rate of fall of the risk is this fraction of its
            largest: on the plateau that follows the first one. 0 for no such stop.
        risk_below: stop once the risk is this small.
        tau_max: stop at this τ at the latest.
    """

    localized: bool = False
    settled: float = 1e-3
    risk_below: float | None = None
    tau_max: float = math.inf

    ARGUMENTS: ClassVar = ("tau_max",)
    SWITCHES: ClassVar = ("settled", "risk_below")

    def __post_init__(self):
        """Check the fields."""
        conform(self, "run")
        within = 0 <= self.settled < 1
        require(within, "run.settled", self.settled, "must lie in [0, 1); 0 for none.")
        _check_risk(self.risk_below)
        require(self.tau_max > 0, "run.tau_max", self.tau_max, "must be positive.")
        ends = self.localized or self.settled or self.risk_below
        remedy = "never ends; give it, or run.settled or run.risk_below."
        require(bool(ends) or self.tau_max < math.inf, "run.tau_max", self.tau_max, remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """Gradient flow in physical time, or in the clock of the loss or of arc length.

    Attributes:
        t1: end of the run, in the clock chosen.
        clock: the clock to integrate in.
        weight_decay: λ of the penalty λ‖θ‖² (its gradient is 2λθ).
        risk_below: stop once the risk is this small.
    """

    t1: float = 20.0
    clock: Literal["physical", "loss", "arc"] = "physical"
    weight_decay: float = 0.0
    risk_below: float | None = None

    ARGUMENTS: ClassVar = ("t1",)
    SWITCHES: ClassVar = ("weight_decay", "risk_below")

    def __post_init__(self):
        """Check the fields."""
        conform(self, "run")
        require(self.t1 > 0, "run.t1", self.t1, "must be positive.")
        ends = self.t1 < math.inf or self.risk_below is not None
        require(ends, "run.t1", self.t1, "never ends; give it, or run.risk_below.")
        _check_decay(self.weight_decay)
        _check_risk(self.risk_below)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescentSettings:
    """Gradient descent, or SGD, on the time axis t = Σ rate.

    Attributes:
        learning_rate: the rate; with `norm_scaled` the constant c of c/‖θ‖^(L−2).
        norm_scaled: divide the rate by ‖θ‖^(L−2).
        steps: how many.
        batch_size: samples a step, without replacement within an epoch; all if None.
        weight_decay: λ of the penalty λ‖θ‖² (its gradient is 2λθ).
        momentum: β of the heavy ball.
    """

    learning_rate: float = 0.02
    norm_scaled: bool = False
    steps: int = 1000
    batch_size: int | None = None
    weight_decay: float = 0.0
    momentum: float = 0.0

    ARGUMENTS: ClassVar = ("learning_rate",)
    SWITCHES: ClassVar = ("weight_decay", "momentum")

    def __post_init__(self):
        """Check the fields."""
        conform(self, "run")
        rate, size = self.learning_rate, self.batch_size
        require(0 < rate < math.inf, "run.learning_rate", rate, "must be positive.")
        require(self.steps >= 1, "run.steps", self.steps, "must be 1 or more.")
        require(size is None or size >= 1, "run.batch_size", size, "must be 1 or more.")
        _check_decay(self.weight_decay)
        within = 0 <= self.momentum < 1
        require(within, "run.momentum", self.momentum, "must lie in [0, 1).")


RunSettings = EscapeSettings | FlowSettings | DescentSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class SolverSettings:
    """How a flow is integrated; a descent needs none of it.

    Attributes:
        name: adaptive, or exact: through kinks and along those that neurons slide on.
        rtol: relative tolerance per step.
        max_steps: most steps to attempt.
    """

    name: Literal["adaptive", "exact"] = "exact"
    rtol: float = 1e-4
    max_steps: int = 20_000

    ARGUMENTS: ClassVar = ("rtol",)
    SWITCHES: ClassVar = ()

    def __post_init__(self):
        """Check the fields."""
        conform(self, "solver")
        require(0 < self.rtol < 1, "solver.rtol", self.rtol, "must lie between 0 and 1.")
        remedy = "must be 1 or more."
        require(self.max_steps >= 1, "solver.max_steps", self.max_steps, remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What all points of a batch share, and their files depend on.

    Attributes:
        records: names of diagnostics.
        max_saves: most rows kept of a trajectory.
        weights: which weights are kept: none, those at the end, or at all saves.
        dtype: precision of data and parameters.
        lanes: points that are integrated side by side.
        devices: over which the lanes are spread.
        checkpoint_every: attempts between two checkpoints.
    """

    records: tuple[str, ...]
    max_saves: int
    weights: str
    dtype: str
    lanes: int
    devices: int
    checkpoint_every: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a sweep; with the recipe, all that its result depends on."""

    problem: ProblemSettings
    net: NetSettings
    run: RunSettings
    solver: SolverSettings

    def __post_init__(self):
        """Check what the parts have to say of each other."""
        if isinstance(self.run, DescentSettings):
            size, n = self.run.batch_size, self.problem.num_samples
            fits = size is None or size <= n
            require(fits, "run.batch_size", size, f"exceeds the {n} samples.")


def _check_risk(value: float | None) -> None:
    require(value is None or value > 0, "run.risk_below", value, "must be positive.")


def _check_decay(value: float) -> None:
    within = 0 <= value < math.inf
    require(within, "run.weight_decay", value, "must be 0 or more, and finite.")


def sections(point: Point) -> dict[str, Any]:
    """The parts of a point by the names they have in a spec."""
    return {name: getattr(point, name) for name in ("problem", "net", "run", "solver")}
