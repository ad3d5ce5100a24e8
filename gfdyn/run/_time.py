"""Physical time along a step of a flow whose clock it is not.

dt/dτ = e^{λ(τ)} may change by hundreds of orders of magnitude within a run, so its
integral is taken in log domain, from λ along the dense output of each step.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Scalar


# λ is interpolated by a quartic through these points of the step.
NODES = np.linspace(0.0, 1.0, 5)
# exp λ is integrated by Gauss–Legendre on panels: exact to rounding while λ changes by
# less than MAX_CHANGE over a step, which the integration loop sees to.
_PANELS, _POINTS = 16, 8
MAX_CHANGE = 64.0


class TimeRate(eqx.Module):
    """λ = log dt/dτ over a step of given size, as a polynomial in τ/size."""

    coefficients: Float[Array, " nodes"]
    size: Scalar

    def log_integral(self, fraction: Scalar) -> Scalar:
        """log of the physical time spent in the first `fraction` of the step."""
        points, weights = _composite_gauss()
        dtype = self.coefficients.dtype
        at = fraction * jnp.asarray(points, dtype)
        rates = jnp.polyval(self.coefficients, at)
        integral = jax.nn.logsumexp(rates, b=jnp.asarray(weights, dtype))
        return integral + jnp.log(fraction * self.size)


def fit_time_rate(rates: Float[Array, " nodes"], size: Scalar) -> TimeRate:
    """The polynomial through the values of λ at `NODES`."""
    inverse = np.linalg.inv(np.vander(NODES))
    first = rates[0]
    # Only differences go through the fit: λ itself may be large.
    coefficients = jnp.asarray(inverse, rates.dtype) @ (rates - first)
    return TimeRate(coefficients.at[-1].add(first), size)


def _composite_gauss() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    starts = np.arange(_PANELS)[:, None] / _PANELS
    points = starts + (nodes[None, :] + 1) / (2 * _PANELS)
    return points.ravel(), np.tile(weights / (2 * _PANELS), _PANELS)
