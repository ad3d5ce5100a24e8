"""The quadrature of physical time over a step."""

import jax.numpy as jnp
import numpy as np
import pytest

from gfdyn.run._time import MAX_CHANGE, NODES, fit_time_rate


@pytest.mark.parametrize("slope", [0.0, 1.0, -3.0, MAX_CHANGE, -MAX_CHANGE])
@pytest.mark.parametrize("fraction", [0.03, 0.5, 1.0])
@pytest.mark.parametrize("offset", [0.0, 700.0, -900.0])
def test_linear_rates(slope, fraction, offset):
    """∫ e^{λ₀ + a x} dx = e^{λ₀} (e^{a x} − 1)/a, far outside the range of floats."""
    size = 0.7
    rate = fit_time_rate(jnp.asarray(offset + slope * NODES), jnp.asarray(size))
    got = rate.log_integral(jnp.asarray(fraction))
    if slope == 0:
        expected = np.log(size * fraction)
    else:
        expected = np.log(size * np.expm1(slope * fraction) / slope)
    np.testing.assert_allclose(float(got) - offset, expected, atol=1e-11)


def test_quartic_rates_against_fine_quadrature():
    coefficients = np.array([3.0, -2.0, 1.5, -4.0, 0.3])
    rate = fit_time_rate(jnp.asarray(np.polyval(coefficients, NODES)), jnp.asarray(2.0))
    x = (np.arange(200_000) + 0.5) / 200_000 * 0.8
    expected = np.log(2.0 * 0.8 * np.mean(np.exp(np.polyval(coefficients, x))))
    np.testing.assert_allclose(rate.log_integral(jnp.asarray(0.8)), expected, rtol=1e-9)
