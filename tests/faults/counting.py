"""The trials of rows, counted by processes side by side."""

import concurrent.futures
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from of_flows import ROWS as OF_FLOWS
from of_saves import IN_MANY_SHAPES
from rows import ROWS
from table import Row

from gfdyn._program_limit import make_room


# Compiling and descending take one core each.
PROCESSES = 2


def counts(rows: Sequence[Row]) -> Iterator[list[dict[str, Any]]]:
    """What comes of the trials of rows, as they end: some rows of the report at a time."""
    method = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, method, in_doubles) as pool:
        tasks = [
            # Rows are told by their place, as what they try cannot be pickled.
            pool.submit(count_together, [ROWS.index(row) for row in together])
            for together in shares(rows)
        ]
        for task in concurrent.futures.as_completed(tasks):
            yield task.result()


def in_doubles() -> None:
    """Trials compute in float64."""
    jax.config.update("jax_enable_x64", True)


def shares(rows: Sequence[Row]) -> list[list[Row]]:
    """What is one process's work, the longest first.

    Rows of flows stay together, as one program descends flows of all structures.
    """
    flows = [row for row in rows if row in OF_FLOWS]
    others = [[row] for row in rows if row not in OF_FLOWS]
    others.sort(key=lambda share: share != [IN_MANY_SHAPES])
    return [flows, *others] if flows else others


def count_together(places: Sequence[int]) -> list[dict[str, Any]]:
    """The rows at these places of the table, one after the other."""
    return [count(ROWS[place]) for place in places]


def count(row: Row) -> dict[str, Any]:
    """A row of the report: how its trials ended, and which of them did not end well."""
    counted: Counter[str] = Counter()
    wrong: dict[str, list[int]] = {}
    for i, outcome in enumerate(row.outcomes(row.trials)):
        counted[outcome.value] += 1
        if not outcome.is_good:
            wrong.setdefault(outcome.value, []).append(i)
        make_room()
    described = {"part": row.part, "fault": row.fault, "expected": row.expected}
    found = {**described, "outcomes": dict(sorted(counted.items()))}
    return {**found, "trials": wrong} if wrong else found
