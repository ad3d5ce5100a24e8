"""Problems and nets that settings describe."""

import functools
import os
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .. import data, losses
from .._problem import Problem
from ..data import Dataset
from ..nets import MLP, scaled_to_norm
from ._memory import check_memory, num_parameters
from ._settings import NUM_SAMPLES, DataName, Point, ProblemSettings


# Streams of a seed, one for each use; those of the command line.
_DATA, _NET, _BATCHES = 0, 1, 2


def has_doubles() -> bool:
    """Whether jax computes in double precision, if it is asked to."""
    return jax.dtypes.canonicalize_dtype(float) == jnp.float64


def make_problem(settings: ProblemSettings, dtype: str) -> Problem:
    """The problem that the settings describe."""
    dataset = load_dataset(
        settings.data,
        settings.samples,
        settings.seed,
        dtype,
        settings.path,
        settings.teacher,
    )
    return Problem(dataset, getattr(losses, settings.loss_name))


# Images are slow to read, and the points of a sweep often share them.
@functools.lru_cache(maxsize=1)
def load_dataset(
    name: DataName,
    samples: int | None,
    seed: int,
    dtype: str,
    path: str | os.PathLike | None = None,
    teacher: tuple[int, ...] = ProblemSettings.teacher,
) -> Dataset:
    """The data set of this name; with its default number of samples if that is None.

    Raises:
        ValueError: on more samples than the memory of this machine holds.
    """
    key = _key(seed, _DATA)
    drawn = key if samples else None
    if name == "digits":
        return data.digits(samples, key=drawn, dtype=dtype)
    if name == "mnist":
        assert path is not None
        return data.mnist(path, samples, key=drawn, dtype=dtype)
    number = NUM_SAMPLES[name] if samples is None else samples
    check_memory("samples", number, number * (2 if name == "circle" else teacher[0]))
    if name == "circle":
        return data.circle(number, dtype=dtype)
    return data.teacher(number, teacher, key=key, dtype=dtype)


def make_net(point: Point, dtype: str) -> MLP:
    """The network that a point's settings describe, at its initial norm.

    Raises:
        ValueError: on one that the memory of this machine does not hold.
    """
    net, (first, last) = point.net, point.problem.ends
    numbers = num_parameters(first, net.width, net.depth, last)
    check_memory("net", net, numbers)
    widths = (first, *[net.width] * (net.depth - 1), last)
    scale = jnp.asarray(net.init_scale, dtype)
    return _jitted_net(widths, net.activation, jr.key(net.seed), scale, dtype)


def draw_net(
    widths: Sequence[int],
    activation: str,
    key: PRNGKeyArray,
    init_scale: Float[Array, ""],
    dtype: str,
) -> MLP:
    """A network of these widths at its initial norm, from the key of its seed."""
    key = jr.fold_in(key, _NET)
    net = MLP(widths, key=key, activation=activation, dtype=jnp.dtype(dtype))
    return scaled_to_norm(net, init_scale)


_jitted_net = eqx.filter_jit(draw_net)


def batch_key(point: Point) -> PRNGKeyArray:
    """Seeds the batches of a descent."""
    return _key(point.net.seed, _BATCHES)


def _key(seed: int, stream: int) -> PRNGKeyArray:
    return jax.random.fold_in(jr.key(seed), stream)
