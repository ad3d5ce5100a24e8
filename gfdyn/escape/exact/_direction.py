"""An escape direction with its speed, and the rank-one nets that closed forms end in."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...nets import MLP


class EscapeDirection(eqx.Module):
    r"""A net ρ with ‖ρ‖² = L and −sρ ∈ ∂L₀(ρ), and its speed s = −L₀(ρ) > 0.

    Bantzis et al., Def. 2.1. Every layer has ‖W_l‖_F = 1.
    """

    net: MLP
    speed: Float[Array, ""]


def single_path(
    first: Float[Array, " in"],
    last: Float[Array, " out"],
    depth: int,
    width: int = 1,
    activation: str = "relu",
) -> MLP:
    r"""The net with one path: $W_1 = e_1 w^\top$, $W_l = e_1 e_1^\top$, $W_L = u e_1^\top$,
    of `depth` L ≥ 2 and hidden layers of this width: the neuron $u\,\sigma(w \cdot x)$."""
    e = jnp.zeros(width, first.dtype).at[0].set(1.0)
    middle = (jnp.outer(e, e),) * (depth - 2)
    weights = (jnp.outer(e, first), *middle, jnp.outer(last, e))
    return MLP.from_weights(weights, activation)


def check_depth(depth: int, least: int = 2) -> None:
    """Raise unless this is a number of weight matrices.

    Raises:
        ValueError: if it is not an integer of at least `least`.
    """
    if not isinstance(depth, int) or depth < least:
        raise ValueError(
            f"depth={depth!r} must be an integer of at least {least}: the number of weight "
            "matrices."
        )


def check_width(width: int, least: int = 1) -> None:
    """Raise unless this is a number of hidden units.

    Raises:
        ValueError: if it is not an integer of at least `least`.
    """
    if not isinstance(width, int) or width < least:
        raise ValueError(
            f"width={width!r} must be an integer of at least {least}: the units of every "
            "hidden layer."
        )
