"""Samples on one line through the origin, whose kinks in the first layer coincide.

There the gates of parallel samples are equal, those of antipodal ones λ and 1 − λ.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._gates import Mask, Sites, nonzero, per_layer


class Lines(eqx.Module):
    """For each sample the first one on its line, and r with x = r · x_first.

    `along` is 0 for a sample at the origin, which has no kink.
    """

    first: Int[Array, " samples"]
    along: Float[Array, " samples"]
    shared: Bool[Array, ""]

    def one_of_each(self, mask: Mask) -> Mask:
        """The mask with one site kept of those that share a kink."""
        own = self.first == jnp.arange(len(self.first))
        return (mask[0] & own[:, None], *mask[1:])

    def with_sharers(self, mask: Mask) -> Mask:
        """The mask, and in the first layer all sites that share a kink with one in it."""

        def spread() -> Array:
            return self._sum(mask[0].astype(jnp.int32))[self.first] > 0

        return (jax.lax.cond(self.shared, spread, lambda: mask[0]), *mask[1:])

    def openness(self, nu: Sites, signal: Sites) -> Sites:
        """Where sliding gates stand between off (0) and on (1).

        The multiplier ν is what the gates add to the gradient along ∇z: o c for a kink of
        its own. Where samples share it, Σ_k o_k r_k c_k over them, with o for r > 0 and
        1 − o for r < 0, must equal ν of the first one.
        """

        def of_lines() -> Array:
            along = self.along[:, None]
            opposite = self._sum(jnp.minimum(along, 0.0) * signal[0])
            weight = self._sum(jnp.abs(along) * signal[0])
            first = ((nu[0] - opposite) / nonzero(weight))[self.first]
            return jnp.where(along < 0, 1 - first, first)

        own = per_layer(lambda n, c: n / nonzero(c), nu, signal)
        return (jax.lax.cond(self.shared, of_lines, lambda: own[0]), *own[1:])

    def _sum(self, values: Array) -> Array:
        """Sums over each line, at its first sample."""
        return jnp.zeros_like(values).at[self.first].add(values)


def lines_of(x: Float[Array, "samples dim"]) -> Lines:
    """Which samples lie on one line through the origin, to rounding."""
    x = jax.lax.stop_gradient(x)
    gram = x @ x.T
    squares = jnp.diag(gram)
    known = squares > 0
    safe = jnp.where(known, squares, 1.0)
    cosine = gram / jnp.sqrt(safe[:, None] * safe[None, :])
    collinear = jnp.abs(cosine) > 1 - 8 * jnp.finfo(x.dtype).eps
    collinear &= known[:, None] & known[None, :]
    own = jnp.arange(len(x))
    first = jnp.where(known, jnp.argmax(collinear, axis=1), own)
    along = gram[own, first] / safe[first]
    return Lines(first, along, jnp.any(first != own))
