"""Nets and closed forms of the tests of Timor, Vardi & Shamir."""

import jax.numpy as jnp
import numpy as np

import gfdyn as gf


def problem_at(phi: float, psi: float = 1.0, dtype=None) -> gf.Problem:
    """The points at an angle in degrees, their targets at one in radians."""
    data = gf.data.two_points(np.deg2rad(phi), psi, dtype=dtype)
    return gf.Problem(data, gf.losses.squared, reduction="sum")


def net_of(W, V) -> gf.nets.MLP:
    return gf.nets.MLP.from_weights([jnp.asarray(W, float), jnp.asarray(V, float)])
