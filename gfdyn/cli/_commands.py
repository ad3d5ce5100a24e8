"""What the commands take: problem, network, flow or descent, and where results go."""

import dataclasses
import math
from pathlib import Path
from typing import Literal

from ..sweeps.spec import DataName, LossName


SolverName = Literal["adaptive", "exact"]
FULL_WIDTH = 64


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
