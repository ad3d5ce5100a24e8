"""Room for compiled programs, of which a process can hold only so many."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import jax


# Those of the process, and how many it may have; elsewhere than on Linux there is no limit.
_MAPPINGS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")

# How many the user lets it have; inf for as many as it takes, None for half of its limit.
_allowed: ContextVar[float | None] = ContextVar("mappings allowed", default=None)


@contextmanager
def program_limit(mappings: int | None) -> Iterator[None]:
    """Inside, compiled programs are dropped once the process has more memory mappings than
    it is allowed.

    XLA maps each of its programs, those of one shape of a flow some 430 to 1750 times, and
    brings the process down at the limit of Linux (`vm.max_map_count`, 65 530). So `solve`
    and `descend` drop all programs that JAX holds when, after one that had to be compiled,
    half of that is reached: outside of this too. What was dropped compiles again where it
    is called again, or comes from the disk (`gf.enable_cache`). No number changes.

    Args:
        mappings: how many are allowed, 1 or more; None to drop no programs.

    Raises:
        ValueError: on a number below 1.
    """
    if mappings is not None and mappings < 1:
        raise ValueError(
            f"mappings={mappings} must be 1 or more, or None to drop no programs."
        )
    token = _allowed.set(float("inf") if mappings is None else mappings)
    try:
        yield
    finally:
        _allowed.reset(token)


def make_room() -> None:
    """Drop all compiled programs if they take up more of the memory mappings than is
    allowed: half of what the system allows, if the user has not said."""
    try:
        used = _MAPPINGS.read_bytes().count(b"\n")
        limit = int(_LIMIT.read_text(encoding="ascii"))
    except OSError:
        return
    allowed = _allowed.get()
    if used > (limit / 2 if allowed is None else allowed):
        jax.clear_caches()
