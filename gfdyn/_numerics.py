"""Numerical constants and functions that many rooms share."""

import jax.numpy as jnp
from jaxtyping import Array, Float


# What is rounding alone, relative to what it is computed from, in units of the precision
ROUNDING = 100.0
# The same of velocities, which are sums over samples and layers
VELOCITY_ROUNDING = 1e3


def nonzero(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x, 1 where it is 0: a divisor."""
    return jnp.where(x == 0, 1.0, x)
