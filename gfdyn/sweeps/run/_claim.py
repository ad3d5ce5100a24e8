"""One folder, one sweep."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..results import Store
from ..spec import Spec, as_table, read_spec, resolved, write_spec


# Where a sweep is computed, which its results do not depend on.
_PLACE = tuple(f"engine.{name}" for name in ("name", "workers", "address", "gpus", "wait"))


def claim(store: Store, spec: Spec) -> Spec:
    """The spec with its lanes, after it was written to the folder or found there.

    Raises:
        ValueError: if the folder is of another sweep, naming what differs.
    """
    if not store.spec.exists():
        write_spec(resolved(spec), store.spec)
    stored = read_spec(store.spec)
    if spec.engine.lanes is None:
        engine = dataclasses.replace(spec.engine, lanes=stored.engine.lanes)
        spec = dataclasses.replace(spec, engine=engine)
    theirs, ours = (dict(_entries(as_table(each))) for each in (stored, spec))
    for name in sorted({*theirs, *ours}.difference(_PLACE)):
        if theirs.get(name) != ours.get(name):
            raise ValueError(
                f"{store.path} holds another sweep, with {name}={theirs.get(name)!r} "
                f"where this one has {ours.get(name)!r}; give a folder of its own."
            )
    if list(stored.axes) != list(spec.axes):
        raise ValueError(
            f"{store.path} holds another sweep, with its axes in the order "
            f"{list(stored.axes)}; give a folder of its own."
        )
    return spec


def _entries(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _entries(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
