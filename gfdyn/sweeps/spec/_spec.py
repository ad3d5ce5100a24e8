"""A sweep as its user writes it: settings, axes, and how it is computed."""

import dataclasses
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ... import diagnostics
from ._axes import conform_axis, dimensions, grid
from ._fields import check_names, conform, require, suggestion
from ._settings import (
    EscapeSettings,
    NetSettings,
    Point,
    ProblemSettings,
    RunSettings,
    SolverSettings,
)


_SECTIONS = ("problem", "net", "run", "solver")
_ADDRESS = re.compile(
    r"((tcp|tls|ws|wss|ucx)://)?([^\s\[\]:/]+|\[[0-9a-fA-F:.]+\]):\d{1,5}"
)
_RECORDS = ("risk", "stable_rank", "layer_norms", "escape_speed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How a sweep is computed.

    Attributes:
        name: serial (in this process), processes, or dask.
        workers: how many processes, or workers of a cluster that is started here; one a
            core if None.
        address: of a running Dask cluster, as tcp://host:8786.
        wait: seconds that a Dask cluster has until a worker is there, or there again; a
            third of them until its scheduler answers.
        gpus: how many of a Dask worker's resource `GPU` a batch takes.
        lanes: points of one shape integrated side by side. If None, 1 on a CPU, where
            that is fastest, and 32 on an accelerator.
        devices: over which the lanes of a batch are spread.
        memory_gb: lanes are cut down to what fits in this.
        checkpoint_every: attempts between two checkpoints of a batch.
    """

    name: Literal["serial", "processes", "dask"] = "serial"
    workers: int | None = None
    address: str | None = None
    wait: float = 60.0
    gpus: int = 0
    lanes: int | None = None
    devices: int = 1
    memory_gb: float = 4.0
    checkpoint_every: int = 2000

    def __post_init__(self):
        """Check the fields."""
        conform(self, "engine")
        for name in ("workers", "lanes", "devices", "checkpoint_every"):
            value = getattr(self, name)
            require(
                value is None or value >= 1, f"engine.{name}", value, "must be 1 or more."
            )
        require(self.gpus >= 0, "engine.gpus", self.gpus, "must be 0 or more.")
        fits = self.lanes is None or self.lanes % self.devices == 0
        remedy = f"must be a multiple of engine.devices={self.devices}."
        require(fits, "engine.lanes", self.lanes, remedy)
        require(self.memory_gb > 0, "engine.memory_gb", self.memory_gb, "must be positive.")
        fits = self.address is None or self.name == "dask"
        remedy = f"is of a Dask cluster, but engine.name={self.name!r}; make that 'dask'."
        require(fits, "engine.address", self.address, remedy)
        fits = self.address is None or _ADDRESS.fullmatch(self.address) is not None
        remedy = "must be tcp://HOST:PORT, as tcp://10.0.0.1:8786."
        require(fits, "engine.address", self.address, remedy)
        fits = 0 < self.wait < math.inf
        require(fits, "engine.wait", self.wait, "must be positive and finite: seconds.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """A sweep: the settings that its points share, and the axes along which they differ.

    >>> spec = Spec(name="scales", axes={"net.init_scale": (1.0, 1e-3), "net.seed": (0, 1)})
    >>> len(spec)
    4

    Attributes:
        name: what the sweep is called.
        problem: the data and the loss.
        net: the network where it starts.
        run: `EscapeSettings`, `FlowSettings` or `DescentSettings`.
        solver: how a flow is integrated.
        records: names of `gf.diagnostics` to measure at the saves.
        max_saves: most rows kept of a trajectory; an even number, as saves are thinned.
        weights: which weights are kept in the files: none, those at the end, or all.
        dtype: precision of data and parameters.
        axes: values of settings by dotted names, `{"net.init_scale": (1.0, 1e-3)}`. All
            combinations are points, the last axis fastest.
        zip: groups of axes that vary together instead.
        engine: how it is computed. The results do not depend on its name, workers,
            address, gpus and wait.

    Raises:
        ValueError: naming the field, its value and the remedy.
    """

    name: str = "sweep"
    problem: ProblemSettings = ProblemSettings()
    net: NetSettings = NetSettings()
    run: RunSettings = EscapeSettings()
    solver: SolverSettings = SolverSettings()
    records: tuple[str, ...] = _RECORDS
    max_saves: int = 256
    weights: Literal["none", "final", "all"] = "none"
    dtype: Literal["float32", "float64"] = "float64"
    axes: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    zip: tuple[tuple[str, ...], ...] = ()
    engine: EngineSettings = EngineSettings()

    def __post_init__(self):
        """Check the fields, and each value of the axes."""
        # The sections have checked themselves.
        simple = ("name", "records", "max_saves", "weights", "dtype", "zip")
        conform(self, "", simple)
        require(bool(self.name), "name", self.name, "must not be empty.")
        fits = self.max_saves >= 4 and self.max_saves % 2 == 0
        require(fits, "max_saves", self.max_saves, "must be an even number of at least 4.")
        known = _measures()
        for i, name in enumerate(self.records):
            if name not in known:
                nearest = suggestion(name, known)
                raise ValueError(f"records[{i}]={name!r} is no diagnostic{nearest}")
        axes = {}
        for name, values in self.axes.items():
            section = name.partition(".")[0]
            check_names([section], _SECTIONS, "axes")
            axes[name] = conform_axis(name, values, getattr(self, section))
        object.__setattr__(self, "axes", axes)
        for name, values in axes.items():
            section, _, field = name.partition(".")
            for value in values:
                dataclasses.replace(getattr(self, section), **{field: value})
        dimensions(axes, self.zip)

    @property
    def dims(self) -> tuple[tuple[str, ...], ...]:
        """The axes of the grid, by the names of the settings that vary along each."""
        return dimensions(self.axes, self.zip)

    def __len__(self) -> int:
        """The number of points."""
        size = 1
        for dim in self.dims:
            size *= len(self.axes[dim[0]])
        return size

    def points(self) -> Iterator[tuple[tuple[int, ...], Point]]:
        """The points in order, each with its place on the grid."""
        for place, values in grid(self.axes, self.dims):
            changes: dict[str, dict[str, Any]] = {}
            for name, value in values.items():
                section, _, field = name.partition(".")
                changes.setdefault(section, {})[field] = value
            parts = {
                section: dataclasses.replace(getattr(self, section), **change)
                for section, change in changes.items()
            }
            rest = {s: getattr(self, s) for s in _SECTIONS if s not in parts}
            yield place, Point(**parts, **rest)


def _measures() -> list[str]:
    """The diagnostics that need no more than a problem and a net."""
    names = []
    for name, function in vars(diagnostics).items():
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters.values()
            needed = [each.name for each in parameters if each.default is each.empty]
            if needed == ["problem", "net"]:
                names.append(name)
    return names
