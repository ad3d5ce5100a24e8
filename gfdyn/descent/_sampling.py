"""Which samples each step of SGD sees."""

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray

from ..problem import Problem


Sampler = Literal["epoch_shuffle", "iid_subset"]
Batches = Int[Array, "batches size"]


def draw_epoch(
    sampler: str, key: PRNGKeyArray, epoch: Int[Array, ""], samples: int, size: int
) -> Batches:
    """The batches of an epoch, ⌊samples/size⌋ rows of `size` samples each.

    * `"epoch_shuffle"`: no sample twice in an epoch; what is left over is dropped.
    * `"iid_subset"`: each row a uniform subset, independent of the others.

    A function of the seed and the epoch alone, so that a run can be resumed anywhere.
    """
    key, batches = jr.fold_in(key, epoch), samples // size
    if sampler == "iid_subset":
        return uniform_subsets(key, batches, samples, size)
    order = jr.permutation(key, samples)
    return order[: batches * size].reshape(batches, size)


def uniform_subsets(key: PRNGKeyArray, number: int, samples: int, size: int) -> Batches:
    """Independent uniform subsets without replacement, one a row; O(size²) each.

    Robert Floyd's: the j-th entry is drawn from the first n − size + j, and is the last
    of these where the draw was there before (Bentley & Floyd, CACM 30 (1987) 754).
    """
    last = samples - size + jnp.arange(size)
    draws = jr.randint(key, (number, size), 0, last[None, :] + 1)

    def insert(j: Int[Array, ""], found: Batches) -> Batches:
        drawn = draws[:, j]
        taken = jnp.any(found == drawn[:, None], axis=1)
        return found.at[:, j].set(jnp.where(taken, last[j], drawn))

    return jax.lax.fori_loop(0, size, insert, jnp.full_like(draws, -1))


def check_sampler(sampler: str) -> None:
    """Raise on a name that there is not."""
    if sampler not in get_args(Sampler):
        raise ValueError(f"sampler={sampler!r}; use 'epoch_shuffle' or 'iid_subset'.")


def on_batch(problem: Problem, rows: Int[Array, " size"]) -> Problem:
    """The same problem on these of its samples."""
    batch = jax.tree.map(lambda a: a[rows], problem.data)
    return eqx.tree_at(lambda p: p.data, problem, batch)
