"""Numbers that users give, refused at once where their values are known."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._tracing import is_concrete


def check_number(
    name: str, value: Any, holds: Callable[[float], bool], remedy: str
) -> None:
    """Raise unless it is one real number for which the condition holds, or is traced.

    Raises:
        TypeError: if it is no number, naming it.
        ValueError: if the condition does not hold, or there are several numbers.
    """
    if not is_concrete(value):
        return
    number = np.asarray(value)
    # numpy's own kinds leave out bfloat16.
    real = any(jnp.issubdtype(number.dtype, k) for k in (jnp.floating, jnp.integer))
    if isinstance(value, str) or not real:
        raise TypeError(f"{name}={value!r} is no number; it {remedy}")
    if number.ndim:
        raise ValueError(f"{name} has shape {number.shape}; it {remedy}")
    if not holds(float(number)):
        raise ValueError(f"{name}={value} {remedy}")


def check_count(name: str, value: Any, least: int, remedy: str) -> None:
    """Raise unless it is a whole number, and no less than the least.

    Raises:
        TypeError: if it is no whole number, naming it.
        ValueError: if it is less.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} is no whole number; it {remedy}")
    if value < least:
        raise ValueError(f"{name}={value} {remedy}")


def check_counts(least: int = 1, most: int | None = None, **counts: int) -> None:
    """Raise unless each named count is an integer in range."""
    bounds = f"of at least {least}" if most is None else f"in {least}..{most}"
    for name, count in counts.items():
        whole = isinstance(count, (int, np.integer))
        if not (whole and least <= count and (most is None or count <= most)):
            raise ValueError(f"{name}={count!r} must be an integer {bounds}.")


def is_positive(number: float) -> bool:
    """Whether it is positive and finite."""
    return 0 < number < math.inf


def is_not_negative(number: float) -> bool:
    """Whether it is 0 or positive, and finite."""
    return 0 <= number < math.inf


def is_threshold(number: float) -> bool:
    """Whether it is 0 or positive; infinite where all is to be below it."""
    return number >= 0


def is_fraction(number: float) -> bool:
    """Whether it is 0 or more, and less than 1."""
    return 0 <= number < 1
