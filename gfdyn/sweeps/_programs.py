"""Room for compiled programs, of which a process can hold only so many."""

from pathlib import Path

import jax


# Those of the process, and how many it may have; elsewhere than on Linux there is no limit.
_MAPPINGS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")


def make_room() -> None:
    """Drop all compiled programs if they take up half of the memory mappings allowed.

    XLA maps each of its programs, those of one shape of a flow some 1750 times; at the
    limit, 65 530 by default, it aborts the process.
    """
    try:
        used = _MAPPINGS.read_bytes().count(b"\n")
        limit = int(_LIMIT.read_text(encoding="ascii"))
    except OSError:
        return
    if used > limit / 2:
        jax.clear_caches()
