"""Faults of data: structure in it, against which the exact flow is set to gradient descent.

A flow that ends elsewhere than descents of two steps lead to is wrong without a word,
unless its result, its certificate or its choices say that it may; or the descents do not
tell, as they differ from each other by more than from the flow, or their steps are not far
below the distance of samples.
"""

import functools
from pathlib import Path

import numpy as np
from against_descent import outcomes
from structured import PROGRAMS, STRUCTURES
from table import Attempt, Outcome, Row


# So many flows of each structure are integrated by each program, some at a time.
SEEDS, SOME = 15, 5


def flow(
    structure: str, program: int, seed: int, random: np.random.Generator, folder: Path
) -> Outcome:
    """One flow; those that are descended with it are kept."""
    first = seed // SOME * SOME
    return outcomes(program, tuple(range(first, first + SOME)))[structure, seed]


def trials_of_programs() -> list[range]:
    """Of each program, the trials of a row."""
    return [range(SEEDS * i, SEEDS * (i + 1)) for i in range(len(PROGRAMS))]


def _row(structure: str) -> Row:
    attempts: tuple[Attempt, ...] = tuple(
        functools.partial(flow, structure, program, seed)
        for program in range(len(PROGRAMS))
        for seed in range(SEEDS)
    )
    return Row("solver", structure, _IN_LINE, attempts, len(attempts), sample=2 * SOME)


_IN_LINE = "the end that gradient descent of small steps leads to, or a word of doubt"

ROWS: tuple[Row, ...] = tuple(map(_row, STRUCTURES))
