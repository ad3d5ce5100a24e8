"""Whether values are known, so that they can be looked at on the spot."""

from typing import Any

import jax.core


def is_concrete(*values: Any) -> bool:
    """Whether none of the values is traced by jit, vmap or grad."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)


def is_single(value: Any) -> bool:
    """Whether it is the known value of one solve, and not of a batch or traced."""
    return is_concrete(value) and value.ndim == 0
