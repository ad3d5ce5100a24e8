r"""The numbers in Theorems 2 and 3 and in Lemma 6, as functions of φ in (π/2, π).

All are about the plane, the setting of Section 3 of Timor et al. They collapse as φ → π,
where W → (x_1, x_2)ᵀ is itself nearly of rank one: no gap is uniform in φ.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ._closed_forms import singular_ratio_of_rows, stable_rank_of_rows
from ._setting import check_obtuse


Number = Float[Array, "..."]

_HALF_ROOT_3 = math.sqrt(3) / 2


def rank_two_radius(phi: ArrayLike) -> Number:
    r"""$\min\{\tfrac12, \tfrac{\sqrt3}2\cos\tfrac\phi2\}$, which |w_i(0)| is below in
    Theorem 2. There |v_i(0)| < 1/2 as well.

    Args:
        phi: φ, the angle of the two points, in radians.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    return jnp.minimum(0.5, _HALF_ROOT_3 * jnp.cos(_angle(phi) / 2))


def far_radius(phi: ArrayLike) -> Number:
    r"""$\tfrac{\sqrt3}2\min\{\sin\tfrac{\pi-\phi}4, \sin(\phi-\tfrac\pi2)\}$, the largest
    |w_i(0)| of Theorem 3. There v_i(0) = 0.

    Args:
        phi: φ, the angle of the two points, in radians.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    phi = _angle(phi)
    return _HALF_ROOT_3 * jnp.minimum(jnp.sin((jnp.pi - phi) / 4), -jnp.cos(phi))


def far_probability(phi: ArrayLike) -> Number:
    r"""$2(\phi/2\pi)^2$, the bound of Theorem 3 on the probability of its event.

    That of a matched start, from which the event is certain.

    Args:
        phi: φ, the angle of the two points, in radians.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    return 2 * (_angle(phi) / (2 * jnp.pi)) ** 2


def limit_norms(phi: ArrayLike, radius: ArrayLike) -> tuple[Number, Number]:
    r"""The interval of |w_i(∞)| in Lemma 6, open at both ends:

    $$\frac{\sqrt3}2 < |w_i(\infty)| < \sqrt{\frac14 + \frac{4}{3\cos^2\max\{
    \arcsin(2|w_i(0)|/\sqrt3),\ \phi-\pi/2\}}}.$$

    Args:
        phi: φ, the angle of the two points, in radians.
        radius: |w_i(0)|, below 1/2.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    phi = _angle(phi)
    widest = jnp.maximum(_spread(radius, phi), phi - jnp.pi / 2)
    highest = jnp.sqrt(0.25 + 4 / (3 * jnp.cos(widest) ** 2))
    return jnp.full_like(highest, _HALF_ROOT_3), highest


def limit_angles(phi: ArrayLike, radius: ArrayLike) -> tuple[Number, Number]:
    r"""The interval of the angle of w_1(∞) and w_2(∞) in Lemma 6:

    $$\pi - \phi \le \angle(w_1(\infty), w_2(\infty)) <
    \phi + 2\arcsin\frac{2\max_i|w_i(0)|}{\sqrt3}.$$

    Args:
        phi: φ, the angle of the two points, in radians.
        radius: max_i |w_i(0)|, below 1/2.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    phi = _angle(phi)
    return jnp.pi - phi, phi + 2 * _spread(radius, phi)


def far_norms(phi: ArrayLike) -> tuple[Number, Number]:
    r"""The interval of |w_i(∞)| in Theorem 3: $\sqrt3/2$ to $\sqrt{1/4+4/(3\sin^2\phi)}$.

    Args:
        phi: φ, the angle of the two points, in radians.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    phi = _angle(phi)
    highest = jnp.sqrt(0.25 + 4 / (3 * jnp.sin(phi) ** 2))
    return jnp.full_like(highest, _HALF_ROOT_3), highest


def far_angles(phi: ArrayLike) -> tuple[Number, Number]:
    """The interval of the angle of w_1(∞) and w_2(∞) in Theorem 3: π − φ to π/2 + φ/2.

    The paper prints π/2 − (φ − π/2) and 3π/4 + (φ − π/2)/2, which are the same.

    Args:
        phi: φ, the angle of the two points, in radians.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    phi = _angle(phi)
    return jnp.pi - phi, (jnp.pi + phi) / 2


def far_stable_rank(phi: ArrayLike) -> Number:
    """The least stable rank of W in the event of Theorem 3.

    That of rows as unequal and as opposed as the event allows. Not in the paper.

    Args:
        phi: φ, the angle of the two points, in radians.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    (low, high), (_, angle) = far_norms(phi), far_angles(phi)
    return stable_rank_of_rows(low, high, angle)


def far_singular_ratio(phi: ArrayLike) -> Number:
    """The least σ_2/σ_1 of W in the event of Theorem 3. Not in the paper.

    Args:
        phi: φ, the angle of the two points, in radians.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    (low, high), (_, angle) = far_norms(phi), far_angles(phi)
    return singular_ratio_of_rows(low, high, angle)


def dead_neuron_loss(psi: ArrayLike) -> Number:
    r"""$(1-\max\{\cos\psi, 0\})/2$, the least loss of a net with one live neuron.

    Its outputs on both points are nonnegative multiples of one vector. So it is 1/2 for
    ψ ≥ π/2 only. Not in the paper, whose Lemma 5 says that the loss is not zero.

    Args:
        psi: ψ, the angle of the two targets, unit vectors, in radians.
    """
    return (1 - jnp.maximum(jnp.cos(jnp.asarray(psi)), 0)) / 2


def _angle(phi: ArrayLike) -> Array:
    check_obtuse(phi)
    return jnp.asarray(phi)


def _spread(radius: ArrayLike, phi: Array) -> Array:
    """arcsin(2|w_i(0)|/√3); NaN, with no bound, beyond its range."""
    return jnp.arcsin(2 * jnp.asarray(radius, phi.dtype) / math.sqrt(3))
