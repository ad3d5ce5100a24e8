"""The batches over which a statement ranges: all of them, or some."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from ...descent import uniform_subsets


# Beyond, a minimum over all batches is no matter of patience.
_MOST_BATCHES = 10_000


def all_batches(samples: int, size: int) -> Int[Array, "batches size"]:
    """Every subset of `size` samples, one a row.

    Args:
        samples: m, the number of all samples.
        size: B, that of each batch.

    Raises:
        ValueError: if there are none, or more than 10 000.
    """
    _check(samples, size)
    number = math.comb(samples, size)
    if number > _MOST_BATCHES:
        raise ValueError(
            f"{samples} samples have {number} batches of size={size}, too many to try; "
            "draw some with sampled_batches."
        )
    rows = itertools.combinations(range(samples), size)
    return jnp.asarray(np.array(list(rows), np.int32).reshape(number, size))


def sampled_batches(
    key: PRNGKeyArray, number: int, samples: int, size: int
) -> Int[Array, "batches size"]:
    """So many uniform subsets of `size` samples, one a row, independent of each other.

    Args:
        key: seeds the draws.
        number: how many batches.
        samples, size: see `all_batches`.

    Raises:
        ValueError: if there are none.
    """
    _check(samples, size)
    if number < 1:
        raise ValueError(f"number={number} of batches must be 1 or more.")
    return uniform_subsets(key, number, samples, size)


def _check(samples: int, size: int) -> None:
    if not 1 <= size <= samples:
        raise ValueError(f"size={size} must lie between 1 and the {samples} samples.")
