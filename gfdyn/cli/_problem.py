"""The problem and the network of a command."""

import jax
import jax.numpy as jnp

from .. import losses
from ..data import Dataset
from ..nets import MLP
from ..problem import Problem
from ..sweeps.spec import NUM_SAMPLES, check_memory, draw_net, load_dataset, num_parameters
from ._commands import Escape, Setup


_DEFAULT_SAMPLES = 600
_ESCAPE_SAMPLES = 50
_IMAGES = ("digits", "mnist")


def make_problem(setup: Setup) -> Problem:
    """The problem that the settings describe."""
    dataset = _dataset(setup)
    loss = setup.loss or ("cross_entropy" if setup.data in _IMAGES else "squared")
    return Problem(dataset, getattr(losses, loss))


def make_net(setup: Setup) -> MLP:
    """The network that the settings describe, at its initial norm.

    Raises:
        ValueError: on a depth, width or scale that makes no network.
    """
    for name in ("depth", "width", "init_scale", "max_saves"):
        if not getattr(setup, name) > 0:
            raise ValueError(
                f"--{name.replace('_', '-')} {getattr(setup, name)}: must be positive."
            )
    dataset = _dataset(setup)
    ends = dataset.x.shape[1], dataset.y.shape[-1]
    numbers = num_parameters(ends[0], setup.width, setup.depth, ends[1])
    check_memory("--depth and --width", (setup.depth, setup.width), numbers)
    kept = setup.max_saves * numbers
    check_memory("--max-saves", setup.max_saves, kept, copies=1)
    widths = [ends[0], *[setup.width] * (setup.depth - 1), ends[1]]
    scale = jnp.asarray(setup.init_scale, setup.dtype)
    key = jax.random.key(setup.seed)
    return draw_net(widths, setup.activation, key, scale, setup.dtype)


def _dataset(setup: Setup) -> Dataset:
    if setup.data == "mnist" and setup.path is None:
        raise ValueError("--data mnist needs --path FILE; nothing is downloaded.")
    if setup.data != "mnist" and setup.path is not None:
        raise ValueError(f"--path {setup.path}: is for --data mnist.")
    samples = _num_samples(setup)
    return load_dataset(setup.data, samples, setup.seed, setup.dtype, setup.path)


def _num_samples(setup: Setup) -> int | None:
    """How many samples are asked for, None for all; refused where there are none such."""
    data, samples = setup.data, setup.samples
    if samples is None:
        few = _ESCAPE_SAMPLES if isinstance(setup, Escape) else _DEFAULT_SAMPLES
        return NUM_SAMPLES["circle"] if data == "circle" else few
    if samples == "all":
        if data not in _IMAGES:
            raise ValueError(f"--samples all: {data} data are made; give a number.")
        return None
    if samples < 1:
        raise ValueError(f"--samples {samples}: must be positive.")
    if data == "digits" and samples > NUM_SAMPLES["digits"]:
        raise ValueError(
            f"--samples {samples}: there are {NUM_SAMPLES['digits']} digits; give no more, "
            "or all."
        )
    if data == "circle" and samples % 2:
        raise ValueError(f"--samples {samples}: must be even on the circle.")
    return samples
