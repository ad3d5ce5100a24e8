"""Arguments of data sets, read as arrays and checked."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike

from .._tracing import is_concrete


DType = DTypeLike | None


def is_integer(array: Array) -> bool:
    """Whether an array holds integers."""
    return jnp.issubdtype(array.dtype, jnp.integer)


def as_array(name: str, value: ArrayLike | Sequence) -> Array:
    """The value as an array of real numbers.

    Raises:
        ValueError: if it is none.
    """
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        if (text := _text_in(value)) is not None:
            raise ValueError(
                f"{name} is not array-like, it holds texts such as {text!r}: number them, "
                f"as labels by np.unique({name}, return_inverse=True)[1]."
            ) from error
        raise ValueError(
            f"{name} is not array-like ({error}): pass an array or lists of numbers."
        ) from error
    if array.dtype == bool:
        raise ValueError(
            f"{name} has dtype bool, must be real numbers: give {name}.astype(int), 0 and "
            f"1, or of signs 2 * {name}.astype(int) - 1."
        )
    if not (is_integer(array) or jnp.issubdtype(array.dtype, jnp.floating)):
        raise ValueError(
            f"{name} has dtype {array.dtype}, must be real numbers: cast it to floats."
        )
    return array


def _text_in(value: ArrayLike | Sequence) -> str | None:
    """The first text in it, if it holds any."""
    entries = np.asarray(value, object).ravel()
    return next((str(entry) for entry in entries if isinstance(entry, str)), None)


def float_dtype(dtype: DType) -> np.dtype:
    """The floating dtype asked for, JAX's default if None."""
    if dtype is None:
        return jnp.result_type(float)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype={dtype} must be a floating one, such as 'float32'.")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"dtype={dtype} needs 64-bit JAX: set jax_enable_x64, or ask for float32."
        )
    return jnp.dtype(dtype)


def common_dtype(*values: ArrayLike | Sequence) -> np.dtype:
    """The one floating dtype among x and y; lists and integers state none."""
    stated = [
        jax.dtypes.canonicalize_dtype(value.dtype)
        for value in values
        if isinstance(value, (jax.Array, np.ndarray))
        and jnp.issubdtype(value.dtype, jnp.floating)
    ]
    if not stated:
        return jnp.result_type(float)
    if stated[0] != stated[-1]:
        raise ValueError(
            f"x is {stated[0]} but y is {stated[-1]}: cast one to the other's dtype."
        )
    return stated[0]


def check_inputs(x: Array) -> None:
    """Raise unless x is a table of at least one sample and one feature."""
    if x.ndim != 2 or x.size == 0:
        raise ValueError(
            f"x has shape {x.shape}, must be (samples, features) with at least one of "
            "each: one sample a row."
        )


def check_targets(y: Array, num_samples: int) -> None:
    """Raise unless y has one entry or one row a sample."""
    if y.ndim not in (1, 2):
        raise ValueError(
            f"y has shape {y.shape}, must be (samples, outputs), or (samples,) for one "
            "output or integer labels."
        )
    if len(y) != num_samples:
        raise ValueError(
            f"x has {num_samples} samples but y has {len(y)}: each sample is a row."
        )
    if y.size == 0:
        raise ValueError(f"y has shape {y.shape}, must have at least one output.")


def check_finite(name: str, array: Array, column: str) -> None:
    """Raise on NaN or infinity, naming how many and where the first one is."""
    if not is_concrete(array):
        return
    values = np.asarray(array)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        i, j = bad[0]
        entries = "entry" if len(bad) == 1 else "entries"
        raise ValueError(
            f"{name} has {len(bad)} non-finite {entries}, the first at sample {i}, "
            f"{column} {j} ({values[i, j]}): drop or mend such samples."
        )


def check_labels(labels: np.ndarray, num_classes: int) -> None:
    """Raise unless the labels are classes in range."""
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if bad.size:
        raise ValueError(
            f"labels must lie in 0..{num_classes - 1}, and {bad.size} do not, the "
            f"first at sample {bad[0]} ({labels[bad[0]]}): check num_classes."
        )
