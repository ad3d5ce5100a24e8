"""Where SGD does rest, with decay and f ≠ 0: Proposition 1 is sharp."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from ... import losses
from ..._tracing import is_concrete
from ...data import Dataset
from ...nets import MLP
from ...problem import Problem


def collinear_convergence_point(
    direction: Float[ArrayLike, " dim"],
    multiples: Float[ArrayLike, " samples"],
    weight_decay: ArrayLike,
    height: ArrayLike = 1.0,
) -> tuple[Problem, MLP]:
    r"""Collinear data $x_i = c_i x$, $c_i > 0$, and a neuron $f = a\,\sigma(w\cdot x)$ at
    which every sample's gradient with decay is 0, but f is not:

    $$\kappa = 2\lambda/\|x\|, \qquad w = \kappa\, a\, x/2\lambda = a\,x/\|x\|, \qquad
    y_i = c_i f(x) + \kappa/c_i.$$

    With the squared loss ½(f − y)². Not in the paper: Galanti & Poggio's Prop. 1 allows it.

    Args:
        direction: x, (d,).
        multiples: c_i, (m,).
        weight_decay: λ.
        height: a > 0; every one is a convergence point of some targets.

    Raises:
        ValueError: unless x is not zero and all the rest is positive.
    """
    x, c = jnp.asarray(direction), jnp.asarray(multiples)
    decay, a = jnp.asarray(weight_decay, x.dtype), jnp.asarray(height, x.dtype)
    size = jnp.linalg.norm(x)
    for name, value in (
        ("direction", size),
        ("multiples", c),
        ("weight_decay", decay),
        ("height", a),
    ):
        if is_concrete(value) and not np.all(np.asarray(value) > 0):
            raise ValueError(f"{name} must be positive (its norm, for direction).")
    w = a * x / size
    kappa = 2 * decay / size
    targets = c * (a * jnp.sum(w * x)) + kappa / c
    problem = Problem(Dataset(c[:, None] * x[None, :], targets[:, None]), losses.squared)
    return problem, MLP.from_weights([w[None, :], a[None, None]])
