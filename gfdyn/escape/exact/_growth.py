r"""How the norm grows along an escape direction, in closed form.

Along an escape direction ρ of speed s, ‖ρ‖² = L, the localized flow of a net of degree L
keeps to the ray θ = r ρ, r = ‖θ‖/√L (Bantzis et al., Prop. 2.2):

$$\frac{dr}{dt} = s\,r^{L-1}.$$

The paper prints dR/dt = L s R^{L−1} for R = ‖θ‖. That holds for the speed on the unit
sphere, −L₀(θ/‖θ‖) = L^{−L/2} s; with s of its Definition 2.1 every rate comes out too large
by the factor L^{L/2}.

From r = e^-200 at L = 6 the escape takes t = e^800: the functions in logarithms are the
ones that never overflow, and the plain ones are built on them.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._tracing import is_concrete


Real = Float[Array, "*shape"]


def log_explosion_radius(
    degree: int, speed: ArrayLike, log_initial_radius: ArrayLike, log_time: ArrayLike
) -> Real:
    r"""log r at the time t after r₀, +∞ from the blow-up on.

    $$r^{2-L} = r_0^{2-L} - (L-2)\,s\,t, \qquad L = 2:\ r = r_0 e^{st}.$$

    Bantzis et al., Prop. 2.2 and A.2, who print L s in place of s, for ‖θ‖ in place of r:
    too fast by the factor L^{L/2}, as in e^{2st} at L = 2.

    Args:
        degree: L ≥ 2, an integer: the number of weight matrices, `net.degree`.
        speed: s > 0, that of `gf.diagnostics.escape_speed`; repeated against the others.
        log_initial_radius: log r₀, with r₀ = ‖θ‖/√L at the start.
        log_time: log t, with t the physical time from r₀ on.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2, or the speed not
            positive.
    """
    growth = _log_growth(degree, speed, log_initial_radius, log_time)
    return jnp.add(log_initial_radius, growth)


def log_escape_time(
    degree: int, speed: ArrayLike, log_initial_radius: ArrayLike, log_radius: ArrayLike
) -> Real:
    r"""log of the time from r₀ to the radius r; −∞ where r ≤ r₀, which is reached already.

    $$t = \frac{r_0^{2-L} - r^{2-L}}{(L-2)\,s}, \qquad L = 2:\ t = \frac{\log(r/r_0)}{s}.$$

    Bantzis et al., section 2.2, who print a plus between the powers, and L s in place of s
    for ‖θ‖ in place of r: but for the sign, times too short by the factor L^{−L/2}.

    Args:
        degree, speed, log_initial_radius: see `log_explosion_radius`.
        log_radius: log r, with r = ‖θ‖/√L at the end; infinite for the blow-up.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2, or the speed not
            positive.
    """
    _check_degree(degree)
    _check_positive(speed=speed)
    growth = jnp.maximum(jnp.subtract(log_radius, log_initial_radius), 0.0)
    if degree == 2:
        return jnp.log(growth) - jnp.log(speed)
    fraction = -jnp.expm1(-(degree - 2) * growth)
    return jnp.log(fraction) + log_blow_up_time(degree, speed, log_initial_radius)


def log_blow_up_time(degree: int, speed: ArrayLike, log_initial_radius: ArrayLike) -> Real:
    r"""log of the time $r_0^{2-L}/((L-2)\,s)$ at which r is infinite; +∞ at L = 2.

    Implied by Bantzis et al., Prop. 2.2; as printed, too early by the factor L^{−L/2}.

    Args:
        degree, speed, log_initial_radius: see `log_explosion_radius`.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2, or the speed not
            positive.
    """
    _check_degree(degree)
    _check_positive(speed=speed)
    exponent = jnp.multiply(degree - 2, log_initial_radius)
    if degree == 2:
        return jnp.full_like(exponent + jnp.log(speed), jnp.inf)
    return -exponent - jnp.log(speed) - math.log(degree - 2)


def explosion_radius(
    degree: int, speed: ArrayLike, initial_radius: ArrayLike, time: ArrayLike
) -> Real:
    """r = ‖θ‖/√L at a time after r₀, ∞ from the blow-up on: see `log_explosion_radius`.

    Args:
        degree, speed: see `log_explosion_radius`.
        initial_radius: r₀ > 0, which is ‖θ‖/√L at the start.
        time: t ≥ 0, the physical time from r₀ on.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2, speed or initial
            radius not positive, or the time negative.

    Example:
        >>> round(float(explosion_radius(3, speed=0.5, initial_radius=0.1, time=10.0)), 6)
        0.2
    """
    _check_positive(initial_radius=initial_radius)
    if is_concrete(time) and not np.all(np.asarray(time) >= 0):
        raise ValueError(f"time={time} must not be negative: it counts from r₀ on.")
    growth = _log_growth(degree, speed, jnp.log(initial_radius), jnp.log(time))
    return jnp.multiply(initial_radius, jnp.exp(growth))


def escape_time(
    degree: int, speed: ArrayLike, initial_radius: ArrayLike, radius: ArrayLike
) -> Real:
    """The time from r₀ to a radius, 0 if that is smaller: see `log_escape_time`.

    Args:
        degree, speed: see `log_explosion_radius`.
        initial_radius: see `explosion_radius`.
        radius: r > 0, the same at the end.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2, or speed or a
            radius not positive.
    """
    _check_positive(initial_radius=initial_radius, radius=radius)
    return jnp.exp(log_escape_time(degree, speed, jnp.log(initial_radius), jnp.log(radius)))


def blow_up_time(degree: int, speed: ArrayLike, initial_radius: ArrayLike) -> Real:
    """The time from r₀ to infinity, itself ∞ at L = 2: see `log_blow_up_time`.

    Args:
        degree, speed: see `log_explosion_radius`.
        initial_radius: see `explosion_radius`.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2, or speed or
            radius not positive.
    """
    _check_positive(initial_radius=initial_radius)
    return jnp.exp(log_blow_up_time(degree, speed, jnp.log(initial_radius)))


def unit_sphere_time(tau: ArrayLike, degree: int) -> Real:
    r"""The paper's clock on the unit sphere, $L^{L/2-1}\,\tau$.

    Its definition is ds = ‖θ‖^{L−2} dt (Bantzis et al., section 2.1, with an integral
    over s in place of t; the norm and t(s) there lack a factor L in the exponent).

    Args:
        tau: τ, the clock of `EscapeFlow`.
        degree: L ≥ 2, an integer: the number of weight matrices, `net.degree`.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2.
    """
    _check_degree(degree)
    return jnp.multiply(tau, degree ** (degree / 2 - 1))


def tau_of_unit_sphere_time(time: ArrayLike, degree: int) -> Real:
    r"""τ of `EscapeFlow` from the clock on the unit sphere: $\tau = L^{1-L/2}\,s$.

    Args:
        time: s, as of `unit_sphere_time`.
        degree: L ≥ 2, an integer: the number of weight matrices, `net.degree`.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2.
    """
    _check_degree(degree)
    return jnp.multiply(time, degree ** (1 - degree / 2))


def unit_sphere_speed(speed: ArrayLike, degree: int) -> Real:
    r"""$-\mathcal L_0(\theta/\|\theta\|) = L^{-L/2}\,s$: the speed that the formulas of
    Prop. 2.2 have when read as they are printed.

    Args:
        speed: s of Definition 2.1, that of `gf.diagnostics.escape_speed`.
        degree: L ≥ 2, an integer: the number of weight matrices, `net.degree`.

    Raises:
        TypeError, ValueError: if the degree is no integer of at least 2.
    """
    _check_degree(degree)
    return jnp.multiply(speed, degree ** (-degree / 2))


def _log_growth(
    degree: int, speed: ArrayLike, log_initial_radius: ArrayLike, log_time: ArrayLike
) -> Real:
    """log r/r₀ at a time after r₀."""
    _check_degree(degree)
    _check_positive(speed=speed)
    if degree == 2:
        return jnp.multiply(speed, jnp.exp(log_time))
    log_end = log_blow_up_time(degree, speed, log_initial_radius)
    fraction = jnp.exp(jnp.minimum(jnp.subtract(log_time, log_end), 0.0))
    return -jnp.log1p(-fraction) / (degree - 2)


def _check_degree(degree: Any) -> None:
    if not isinstance(degree, int | np.integer):
        raise TypeError(
            f"degree={degree!r} must be an integer: the number L of weight matrices, "
            "net.degree."
        )
    if degree < 2:
        raise ValueError(
            f"degree={degree} must be at least 2: a net with one weight matrix has no "
            "saddle at the origin to escape from."
        )


def _check_positive(**values: ArrayLike) -> None:
    """Under jit and vmap, where values are not known, the result is NaN instead."""
    for name, value in values.items():
        if is_concrete(value) and not np.all(np.asarray(value) > 0):
            remedy = (
                "it is −L₀(ρ), positive along an escape direction"
                if name == "speed"
                else "it is ‖θ‖/√L; use the functions in logarithms if it underflows"
            )
            raise ValueError(f"{name}={value} must be positive: {remedy}.")
