"""Compiled programs kept on disk, for the processes that come after."""

import atexit
import gc
import os
from pathlib import Path

import jax


def enable_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in a folder, so that another process need not compile them.

    It sets JAX's own options, for all that is compiled from there on. Programs are found
    again by what they compute, shapes, flags, device and version of XLA. They are code:
    share a folder with people you trust, and with machines of one kind. The process ends
    without a last look for garbage in all that was traced, which takes as long as a tenth
    of a second start.

    Args:
        folder: `~/.cache/gfdyn` if None.

    Returns:
        The folder, made where there was none.
    """
    path = Path("~/.cache/gfdyn" if folder is None else folder).expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True)
    atexit.register(gc.freeze)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path
