"""Dense output of a step that either of two methods has taken."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..flows import State
from ._base import Scalar


class EitherOutput(eqx.Module):
    """That of Tsit5, or a cubic through both ends with the velocities there."""

    explicit: Any
    cubic: Any
    is_cubic: Bool[Array, ""]

    def evaluate(self, time: Scalar) -> State:
        """The state `time` after the start."""
        return jax.tree.map(
            lambda a, b: jnp.where(self.is_cubic, a, b),
            self.cubic.evaluate(time),
            self.explicit.evaluate(time),
        )


def of_tsit5(interpolation: Any, start: State, size: Scalar) -> EitherOutput:
    """That of a step of Tsit5."""
    still = jax.tree.map(jnp.zeros_like, start)
    cubic = _cubic(start, start, still, still, size)
    return EitherOutput(interpolation, cubic, jnp.asarray(False))


def of_ends(
    start: State, end: State, first: State, last: State, size: Scalar
) -> EitherOutput:
    """The cubic through both ends of a step."""
    tableau: Any = dfx.Tsit5.tableau
    explicit = dfx.Tsit5.interpolation_cls(
        t0=jnp.zeros_like(size),
        t1=size,
        y0=start,
        y1=start,
        k=jax.tree.map(
            lambda leaf: jnp.zeros((tableau.num_stages, *leaf.shape), leaf.dtype), start
        ),
    )
    cubic = _cubic(start, end, first, last, size)
    return EitherOutput(explicit, cubic, jnp.asarray(True))


def _cubic(
    start: State, end: State, first: State, last: State, size: Scalar
) -> dfx.ThirdOrderHermitePolynomialInterpolation:
    slopes = [jax.tree.map(lambda v: size * v, velocity) for velocity in (first, last)]
    return dfx.ThirdOrderHermitePolynomialInterpolation(
        t0=jnp.zeros_like(size), t1=size, y0=start, y1=end, k0=slopes[0], k1=slopes[1]
    )
