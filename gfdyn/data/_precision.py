"""Double precision that JAX would take away without a word."""

import sys
import warnings
from typing import Any

import jax
import numpy as np


class PrecisionWarning(UserWarning):
    """Data are in double precision, and JAX computes in single."""


def warn_if_rounded(**values: Any) -> None:
    """Warn of NumPy arrays that JAX would round, at the line of the user's code."""
    rounded = [
        name
        for name, value in values.items()
        if isinstance(value, np.ndarray)
        and value.dtype == np.float64
        and jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype
    ]
    if not rounded:
        return
    given = " and ".join(f"{name}.dtype=float64" for name in rounded)
    casts = " and ".join(f'{name}.astype("float32")' for name in rounded)
    warnings.warn(
        f"{given}: JAX rounds that to float32; for double precision first call "
        f'jax.config.update("jax_enable_x64", True), or give {casts}.',
        PrecisionWarning,
        stacklevel=_level_of_the_user(),
    )


def _level_of_the_user() -> int:
    """How far above its caller the first frame outside gfdyn and Equinox is. (Python 3.12
    has `skip_file_prefixes` for that.)"""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _package(frame) in ("gfdyn", "equinox"):
        frame, level = frame.f_back, level + 1
    return level


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
