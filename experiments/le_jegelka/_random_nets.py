"""Data and nets that NumPy draws, which compiles nothing.

Shared by the experiments of Le & Jegelka.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import gfdyn as gf
from gfdyn.nets import sequential


def separable(seed: int, inputs: int) -> tuple[gf.Problem, np.random.Generator]:
    """Eight random directions, labelled by a linear teacher; and the generator."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(8, inputs))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.sign(x @ rng.normal(size=inputs))[:, None]
    return gf.Problem(gf.Dataset(x, y), gf.losses.logistic), rng


def normal_net(
    shape: int | tuple[int, ...],
    blocks: list[Callable[..., Any]],
    rng: np.random.Generator,
    scale: float = 1.0,
) -> gf.nets.LayeredNet:
    """`sequential(shape, blocks)` with all its parameters N(0, scale²)."""
    made = eqx.filter_eval_shape(sequential, shape, blocks, key=jr.key(0))
    return jax.tree.map(lambda w: jnp.asarray(scale * rng.normal(size=w.shape)), made)
