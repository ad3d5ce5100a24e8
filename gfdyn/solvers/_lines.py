"""Sites whose kinks coincide, and whose gates therefore move together.

There the gates of sites on the same side are equal, those on opposite sides λ and 1 − λ.
Some coincide wherever θ is: those of parallel and of antipodal samples in the first layer,
say. Others do as long as gates stay: samples that pass a layer through one and the same
ReLU alone arrive above it on one line.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..nets import MLP, AbstractNet, Coincidence, coinciding_kinks
from ._gates import GateState, Mask, Sites, any_of, nonzero, per_layer, standing


_PerLayer = tuple[Array, ...]


class Lines(eqx.Module):
    """The sites of each hidden layer that share a kink, and whether any do."""

    layers: tuple[Coincidence, ...]
    # Those that do wherever θ is
    always: tuple[Coincidence, ...]
    # Of samples that pass a layer through one ReLU alone, that one
    alone: Mask
    shared: Bool[Array, ""]

    def under(self, net: AbstractNet, gates: GateState, z: Sites) -> "Lines":
        """The same while these gates stay.

        Only a network without biases and with one path from layer to layer, an `MLP`, is
        looked at for samples that pass through one unit alone.
        """
        if not isinstance(net, MLP):
            return self
        alone = tuple(
            on & (jnp.sum(on, axis=1, keepdims=True) == 1) & (sigma.slope == 0)
            for sigma, on in zip(net.activations, standing(gates, z), strict=True)
        )
        return jax.lax.cond(
            any_of(alone),
            lambda: _lines(_joined(self.always, alone), self.always, alone),
            lambda: _lines(self.always, self.always, alone),
        )

    def one_of_each(self, mask: Mask) -> Mask:
        """The mask with one site kept of those that share a kink wherever θ is."""
        return per_layer(lambda c, m: m & c.is_first(m.shape), self.always, mask)

    def with_sharers(self, mask: Mask) -> Mask:
        """The mask, and all sites that share a kink with one in it."""

        def spread(c: Coincidence, m: Array) -> Array:
            return c.of_first(c.summed(m.astype(jnp.int32))) > 0

        return self._where_shared(lambda: per_layer(spread, self.layers, mask), mask)

    def openness(self, sliding: Mask, nu: Sites, signal: Sites, z: Sites) -> Sites:
        """Where sliding gates stand between off (0) and on (1).

        The multiplier ν is what the gates add to the gradient along ∇z: o c for a kink of
        its own. Where sites share it, Σ_k o_k r_k c_k over them, with o for r > 0 and
        1 − o for r < 0, must equal Σ_k r_k ν_k.
        """

        def of_sharers(
            line: Coincidence, slides: Array, ratio: Array, n: Array, c: Array
        ) -> Array:
            c = jnp.where(slides, c, 0.0)
            opposite = line.summed(jnp.minimum(ratio, 0.0) * c)
            weight = line.summed(jnp.abs(ratio) * c)
            first = line.of_first((line.summed(ratio * n) - opposite) / nonzero(weight))
            return jnp.where(ratio < 0, 1 - first, first)

        own = per_layer(lambda n, c: n / nonzero(c), nu, signal)
        return self._where_shared(
            lambda: per_layer(
                of_sharers, self.layers, sliding, self._ratios(z), nu, signal
            ),
            own,
        )

    def _ratios(self, z: Sites) -> Sites:
        """z of each site relative to the first one's: where samples pass a single unit,
        that of what this lets through."""
        ratios, size = [], jnp.zeros((len(z[0]), 1), z[0].dtype)
        for line, alone, zl in zip(self.layers, self.alone, z, strict=True):
            sizes = jnp.broadcast_to(size, zl.shape)
            ratio = sizes / nonzero(line.of_first(sizes))
            ratios.append(jnp.where(size > 0, ratio, line.ratio.reshape(zl.shape)))
            passed = jnp.sum(jnp.where(alone, jnp.abs(zl), 0.0), axis=1, keepdims=True)
            size = jnp.where(jnp.any(alone, axis=1, keepdims=True), passed, size)
        return tuple(ratios)

    def _where_shared(self, sharing: Callable[[], _PerLayer], own: _PerLayer) -> _PerLayer:
        """What sharing makes of it where any kinks are shared."""
        return jax.lax.cond(self.shared, sharing, lambda: own)


def lines_of(net: AbstractNet, x: Float[Array, "samples in"]) -> Lines:
    """Which sites of a net share their kinks on these samples, wherever θ is."""
    always = coinciding_kinks(net, x)
    widths = [len(c.first) // len(x) for c in always]
    nobody = tuple(jnp.zeros((len(x), width), bool) for width in widths)
    return _lines(always, always, nobody)


def _lines(
    layers: tuple[Coincidence, ...], always: tuple[Coincidence, ...], alone: Mask
) -> Lines:
    shared = [jnp.any(c.first != jnp.arange(len(c.first))) for c in layers]
    return Lines(layers, always, alone, jnp.any(jnp.stack(shared)))


def _joined(always: tuple[Coincidence, ...], alone: Mask) -> tuple[Coincidence, ...]:
    """With samples joined above the last unit through which they pass alone."""
    samples = len(alone[0])
    own = jnp.arange(samples)
    nobody = sum(a.shape[1] for a in alone)
    through, before, joined = jnp.full(samples, nobody), 0, []
    for line, a in zip(always, alone, strict=True):
        firsts = jnp.full(nobody, samples).at[through].min(own, mode="drop")
        first = firsts.at[through].get(mode="fill", fill_value=0)[:, None]
        width = a.shape[1]
        sites = first * width + jnp.arange(width)[None, :]
        known = (through < nobody)[:, None]
        first_sites = jnp.where(known, sites, line.first.reshape(a.shape))
        joined.append(Coincidence(first_sites.ravel(), line.ratio))
        through = jnp.where(jnp.any(a, axis=1), before + jnp.argmax(a, axis=1), through)
        before += width
    return tuple(joined)
