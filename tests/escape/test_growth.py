"""Growth along escape directions, against an ODE solver."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

import gfdyn as gf
from gfdyn.escape import (
    blow_up_time,
    escape_time,
    explosion_radius,
    log_blow_up_time,
    log_escape_time,
    log_explosion_radius,
    tau_of_unit_sphere_time,
    unit_sphere_speed,
    unit_sphere_time,
)


DEGREE: Any = 3.0
DEPTHS = pytest.mark.parametrize("depth", [2, 3, 4, 5, 6])


@DEPTHS
def test_radius_and_time_against_an_ode_solver(depth):
    """dr/dt = s r^{L−1}, up to 95 % of the time to the blow-up (or to r = 20)."""
    speed, r0 = 0.7, 0.3
    end = float(blow_up_time(depth, speed, r0))
    end = 0.95 * end if depth > 2 else 6.0
    times = np.linspace(0, end, 9)
    r = scipy.integrate.solve_ivp(
        lambda _, r: speed * r ** (depth - 1),
        (0, end),
        [r0],
        method="DOP853",
        t_eval=times,
        rtol=1e-13,
        atol=1e-15,
    ).y[0]
    np.testing.assert_allclose(explosion_radius(depth, speed, r0, times), r, rtol=1e-8)
    np.testing.assert_allclose(escape_time(depth, speed, r0, r), times, rtol=1e-8)
    assert r[-1] > 2 * r0


@DEPTHS
def test_printed_law_is_another(depth):
    """The paper's norm at time t solves the ODE of a speed that is L^{L/2} too large, and
    its escape times are off by the measured ratios."""
    speed, first, last = 0.7, 0.3, 0.9
    true = float(escape_time(depth, speed, first / depth**0.5, last / depth**0.5))
    if depth == 2:
        printed = math.log(last / first) / (2 * speed)
    else:
        powers = first ** (2.0 - depth) + last ** (2.0 - depth)
        printed = powers / ((depth - 2) * depth * speed)
    ratios = {2: 0.5, 3: 0.385, 4: 0.078, 5: 0.0193, 6: 0.00474}
    assert printed / true == pytest.approx(ratios[depth], rel=0.01)
    t = 0.3 * true * depth ** (-depth / 2)
    if depth == 2:
        printed = first * math.exp(2 * speed * t)
    else:
        power = first ** (2.0 - depth) + (2 - depth) * depth * speed * t
        printed = power ** (1 / (2.0 - depth))
    fast = explosion_radius(depth, speed * depth ** (depth / 2), first / depth**0.5, t)
    assert float(fast) * depth**0.5 == pytest.approx(printed, rel=1e-12)


def test_small_radii_do_not_overflow():
    assert log_blow_up_time(6, 0.5, -200.0) == pytest.approx(800 - math.log(2), rel=1e-15)
    assert log_blow_up_time(2, 0.5, -200.0) == math.inf
    # From e^-200 to e^-100, nearly all of the time has gone.
    assert log_escape_time(6, 0.5, -200.0, -100.0) == log_blow_up_time(6, 0.5, -200.0)
    assert log_escape_time(2, 0.5, -200.0, -100.0) == pytest.approx(math.log(200))
    tiny = math.exp(-200)
    assert escape_time(3, 0.5, tiny, 1.0) == pytest.approx(2 * math.exp(200), rel=1e-12)
    assert escape_time(6, 0.5, tiny, 1.0) == math.inf
    assert explosion_radius(6, 0.5, tiny, 1e300) == tiny
    # A relative growth below the precision of r is still a time.
    later = log_escape_time(4, 0.5, -200.0, np.nextafter(-200.0, 0))
    assert later == pytest.approx(400 + math.log(2) + math.log(np.spacing(200.0)), rel=1e-4)


@DEPTHS
def test_time_inverts_radius(depth):
    radii = jnp.linspace(-199.9, -197, 30)
    times = log_escape_time(depth, 0.3, -200.0, radii)
    back = log_explosion_radius(depth, 0.3, -200.0, times)
    np.testing.assert_allclose(back + 200, radii + 200, rtol=1e-6)


def test_limits():
    end = float(blow_up_time(4, 2.0, 0.5))
    assert end == pytest.approx(1.0, rel=1e-14)
    radii = explosion_radius(4, 2.0, 0.5, np.array([0.0, end / 2, 1.01 * end, np.inf]))
    np.testing.assert_allclose(radii, [0.5, 0.5 * 2**0.5, np.inf, np.inf], rtol=1e-14)
    assert blow_up_time(2, 2.0, 0.5) == np.inf
    assert escape_time(4, 2.0, 0.5, np.inf) == pytest.approx(end, rel=1e-14)
    assert escape_time(4, 2.0, 0.5, 0.4) == escape_time(2, 2.0, 0.5, 0.5) == 0


@DEPTHS
def test_clocks_and_speeds_of_the_unit_sphere(depth):
    """ds = ‖θ‖^{L−2} dt and dτ = r^{L−2} dt; −L₀ at ‖θ‖ = 1."""
    norm, dt = 0.37, 0.01
    tau = (norm / depth**0.5) ** (depth - 2) * dt
    assert unit_sphere_time(tau, depth) == pytest.approx(norm ** (depth - 2) * dt)
    assert tau_of_unit_sphere_time(unit_sphere_time(tau, depth), depth) == pytest.approx(
        tau
    )
    if depth == 6:
        assert tau_of_unit_sphere_time(36.0, 6) == pytest.approx(1.0, rel=1e-14)
    problem = gf.Problem(gf.data.circle(8), gf.losses.squared)
    net = gf.nets.MLP([2, *[3] * (depth - 1), 1], key=jax.random.key(0))
    speed = gf.diagnostics.escape_speed(problem, net)
    unit = problem.localized_risk(gf.nets.scaled_to_norm(net, 1.0))
    assert unit_sphere_speed(speed, depth) == pytest.approx(float(-unit), rel=1e-12)


def test_growth_keeps_float32_and_works_under_jit_and_grad():
    r0 = jnp.asarray([0.1, 0.2], jnp.float32)
    assert escape_time(3, 0.5, r0, 1.0).dtype == jnp.float32
    assert explosion_radius(3, 0.5, r0, 1.0).dtype == jnp.float32
    times = jax.jit(jax.vmap(lambda r: escape_time(3, 0.5, r, 1.0)))(r0)
    np.testing.assert_allclose(times, 2 * (1 / np.asarray(r0) - 1), rtol=1e-6)
    # dt/ds = −t/s, dr/dt = s r^{L−1}
    slope = jax.grad(lambda s: escape_time(4, s, 0.1, 1.0))(0.5)
    assert slope == pytest.approx(-float(escape_time(4, 0.5, 0.1, 1.0)) / 0.5, rel=1e-12)
    slope = jax.grad(lambda t: explosion_radius(4, 0.5, 0.1, t))(50.0)
    r = float(explosion_radius(4, 0.5, 0.1, 50.0))
    assert slope == pytest.approx(0.5 * r**3, rel=1e-12)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: blow_up_time(1, 0.5, 0.1), ValueError, "degree=1 must be at least 2"),
        (lambda: blow_up_time(DEGREE, 0.5, 0.1), TypeError, "degree=3.0 must be an inte"),
        (lambda: escape_time(3, 0.0, 0.1, 1.0), ValueError, "speed=0.0 must be positive"),
        (lambda: log_blow_up_time(3, -1.0, 0.1), ValueError, "speed=-1.0 must be posi"),
        (lambda: explosion_radius(3, 1, 0.0, 1.0), ValueError, "initial_radius=0.0 must"),
        (lambda: escape_time(3, 1.0, 0.1, -1.0), ValueError, "radius=-1.0 must be posi"),
        (lambda: explosion_radius(3, 1.0, 0.1, -2.0), ValueError, "time=-2.0 must not be"),
        (lambda: unit_sphere_time(1.0, 0), ValueError, "degree=0 must be at least 2"),
    ],
)
def test_growth_names_wrong_arguments(unhooked, call, error, text):
    with pytest.raises(error, match=text):
        call()
