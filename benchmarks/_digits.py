"""A flow on digits, from a net that is no outcome of ours."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

import gfdyn as gf


def digits_flow(
    widths: Sequence[int], samples: int, seed: int = 0
) -> tuple[gf.GradientFlow, gf.nets.MLP]:
    """The cross-entropy of so many digits, and a net with entries of N(0, 1/fan-in)/2."""
    problem = gf.Problem(gf.data.digits(samples), gf.losses.cross_entropy)
    rng = np.random.default_rng(seed)
    shapes = zip(widths[1:], widths[:-1], strict=True)
    weights = [rng.normal(size=(b, a)) * 0.5 / np.sqrt(a) for b, a in shapes]
    net = gf.nets.MLP.from_weights([jnp.asarray(w) for w in weights])
    return gf.GradientFlow(problem), net
