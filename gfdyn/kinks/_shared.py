"""Sites whose kinks coincide, and whose gates therefore move together.

There the gates of sites on the same side are equal, those on opposite sides λ and 1 − λ.
Some coincide wherever θ is: those of parallel and of antipodal samples in the first layer,
say. Others do as long as gates stay: samples that pass a layer through one and the same
ReLU alone arrive above it on one line.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._by_layer import in_layers, in_one_row, per_layer
from .._numerics import nonzero
from .._types import Mask, Sites
from ..nets import (
    AbstractNet,
    Coincidence,
    coinciding_kinks,
    joined,
    passing_alone,
    with_ratios,
)
from ._masks import any_of, both
from ._openness import Openness
from ._sites import GateState, standing


class SharedKinks(eqx.Module):
    """The sites of all hidden layers, one after the other, that share a kink, and whether
    any do."""

    # With the ratios of when that was looked up
    now: Coincidence
    # Those that do wherever θ is, and of these one each
    always: Coincidence
    leaders: Mask
    # Of samples that pass a layer through one ReLU alone, that one
    alone: Mask
    shared: Bool[Array, ""]

    def under(self, net: AbstractNet, gates: GateState, z: Sites) -> "SharedKinks":
        """The same while these gates stay."""
        alone, fixed = passing_alone(net, standing(gates, z)), jax.lax.stop_gradient(z)
        now = jax.lax.cond(
            any_of(alone),
            lambda: with_ratios(joined(self.always, alone), alone, fixed),
            lambda: self.always,
        )
        return SharedKinks(now, self.always, self.leaders, alone, _any_shared(now))

    def leading(self, mask: Mask) -> Mask:
        """The mask with one site kept of those that share a kink wherever θ is."""
        return both(mask, self.leaders)

    def representatives(self, mask: Mask) -> Mask:
        """The mask with one site kept of those that share a kink: that with the largest z,
        beside which small ones are rounding."""

        def largest() -> Mask:
            row = in_one_row(mask)
            return in_layers(self.now.largest_of(row, jnp.abs(self.now.ratio)), mask)

        return jax.lax.cond(self.shared, largest, lambda: mask)

    def with_sharers(self, mask: Mask) -> Mask:
        """The mask, and all sites that share a kink with one in it."""

        def spread() -> Mask:
            number = self.now.summed(in_one_row(mask).astype(jnp.int32))
            return in_layers(self.now.of_first(number) > 0, mask)

        return jax.lax.cond(self.shared, spread, lambda: mask)

    def openness(self, sliding: Mask, nu: Sites, signal: Sites, z: Sites) -> Openness:
        """Where sliding gates stand between off (0) and on (1), and how kinks attract.

        The multiplier ν is what the gates add to the gradient along ∇z: o c for a kink of
        its own, which attracts if c > 0. Where sites share it, Σ_k o_k r_k c_k over them,
        with o for r > 0 and 1 − o for r < 0, must equal Σ_k r_k ν_k, and Σ_k |r_k| c_k
        tells whether it attracts.
        """

        def of_sharers() -> Openness:
            sharers, n = with_ratios(self.now, self.alone, z), in_one_row(nu)
            c = jnp.where(in_one_row(sliding), in_one_row(signal), 0.0)
            same = jnp.maximum(sharers.ratio, 0.0) * c
            opposite = jnp.minimum(sharers.ratio, 0.0) * c
            rows = jnp.stack([sharers.ratio * n - opposite, same - opposite], axis=1)
            wanted, weight = sharers.of_first(sharers.summed(rows)).T
            o = wanted / nonzero(weight)
            o = jnp.where(sharers.ratio < 0, 1 - o, o)
            return Openness(in_layers(o, z), in_layers(weight, z))

        def of_each() -> Openness:
            value = per_layer(lambda n, c: n / nonzero(c), nu, signal)
            return Openness(value, signal)

        return jax.lax.cond(self.shared, of_sharers, of_each)


def shared_kinks(net: AbstractNet, x: Float[Array, "samples in"]) -> SharedKinks:
    """Which sites of a net share their kinks on these samples, wherever θ is."""
    always = coinciding_kinks(net, x)
    z = jax.eval_shape(lambda: net.preactivations(x))
    nobody = tuple(jnp.zeros(zl.shape, bool) for zl in z)
    leaders = in_layers(always.is_first, nobody)
    return SharedKinks(always, always, leaders, nobody, _any_shared(always))


def _any_shared(sites: Coincidence) -> Bool[Array, ""]:
    return jnp.any(~sites.is_first)
