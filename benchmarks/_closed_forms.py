"""What is known of flows without integrating them."""

import itertools
import math

from scipy.integrate import quad


def log_half_time(strength: float, depth: int, log_gain: float) -> float:
    """log of the time in which a product p comes to half of its strength σ, from
    p = gain^L: dp/dt = L p^(2−2/L) (σ − p), by quadrature over log p."""
    start, end = depth * log_gain, math.log(0.5 * strength)
    power = 2 / depth - 1

    def rate(log_p: float) -> float:
        return math.exp(power * (log_p - start)) / (depth * (strength - math.exp(log_p)))

    knots = [start, *(start + w for w in (1, 5, 20, 60) if start + w < end), end]
    parts = [quad(rate, a, b, epsrel=1e-12)[0] for a, b in itertools.pairwise(knots)]
    return math.log(sum(parts)) + power * start
