"""Sites whose kinks coincide wherever θ is, and whose gates therefore move together.

There the gates of sites on the same side are equal, those on opposite sides λ and 1 − λ:
those of parallel and of antipodal samples in the first layer, say.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..nets import AbstractNet, Coincidence, coinciding_kinks
from ._gates import Mask, Sites, nonzero, per_layer


class Lines(eqx.Module):
    """The sites of each hidden layer that share a kink, and whether any do."""

    layers: tuple[Coincidence, ...]
    shared: Bool[Array, ""]

    def one_of_each(self, mask: Mask) -> Mask:
        """The mask with one site kept of those that share a kink."""
        return per_layer(lambda c, m: m & c.is_first(m.shape), self.layers, mask)

    def with_sharers(self, mask: Mask) -> Mask:
        """The mask, and all sites that share a kink with one in it."""

        def spread(c: Coincidence, m: Array) -> Array:
            return c.of_first(c.summed(m.astype(jnp.int32))) > 0

        return self._where_shared(lambda: per_layer(spread, self.layers, mask), mask)

    def openness(self, nu: Sites, signal: Sites) -> Sites:
        """Where sliding gates stand between off (0) and on (1).

        The multiplier ν is what the gates add to the gradient along ∇z: o c for a kink of
        its own. Where sites share it, Σ_k o_k r_k c_k over them, with o for r > 0 and
        1 − o for r < 0, must equal ν of the first one.
        """

        def of_sharers(line: Coincidence, n: Array, c: Array) -> Array:
            ratio = line.ratio.reshape(c.shape)
            opposite = line.summed(jnp.minimum(ratio, 0.0) * c)
            weight = line.summed(jnp.abs(ratio) * c)
            first = line.of_first((n - opposite) / nonzero(weight))
            return jnp.where(ratio < 0, 1 - first, first)

        own = per_layer(lambda n, c: n / nonzero(c), nu, signal)
        return self._where_shared(
            lambda: per_layer(of_sharers, self.layers, nu, signal), own
        )

    def _where_shared(self, sharing, alone):
        """What sharing makes of it where any kinks are shared."""
        return jax.lax.cond(self.shared, sharing, lambda: alone)


def lines_of(net: AbstractNet, x: Float[Array, "samples in"]) -> Lines:
    """Which sites of a net share their kinks on these samples."""
    layers = coinciding_kinks(net, x)
    shared = [jnp.any(c.first != jnp.arange(len(c.first))) for c in layers]
    return Lines(layers, jnp.any(jnp.stack(shared)))
