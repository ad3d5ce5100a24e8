"""How long what hardly moves may be held where it is."""

from collections.abc import Callable

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._lanczos import extremal_eigenvalues
from .._types import Scalar


# Products of a Lanczos run; how many steps of 1/rate coasting must save to be tried.
_LANCZOS_STEPS = 12
_WORTHWHILE = 3.0


def holding_time(
    velocity: Float[Array, " size"],
    change: Callable[[Float[Array, " size"]], Float[Array, " size"]],
    rate: Scalar,
    allowed: Scalar,
) -> Scalar:
    r"""How long a direction may be held where it is for an error of at most `allowed`.

    With $v$ its velocity and Λ a bound on the growth of a deviation, holding it for h costs
    at most $|v| (e^{\Lambda h} - 1)/\Lambda$. Λ is the largest eigenvalue of the
    derivative of v, by Lanczos from differences of v, with a margin of 5 % of the
    spectrum's width.

    Args:
        velocity: v at the direction.
        change: of v, where the direction is displaced.
        rate: at which what is not held moves; 0 is returned unless holding for some steps
            of 1/rate is allowed.
        allowed: the error.
    """
    speed = jnp.linalg.norm(velocity)

    def growth() -> Scalar:
        step = jnp.sqrt(jnp.finfo(velocity.dtype).eps)

        def product(v: Array) -> Array:
            return change(step * v) / step

        smallest, largest = extremal_eigenvalues(product, velocity, _LANCZOS_STEPS)
        return jnp.maximum(largest + 0.05 * (largest - smallest), 0.0)

    # Worth a Lanczos run only if it could cover more than some steps of 1/rate. Under
    # vmap it is run where any lane wants it, not always.
    worthwhile = allowed * rate > _WORTHWHILE * speed
    wanted = eqxi.unvmap_any(worthwhile)
    bound = jax.lax.cond(wanted, growth, lambda: jnp.ones_like(speed))
    bound = jnp.maximum(bound, 1e-3 * rate)
    safe_speed = jnp.where(speed > 0, speed, jnp.finfo(speed.dtype).tiny)
    time = jnp.log1p(bound * allowed / safe_speed) / bound
    return jax.lax.stop_gradient(jnp.where(worthwhile, time, 0.0))
