"""The trials of rows, counted by processes side by side."""

import concurrent.futures
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from of_flows import ROWS as OF_FLOWS, trials_of_programs
from of_saves import IN_MANY_SHAPES
from rows import ROWS
from table import Outcome, Row

from gfdyn._program_limit import make_room


# Compiling and descending take one core each.
PROCESSES = 2

# Some trials of some rows, which are told by their place, as what they try cannot be
# pickled; and what came of them.
Share = tuple[Sequence[int], Sequence[int]]
Found = dict[int, dict[int, Outcome]]


def counts(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """What comes of the trials of rows: rows of the report, as they end."""
    method = multiprocessing.get_context("spawn")
    found: Found = {ROWS.index(row): {} for row in rows}
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, method, in_doubles) as pool:
        tasks = [pool.submit(tried, share) for share in shares(rows)]
        for task in concurrent.futures.as_completed(tasks):
            for place, outcomes in task.result().items():
                found[place] |= outcomes
                if len(found[place]) == ROWS[place].trials:
                    yield described(ROWS[place], found[place])


def in_doubles() -> None:
    """Trials compute in float64."""
    jax.config.update("jax_enable_x64", True)


def shares(rows: Sequence[Row]) -> list[Share]:
    """What is one process's work at a time, the longest first: flows by the program that
    integrates them, and each other row."""
    flows = [ROWS.index(row) for row in rows if row in OF_FLOWS]
    others = [row for row in rows if row not in OF_FLOWS]
    others.sort(key=lambda row: row != IN_MANY_SHAPES)
    alone = [([ROWS.index(row)], range(row.trials)) for row in others]
    by_program = [(flows, trials) for trials in trials_of_programs()] if flows else []
    return [*by_program, *alone]


def tried(share: Share) -> Found:
    """What comes of these trials, one after the other."""
    found: Found = {}
    for place in share[0]:
        found[place] = {}
        outcomes = ROWS[place].outcomes(share[1])
        for trial, outcome in zip(share[1], outcomes, strict=True):
            found[place][trial] = outcome
            make_room()
    return found


def described(row: Row, outcomes: dict[int, Outcome]) -> dict[str, Any]:
    """A row of the report: how its trials ended, and which of them did not end well."""
    counted = Counter(outcome.value for outcome in outcomes.values())
    wrong: dict[str, list[int]] = {}
    for trial, outcome in sorted(outcomes.items()):
        if not outcome.is_good:
            wrong.setdefault(outcome.value, []).append(trial)
    said = {"part": row.part, "fault": row.fault, "expected": row.expected}
    found = {**said, "outcomes": dict(sorted(counted.items()))}
    return {**found, "trials": wrong} if wrong else found
