"""Problems and nets that settings describe."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .. import data, losses
from .._problem import Problem
from ..data import Dataset
from ..nets import MLP, scaled_to_norm
from ._settings import Point, ProblemSettings


# Streams of a seed, one for each use; those of the command line.
_DATA, _NET, _BATCHES = 0, 1, 2


def has_doubles() -> bool:
    """Whether jax computes in double precision, if it is asked to."""
    return jax.dtypes.canonicalize_dtype(float) == jnp.float64


# Images are slow to read, and the points of a sweep often share them.
@functools.lru_cache(maxsize=1)
def make_problem(settings: ProblemSettings, dtype: str) -> Problem:
    """The problem that the settings describe."""
    dataset = _dataset(settings, _key(settings.seed, _DATA), dtype)
    return Problem(dataset, getattr(losses, settings.loss_name))


def _dataset(settings: ProblemSettings, key: PRNGKeyArray, dtype: str) -> Dataset:
    n, drawn = settings.samples, key if settings.samples else None
    if settings.data == "digits":
        return data.digits(n, key=drawn, dtype=dtype)
    if settings.data == "mnist":
        assert settings.path is not None
        return data.mnist(settings.path, n, key=drawn, dtype=dtype)
    if settings.data == "circle":
        return data.circle(settings.num_samples, dtype=dtype)
    return data.teacher(settings.num_samples, settings.teacher, key=key, dtype=dtype)


def make_net(point: Point, dtype: str) -> MLP:
    """The network that a point's settings describe, at its initial norm."""
    first, last = point.problem.ends
    widths = (first, *[point.net.width] * (point.net.depth - 1), last)
    scale = jnp.asarray(point.net.init_scale, dtype)
    return _net(widths, point.net.activation, dtype, _key(point.net.seed, _NET), scale)


@eqx.filter_jit
def _net(
    widths: tuple[int, ...],
    activation: str,
    dtype: str,
    key: PRNGKeyArray,
    scale: Float[Array, ""],
) -> MLP:
    net = MLP(widths, key=key, activation=activation, dtype=jnp.dtype(dtype))
    return scaled_to_norm(net, scale)


def batch_key(point: Point) -> PRNGKeyArray:
    """Seeds the batches of a descent."""
    return _key(point.net.seed, _BATCHES)


def _key(seed: int, stream: int) -> PRNGKeyArray:
    return jax.random.fold_in(jr.key(seed), stream)
