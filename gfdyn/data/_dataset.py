r"""The data set itself, and the two usual preparations of images and labels.

A sample is a row, as in $X \in \mathbb R^{N \times d}$ (the papers often use columns).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Float, Integer

from .._numbers import check_counts
from .._tracing import is_concrete
from ._checks import (
    DType,
    as_array,
    check_finite,
    check_inputs,
    check_labels,
    check_targets,
    common_dtype,
    float_dtype,
    is_integer,
)
from ._precision import warn_if_rounded


class Dataset(eqx.Module):
    """N samples: inputs, one row each, and what is wanted there.

    Targets are a row of numbers for each sample. Integers of shape (N,) are left as
    they are: class labels or signs, which the loss reads.
    """

    x: Float[Array, "samples dim"]
    y: Float[Array, "samples outputs"] | Integer[Array, " samples"]

    def __init__(self, x: ArrayLike | Sequence, y: ArrayLike | Sequence):
        """The data set (x, y), in the floating dtype of whichever array has one.

        Lists and integers take the dtype of the other array, or JAX's default float.

        Args:
            x: inputs, (N, d).
            y: targets, (N, k), or (N,) for one output, or integer labels, (N,).

        Raises:
            ValueError: if the shapes do not fit together, if x and y have different
                floating dtypes, or if an entry is not finite (which traced arrays do
                not show).

        Warns:
            PrecisionWarning: on NumPy arrays in double precision where JAX is in single.
        """
        warn_if_rounded(x=x, y=y)
        inputs, targets = as_array("x", x), as_array("y", y)
        check_inputs(inputs)
        check_targets(targets, len(inputs))
        dtype = common_dtype(x, y)
        if targets.ndim == 1 and not is_integer(targets):
            targets = targets[:, None]
        self.x = inputs.astype(dtype)
        self.y = targets if targets.ndim == 1 else targets.astype(dtype)
        check_finite("x", self.x, "feature")
        if self.y.ndim == 2:
            check_finite("y", self.y, "output")

    @property
    def num_samples(self) -> int:
        """The number of samples N."""
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        """The number of input features d."""
        return self.x.shape[1]

    def subset(self, index: slice | ArrayLike | Sequence) -> "Dataset":
        """The samples at `index`: a slice, integers, or a mask of length N.

        Raises:
            ValueError: if that is no list of samples. Traced indices are not checked:
                those out of range are clamped.
        """
        if not is_concrete(index):
            return Dataset(self.x[index], self.y[index])
        try:
            rows = np.arange(self.num_samples)[
                index if isinstance(index, slice) else np.asarray(index)
            ]
        except IndexError as error:
            raise ValueError(
                f"index={index} does not select from {self.num_samples} samples "
                f"({error}): pass a slice, integers in range or a mask."
            ) from error
        if rows.ndim != 1 or rows.size == 0:
            raise ValueError(
                f"index={index} selects an array of shape {rows.shape}: pass a list of "
                "at least one sample."
            )
        return Dataset(self.x[rows], self.y[rows])

    def astype(self, dtype: DTypeLike) -> "Dataset":
        """The same data in another floating dtype; integer labels stay as they are."""
        dtype = float_dtype(dtype)
        y = self.y if self.y.ndim == 1 else self.y.astype(dtype)
        return Dataset(self.x.astype(dtype), y)


def one_hot(
    labels: ArrayLike | Sequence,
    num_classes: int | None = None,
    dtype: DType = None,
) -> Float[Array, "samples classes"]:
    r"""The indicator rows $e_{c_1}, \dots, e_{c_N}$ of class labels $c_i$.

    Args:
        labels: integers in 0 … `num_classes` - 1, (N,).
        num_classes: None for one more than the largest label.
        dtype: of the rows, a floating one; JAX's default float if None.

    Raises:
        ValueError: if a label is no integer or out of range. Traced labels do not show
            their range, and need `num_classes`.
    """
    classes = as_array("labels", labels)
    if classes.ndim != 1 or classes.size == 0 or not is_integer(classes):
        raise ValueError(
            f"labels must be integers of shape (samples,), received {classes.dtype} of "
            f"shape {classes.shape}: cast or ravel them."
        )
    values = None if not is_concrete(classes) else np.asarray(classes)
    if num_classes is None:
        if values is None:
            raise ValueError(
                "num_classes=None cannot be read off traced labels: pass the number."
            )
        num_classes = max(int(values.max()) + 1, 1)
    check_counts(num_classes=num_classes)
    if values is not None:
        check_labels(values, num_classes)
    return jax.nn.one_hot(classes, num_classes, dtype=float_dtype(dtype))


def standardise(x: ArrayLike | Sequence) -> Float[Array, "samples dim"]:
    r"""The data $(x - \mu) / \sigma$, with one mean and one deviation over all entries.

    Bantzis, Simon & Jacot, appendix B, do so to the pixels of MNIST.

    Args:
        x: inputs, (N, d), whose floating dtype the result has; JAX's default float if
            they are lists or integers.

    Raises:
        ValueError: if all entries are equal, or one is not finite.

    Warns:
        PrecisionWarning: on a NumPy array in double precision where JAX is in single.
    """
    warn_if_rounded(x=x)
    inputs = as_array("x", x)
    check_inputs(inputs)
    inputs = inputs.astype(common_dtype(x))
    check_finite("x", inputs, "feature")
    if is_concrete(inputs) and np.ptp(np.asarray(inputs)) == 0:
        raise ValueError(
            f"x is {np.asarray(inputs)[0, 0]} throughout, with no deviation to divide "
            "by: leave it as it is."
        )
    return (inputs - inputs.mean()) / inputs.std()
