"""The points of a sweep as one dataset, and how far it is."""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...run import SUCCESSES
from ..spec import format_spec, make_plan, read_spec, short_names
from ._manifest import mixture
from ._store import PointFile, Store


if TYPE_CHECKING:
    import xarray as xr


Place = tuple[int, ...]
# Of each axis, the indices that a dataset covers.
Block = Sequence[Sequence[int]]
_TEXTS = ("result", "reason", "stopped_by")


@dataclasses.dataclass(frozen=True)
class Status:
    """How far a sweep is.

    Attributes:
        total: how many points it has.
        results: how many of them ended with each result of `gf.RESULTS`; `error`: could
            not be computed, and are tried again when the sweep is run again.
        under_way: batches with a checkpoint.
        mixture: the versions of gfdyn and JAX that computed them, if they are several.
    """

    total: int
    results: Mapping[str, int]
    under_way: int
    mixture: str = ""

    @property
    def ok(self) -> int:
        """How many points reached their end or met a stop condition."""
        return sum(self.results.get(name, 0) for name in SUCCESSES)

    @property
    def done(self) -> int:
        """How many points have a result."""
        return sum(self.results.values()) - self.results.get("error", 0)

    def __str__(self) -> str:
        """In one line."""
        counts = "".join(f", {n} {name}" for name, n in sorted(self.results.items()))
        running = f"; {self.under_way} batches under way" if self.under_way else ""
        mixed = f"; of mixed versions: {self.mixture}" if self.mixture else ""
        return f"{self.done} of {self.total} points done{counts}{running}{mixed}"


def status(out: str | os.PathLike) -> Status:
    """How far the sweep in a folder is.

    Args:
        out: the folder of the sweep.

    Raises:
        FileNotFoundError: if there is no sweep.
    """
    folder = SweepFolder(out)
    ends = dict.fromkeys(folder.failures(), "error")
    ends |= {place: file.result for place, file in folder.files()}
    under_way = len(list(folder.store.checkpoints.glob("*.eqx")))
    results = dict(Counter(ends.values()))
    return Status(len(folder.places), results, under_way, mixture(folder.store))


def outcomes(out: str | os.PathLike) -> "xr.Dataset":
    """How the points of a sweep ended: results, reasons, risks, counts and certificates,
    over all axes; `missing` where a point is not done, `error` where it failed.

    Args:
        out: the folder of the sweep.

    Raises:
        FileNotFoundError: if there is no sweep.
    """
    folder = SweepFolder(out)
    return folder.outcomes(folder.ends(), folder.everywhere)


def collect(out: str | os.PathLike) -> "xr.Dataset | xr.DataTree":
    """All results of a sweep, over its axes and `save`: outcomes and records.

    Trajectories are of different lengths: rows beyond their ends are NaN. Where records
    differ in shape, as stable ranks do over depths, it is a tree with a node for each
    shape, such as `tree["depth=3"]`; there the axis `depth` has length 1.

    Args:
        out: the folder of the sweep.

    Raises:
        FileNotFoundError: if there is no sweep.
    """
    import xarray as xr

    folder = SweepFolder(out)
    points = dict(folder.points())
    ends = folder.failures() | {place: point.attrs for place, point in points.items()}
    apart = _axes_apart(points, len(folder.dims))
    if not apart:
        return folder.dataset(ends, points, folder.everywhere)
    nodes = {}
    for choice in sorted({tuple(p[i] for i in apart) for p in folder.places.values()}):
        block: list[Sequence[int]] = list(folder.everywhere)
        label = []
        for axis, index in zip(apart, choice, strict=True):
            block[axis] = [index]
            label.append(f"{folder.dims[axis]}={folder.values(axis)[index]}")
        nodes[",".join(label)] = folder.dataset(ends, points, block)
    tree = xr.DataTree.from_dict(nodes)
    tree.attrs["spec"] = format_spec(folder.spec)
    return tree


class SweepFolder:
    """The folder of a sweep, with the places of its points on the grid."""

    def __init__(self, out: str | os.PathLike):
        self.store = Store(out)
        self.spec = read_spec(self.store.spec)
        # A sweep that runs writes down how many lanes it has chosen.
        if self.spec.engine.lanes is None:
            raise ValueError(
                f"{self.store.spec}: lacks engine.lanes, so that no sweep has run here; "
                f"run it with gfdyn sweep {self.store.spec} --out {self.store.path}."
            )
        self.places = make_plan(self.spec).places
        self.names = short_names(list(self.spec.axes))
        self.dims = [self.names[dim[0]] for dim in self.spec.dims]
        self.everywhere = [range(len(self.values(i))) for i in range(len(self.dims))]

    def values(self, axis: int) -> Sequence[Any]:
        """Those along an axis of the grid."""
        return self.spec.axes[self.spec.dims[axis][0]]

    def points(self) -> "Iterator[tuple[Place, xr.Dataset]]":
        """The results that are there, each with its place."""
        for place, file in self.files():
            point = self.store.read_point(file.path)
            if point is not None:
                yield place, point

    def ends(self) -> dict[Place, Mapping[str, Any]]:
        """How points ended, by their places."""
        found = self.failures()
        for place, file in self.files():
            end = self.store.read_attributes(file.path)
            if end is not None:
                found[place] = end
        return found

    def failures(self) -> dict[Place, Mapping[str, Any]]:
        """The points that could not be computed."""
        return {
            self.places[digest]: {"result": "error", "reason": reason}
            for digest, reason in self.store.read_failures().items()
            if digest in self.places
        }

    def dataset(
        self, ends: Mapping[Place, Any], points: "Mapping[Place, xr.Dataset]", block: Block
    ) -> "xr.Dataset":
        """Outcomes and records of a block of the grid."""
        import xarray as xr

        inside = {place: points[place] for place in _within(block) if place in points}
        longest = max((point.sizes["save"] for point in inside.values()), default=0)
        first = next(iter(inside.values()), xr.Dataset())
        variables = {}
        for name, variable in first.variables.items():
            if name in first.dims:
                variables[name] = variable
                continue
            sizes = dict(variable.sizes)
            if "save" in sizes:
                sizes["save"] = longest
            values = _nothing(variable.dtype, [*map(len, block), *sizes.values()])
            for place, point in inside.items():
                rows = point[name].values
                where = tuple(slice(n) for n in rows.shape)
                values[(*_index(place, block), *where)] = rows
            variables[name] = ((*self.dims, *sizes), values, variable.attrs)
        records = xr.Dataset(variables).set_coords(
            [name for name in first.coords if name not in first.dims]
        )
        return records.merge(self.outcomes(ends, block), combine_attrs="drop_conflicts")

    def outcomes(self, ends: Mapping[Place, Any], block: Block) -> "xr.Dataset":
        """How the points of a block of the grid ended."""
        import xarray as xr

        inside = {place: ends[place] for place in _within(block) if place in ends}
        names = dict.fromkeys(name for end in inside.values() for name in end)
        names = [*_TEXTS, *(n for n in names if n not in (*_TEXTS, "settings"))]
        shape = [len(indices) for indices in block]
        variables = {}
        for name in names:
            text = name in _TEXTS
            values = np.full(shape, "" if text else np.nan, object if text else float)
            if name == "result":
                values[...] = "missing"
            for place, end in inside.items():
                if name in end:
                    values[_index(place, block)] = end[name]
            variables[name] = (self.dims, values)
        coords = {}
        for dim, group, indices in zip(self.dims, self.spec.dims, block, strict=True):
            for name in group:
                chosen = [self.spec.axes[name][i] for i in indices]
                coords[self.names[name]] = (dim, np.asarray(chosen))
        attrs = {"spec": format_spec(self.spec)}
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def files(self) -> Iterator[tuple[Place, PointFile]]:
        """One file a point: computed on two machines, it may have two."""
        seen = set()
        for file in self.store.point_files():
            if file.digest in self.places and file.digest not in seen:
                seen.add(file.digest)
                yield self.places[file.digest], file


def _axes_apart(points: "Mapping[Place, xr.Dataset]", num_axes: int) -> list[int]:
    """The axes along which results differ in shape."""
    shapes = {
        place: tuple(
            (name, tuple(n for dim, n in variable.sizes.items() if dim != "save"))
            for name, variable in sorted(point.variables.items())
        )
        for place, point in points.items()
    }
    apart = []
    for axis in range(num_axes):
        found: dict[int, set] = {}
        for place, shape in shapes.items():
            found.setdefault(place[axis], set()).add(shape)
        if len({frozenset(each) for each in found.values()}) > 1:
            apart.append(axis)
    return apart


def _within(block: Block) -> Iterator[Place]:
    return itertools.product(*block)


def _index(place: Place, block: Block) -> Place:
    """Where a place of the grid is in a block of it."""
    return tuple(indices.index(i) for i, indices in zip(place, block, strict=True))


def _nothing(dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """An array of which nothing is known: NaN, or empty texts."""
    if dtype.kind in "OUS":
        return np.full(shape, "", object)
    kept = dtype if dtype.kind == "f" else np.dtype(float)
    return np.full(shape, np.nan, kept)
