"""Dense output of a step: a polynomial, whichever of two methods has taken it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._numerics import nonzero
from .._types import Scalar
from ..flows import State


# What each stage of Tsit5 adds to the coefficients of its dense output, from the first
# power on: Tsitouras (2011), as `diffrax.Tsit5` evaluates them.
_TSIT5 = np.array(
    [
        [0.9999999999999998, -2.763706197274826, 2.9132554618219126, -1.0530884977290216],
        [0.0, 0.13169999999999998, -0.2234, 0.1017],
        [0.0, 3.930296236894751, -5.941033872131505, 2.490627285651253],
        [0.0, -12.411077166933676, 30.338188630282318, -16.548102889244902],
        [0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928],
        [0.0, -27.896526289197286, 65.09189467479368, -34.87065786149661],
        [0.0, 1.5, -4.0, 2.5],
    ]
)


class PolynomialOutput(eqx.Module):
    """Σ_j c_j (t/h)^j over a step of size h, of degree four."""

    # From c_0 on
    coefficients: tuple[State, ...]
    size: Scalar

    def evaluate(self, time: Scalar) -> State:
        """The state `time` after the start."""
        part = time / nonzero(self.size)

        def horner(*coefficients: Any) -> Any:
            value = coefficients[-1]
            for lower in coefficients[-2::-1]:
                value = lower + part * value
            return value

        return jax.tree.map(horner, *self.coefficients)


def of_tsit5(stages: State, start: State, size: Scalar) -> PolynomialOutput:
    """That of a step of Tsit5, whose stages h k are stacked."""
    powers = _TSIT5.shape[1]
    added = jax.tree.map(
        lambda k: jnp.tensordot(jnp.asarray(_TSIT5.T, k.dtype), k, axes=1), stages
    )
    rows = [jax.tree.map(lambda leaf, j=j: leaf[j], added) for j in range(powers)]
    return PolynomialOutput((start, *rows), size)


def of_ends(
    start: State, end: State, first: State, last: State, size: Scalar
) -> PolynomialOutput:
    """The cubic through both ends of a step, with the velocities there."""

    def second(y: Any, z: Any, u: Any, v: Any) -> Any:
        return 3 * (z - y) - size * (2 * u + v)

    def third(y: Any, z: Any, u: Any, v: Any) -> Any:
        return size * (u + v) - 2 * (z - y)

    ends = (start, end, first, last)
    coefficients = (
        start,
        jax.tree.map(lambda u: size * u, first),
        jax.tree.map(second, *ends),
        jax.tree.map(third, *ends),
        jax.tree.map(jnp.zeros_like, start),
    )
    return PolynomialOutput(coefficients, size)
