"""Which nets are the same direction: those with the same outputs on the data.

Outputs do not change when neurons are permuted, or rescaled against their outgoing weights,
and so neither does what is said here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._convergence import Found


def same_direction(
    outputs: np.ndarray,
    speed: Any,
    found: Sequence[Found],
    tolerance: float,
    *,
    below: bool = False,
) -> int | None:
    """The first converged direction with these outputs, (N, k), up to `tolerance` relative
    to their norm, and this speed; or, if `below`, one that it is not beyond."""
    speed = float(speed)
    for i, other in enumerate(found):
        theirs, their_speed = np.asarray(other.outputs), float(other.speed)
        near = np.linalg.norm(outputs - theirs) <= tolerance * np.linalg.norm(theirs)
        slack = _same_speed(theirs.dtype) * their_speed
        behind = speed <= their_speed + slack
        with_it = behind if below else abs(speed - their_speed) <= slack
        if near and with_it and bool(other.converged):
            return i
    return None


def levels(speeds: np.ndarray) -> list[np.ndarray]:
    """The indices of falling speeds, split wherever one is lower than the one before it by
    more than converged speeds of one value are apart."""
    if not len(speeds):
        return []
    drops = -np.diff(speeds) > _same_speed(speeds.dtype) * speeds[0]
    return np.split(np.arange(len(speeds)), np.flatnonzero(drops) + 1)


def _same_speed(dtype: np.dtype) -> float:
    return float(np.sqrt(np.finfo(dtype).eps))
