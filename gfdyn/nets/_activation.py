"""Piecewise linear activations, and the gates that replace them.

A *gate* is what multiplies a pre-activation: σ(z) = gate · z. A network's forward pass
takes one callable `z -> a` per hidden layer, so that a solver may pass frozen gates
where the network itself would pass its activations.
"""

import math
import re

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class PiecewiseLinear(eqx.Module):
    r"""The activation $\sigma(z) = z$ for $z > 0$ and `slope` $\cdot z$ otherwise.

    ReLU has slope 0, the identity slope 1. Its derivative at $z = 0$ is `slope`: the one
    place where that choice is made (ReLU: $\sigma'(0) = 0$).
    """

    slope: float = eqx.field(static=True)

    def __check_init__(self):
        if not math.isfinite(self.slope):
            raise ValueError(
                f"slope must be a finite number, got {self.slope!r}; "
                "ReLU has slope 0.0 and the identity slope 1.0."
            )

    def __call__(self, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """σ(z), elementwise."""
        return z if self.is_linear else self.gate(z) * z

    def gate(self, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """σ(z)/z, elementwise: 1 where z > 0, `slope` elsewhere."""
        return jnp.where(z > 0, 1.0, self.slope).astype(z.dtype)

    @property
    def is_linear(self) -> bool:
        """Whether the activation is the identity, and so has no kink."""
        return self.slope == 1.0

    @property
    def name(self) -> str:
        """The name by which `activation` would give it back."""
        return {0.0: "relu", 1.0: "identity"}.get(self.slope, f"leaky_relu({self.slope!r})")


class FrozenGate(eqx.Module):
    """A gate whose value no longer depends on the pre-activation: z -> value · z."""

    value: Float[Array, "samples width"]

    def __call__(self, z: Float[Array, "samples width"]) -> Float[Array, "samples width"]:
        """The gated pre-activation."""
        return self.value * z


def relu() -> PiecewiseLinear:
    """max(z, 0)."""
    return PiecewiseLinear(0.0)


def identity() -> PiecewiseLinear:
    """z, for linear networks."""
    return PiecewiseLinear(1.0)


def leaky_relu(slope: float) -> PiecewiseLinear:
    """z for z > 0, `slope` · z otherwise.

    Args:
        slope: any finite number; 0 is the ReLU and 1 the identity.

    Raises:
        ValueError: unless it is finite.
    """
    return PiecewiseLinear(float(slope))


def activation(spec: "str | PiecewiseLinear") -> PiecewiseLinear:
    """The activation of a name.

    Args:
        spec: `"relu"`, `"identity"` (or `"linear"`), or `"leaky_relu(0.1)"` of any slope; a
            `PiecewiseLinear` is given back as it is.

    Raises:
        ValueError: for any other name; the message lists the valid ones.
    """
    if isinstance(spec, PiecewiseLinear):
        return spec
    if spec == "relu":
        return relu()
    if spec in ("identity", "linear"):
        return identity()
    if match := re.fullmatch(r"leaky_relu\((.+)\)", str(spec)):
        try:
            return leaky_relu(float(match[1]))
        except ValueError:
            pass
    raise ValueError(
        f"activation={spec!r} is unknown; use 'relu', 'identity', 'leaky_relu(SLOPE)' "
        "or a gf.nets.PiecewiseLinear; networks with others are Equinox modules for "
        "gf.nets.wrap."
    )
