"""Whether values are known, so that arguments can be checked on the spot."""

from typing import Any

import jax.core


def is_concrete(*values: Any) -> bool:
    """Whether none of the values is traced by jit, vmap or grad."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)
