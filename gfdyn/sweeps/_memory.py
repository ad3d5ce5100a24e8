"""Sizes that no memory of this machine holds, refused before XLA tries."""

import os
from typing import Any


# θ, its velocity and two stages of a step, the least that a flow takes
_COPIES = 4


def check_memory(name: str, value: Any, numbers: int, copies: int = _COPIES) -> None:
    """Raise if so many numbers in double precision, a few times, exceed the memory.

    Raises:
        ValueError: naming the setting, its value and both sizes.
    """
    needed, there = 8e-9 * copies * numbers, _memory()
    if needed > there:
        raise ValueError(
            f"{name}={value} takes {needed:.3g} GB of memory, where this machine has "
            f"{there:.3g} GB; give less."
        )


def num_parameters(inputs: int, width: int, depth: int, outputs: int) -> int:
    """How many weights a network of equal hidden layers has; a thousand numbers a layer at
    the least, which is what its description takes."""
    if depth == 1:
        return inputs * outputs
    inner = (depth - 2) * max(width * width, 1000)
    return inputs * width + inner + width * outputs


def _memory() -> float:
    """That of the machine, in GB."""
    try:
        return 1e-9 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return float("inf")
