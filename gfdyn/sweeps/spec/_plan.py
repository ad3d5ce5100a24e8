"""What is computed together: points of one shape in batches, the longest first."""

import dataclasses
import functools
import hashlib
import json
import math
from typing import Any

import jax
import numpy as np

from ._fields import plain
from ._settings import DescentSettings, Point, Recipe, sections
from ._spec import Spec


# Of the files that points are kept in; a part of their names.
_FORMAT = 1
_ACCELERATOR_LANES = 32


@dataclasses.dataclass(frozen=True)
class PointBatch:
    """Points that one program integrates, side by side in the lanes of the recipe."""

    points: tuple[Point, ...]
    recipe: Recipe

    @functools.cached_property
    def digests(self) -> tuple[str, ...]:
        """A fingerprint of each point: of all that its result depends on."""
        recipe = plain(self.recipe)
        return tuple(
            _digest([type(point.run).__name__, plain(point), recipe])
            for point in self.points
        )

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of the batch."""
        return _digest(self.digests)


@dataclasses.dataclass(frozen=True)
class Plan:
    """All batches of a sweep.

    Attributes:
        batches: in the order in which they are computed.
        places: where on the grid a point is, by its fingerprint.
    """

    batches: tuple[PointBatch, ...]
    places: dict[str, tuple[int, ...]]


def resolved(spec: Spec) -> Spec:
    """The spec with its number of lanes; what is fastest on this device if it has none."""
    if spec.engine.lanes is not None:
        return spec
    each = 1 if jax.default_backend() == "cpu" else _ACCELERATOR_LANES
    engine = dataclasses.replace(spec.engine, lanes=each * spec.engine.devices)
    return dataclasses.replace(spec, engine=engine)


def make_plan(spec: Spec) -> Plan:
    """The batches of a resolved spec. They depend on nothing else, not on what is done
    already, so that a sweep that was interrupted repeats them."""
    groups: dict[str, list[tuple[tuple[int, ...], Point]]] = {}
    for place, point in spec.points():
        groups.setdefault(_shape(point), []).append((place, point))
    batches, places = [], {}
    for group in groups.values():
        group.sort(key=lambda entry: -_cost(entry[1]))
        recipe = _recipe(spec, group[0][1], len(group))
        for first in range(0, len(group), recipe.lanes):
            chunk = group[first : first + recipe.lanes]
            batch = PointBatch(tuple(point for _, point in chunk), recipe)
            batches.append(batch)
            where = [place for place, _ in chunk]
            places |= dict(zip(batch.digests, where, strict=True))
    return Plan(tuple(batches), places)


def _shape(point: Point) -> str:
    """What makes a program of its own."""
    shape = {}
    for name, settings in sections(point).items():
        values = plain(settings)
        for field in settings.ARGUMENTS:
            values.pop(field, None)
        for field in settings.SWITCHES:
            values[field] = bool(values.get(field))
        shape[name] = values
    return json.dumps([type(point.run).__name__, shape])


def _cost(point: Point) -> float:
    """How long it takes, up to a factor: tight tolerances and long plateaus do."""
    if isinstance(point.run, DescentSettings):
        return float(point.run.steps)
    plateau = 1 + abs(math.log(point.net.init_scale))
    return plateau * point.solver.rtol**-0.2


def _recipe(spec: Spec, point: Point, size: int) -> Recipe:
    engine = spec.engine
    assert engine.lanes is not None
    # No more than there are points, or than fit in the memory.
    fitting = int(engine.memory_gb * 1e9 / _bytes(spec, point))
    lanes = max(1, min(engine.lanes, size, fitting))
    # Each device has as many.
    lanes = engine.devices * math.ceil(lanes / engine.devices)
    return Recipe(
        records=spec.records,
        max_saves=spec.max_saves,
        weights=spec.weights,
        dtype=spec.dtype,
        lanes=lanes,
        devices=engine.devices,
        checkpoint_every=engine.checkpoint_every,
    )


def _bytes(spec: Spec, point: Point) -> int:
    """About what a lane takes: the saves, and a solver's copies of net and activations."""
    first, last = point.problem.ends
    widths = [first, *[point.net.width] * (point.net.depth - 1), last]
    weights = sum(a * b for a, b in zip(widths, widths[1:], strict=False))
    work = 20 * (weights + point.problem.num_samples * sum(widths))
    return np.dtype(spec.dtype).itemsize * ((spec.max_saves + 1) * weights + work)


def _digest(value: Any) -> str:
    text = json.dumps([_FORMAT, value], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
