r"""How fast a saddle is left, from the risk and its gradient on the way down.

Near a saddle of risk R* that is left along a direction of degree L and speed s,

$$\|\nabla R\|^{L/(L-1)} = L^{L/(2L-2)}\,s^{1/(L-1)}\,(R^* - R)\,(1 + O(R^* - R)).$$
"""

from typing import NamedTuple

import numpy as np


# Over which fractions of the fall the onset is measured, at how many saves at the least,
# and from what multiple of the gradient nearest to the saddle on.
_EARLIEST, _LATEST = 1e-3, 0.1
_FEWEST = 3
_FORGOTTEN = 5.0


class Onset(NamedTuple):
    """The speed and the degree of an escape, NaN where they are not resolved."""

    speed: float
    degree: float


def onset(depth: int, risk: np.ndarray, gradient: np.ndarray) -> Onset:
    """How a saddle is left at degree L = `depth`, from risk and ‖∇R‖ at the saves from
    the one nearest to it, the first, to the end of the escape, the last."""
    fall = risk[0] - risk[-1]
    if not fall > 0:
        return Onset(np.nan, np.nan)
    part = (risk[0] - risk) / fall
    # Before, what is left of the approach to the saddle counts; later, the next plateau.
    use = (gradient > _FORGOTTEN * gradient[0]) & (part < _LATEST)
    part, gradient = part[use], gradient[use]
    if np.sum(part > _EARLIEST) < _FEWEST:
        return Onset(np.nan, np.nan)
    # A parabola whose root is R*, which the first save is only near to.
    power = gradient ** (depth / (depth - 1))
    powers = np.stack([part**2, part, np.ones_like(part)], axis=1)
    a, b, c = _fit(powers, power, 1 / np.maximum(part, _EARLIEST))
    if not (b > 0 and b**2 > 4 * a * c):
        return Onset(np.nan, np.nan)
    slope = np.sqrt(b**2 - 4 * a * c)
    root = -2 * c / (b + slope)
    per_risk = slope / fall
    speed = per_risk ** (depth - 1) / depth ** (depth / 2)
    later = part - root > _EARLIEST
    if np.sum(later) < _FEWEST:
        return Onset(float(speed), np.nan)
    logs = np.stack(
        [np.log((part - root)[later]), part[later], np.ones(later.sum())], axis=1
    )
    exponent, _, _ = _fit(logs, 2 * np.log(gradient[later]), np.ones(later.sum()))
    return Onset(float(speed), float(2 / (2 - exponent)))


def _fit(columns: np.ndarray, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Coefficients of the weighted least squares."""
    weighted = columns * weights[:, None]
    return np.linalg.lstsq(weighted, values * weights, rcond=None)[0]
