"""Handwritten digits: 1797 small ones in the package, and MNIST from the user's disk."""

import os
from importlib.resources import files

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from .._keys import random_keys
from .._numbers import check_counts
from ._checks import DType, float_dtype
from ._dataset import Dataset, one_hot, standardise
from ._idx import read_mnist


def digits(
    n: int | None = None,
    *,
    key: PRNGKeyArray | None = None,
    standardised: bool = True,
    dtype: DType = None,
) -> Dataset:
    """The 1797 handwritten digits of scikit-learn, 8×8 pixels from 0 to 1, one-hot targets.

    They are of Alpaydin and Kaynak (1998), under CC BY 4.0: `gfdyn/data/digits.txt`.

    Args:
        n: how many; None for all.
        key: draws which ones, and their order; None for the first n.
        standardised: whether to `standardise` the pixels, over all 1797 images.
        dtype: of pixels and targets, a floating one; JAX's default float if None.

    Raises:
        ValueError: if n is out of range.
    """
    with files("gfdyn.data").joinpath("digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        pixels, classes = stored["pixels"].astype(float), stored["classes"].astype(int)
    return _images(pixels / 16, classes, n, key, standardised, dtype)


def mnist(
    path: str | os.PathLike,
    n: int | None = None,
    *,
    labels: str | os.PathLike | None = None,
    key: PRNGKeyArray | None = None,
    standardised: bool = True,
    dtype: DType = None,
) -> Dataset:
    """MNIST from files on disk, pixels from 0 to 1, one-hot targets; no downloads.

    Args:
        path: an `.npz` archive with x_train and y_train, or x and y; or a directory
            with train-images-idx3-ubyte and train-labels-idx1-ubyte; or an IDX file of
            images. IDX files may be compressed by gzip.
        n: how many; None for all.
        labels: the IDX file of the labels; None for the one beside the images, called
            labels-idx1 where they are called images-idx3.
        key: draws which ones, and their order; None for the first n.
        standardised: whether to `standardise` the pixels, over the whole file.
        dtype: of pixels and targets, a floating one; JAX's default float if None.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged or is not MNIST, or if n is out of range.
    """
    images, classes = read_mnist(path, labels)
    return _images(images / 255, classes, n, key, standardised, dtype)


def _images(
    pixels: np.ndarray,
    classes: np.ndarray,
    n: int | None,
    key: PRNGKeyArray | None,
    standardised: bool,
    dtype: DType,
) -> Dataset:
    """n of the images, each a row of pixels, of the ten digits."""
    total = len(pixels)
    n = total if n is None else n
    check_counts(n=n, most=total)
    chosen = np.arange(total)
    if key is not None:
        chosen = np.asarray(jr.permutation(random_keys(key, 1)[0], total))
    chosen = chosen[:n]
    x = jnp.asarray(pixels)
    x = standardise(x) if standardised else x
    return Dataset(
        x[chosen].astype(float_dtype(dtype)), one_hot(classes, 10, dtype)[chosen]
    )
