"""Random keys that users give, refused at once if they are none."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray


def check_key(key: PRNGKeyArray) -> None:
    """Raise unless it is a key of `jax.random`.

    Raises:
        TypeError: saying how to make one.
    """
    # Typed ones, or two words of old
    kinds = (jax.dtypes.prng_key, jnp.uint32)
    if not eqx.is_array(key) or not any(jnp.issubdtype(key.dtype, k) for k in kinds):
        seed = key if isinstance(key, int) else 0
        raise TypeError(
            f"key={key!r} must be a key of jax.random, such as jax.random.key({seed})."
        )


def random_keys(key: PRNGKeyArray, num: int) -> Sequence[PRNGKeyArray]:
    """As many keys as asked for, from one.

    Raises:
        TypeError: if it is no random key.
    """
    try:
        return tuple(jr.split(key, num))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"key={key!r} is not one random key ({error}): pass jax.random.key(seed)."
        ) from error
