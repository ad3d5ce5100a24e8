"""Where the gates of sliding sites stand, and which of them are let go."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._by_layer import per_layer
from .._types import Mask, Sites
from ._masks import both, without
from ._sites import GateState


# How near its end a gate is at it by rounding, in units of the precision.
_GATE_ROUNDING = 10.0


class Openness(eqx.Module):
    """Where each sliding gate stands between off (0) and on (1), and how strongly its kink
    attracts: one below 0 repels."""

    value: Sites
    attraction: Sites

    def room(self, sliding: Mask) -> Sites:
        """How far the gate of each sliding site is inside the range, less than 0 where its
        kink repels; ∞ at other sites.

        One at its end is let go: z stays at 0 without it, and held there it would keep
        units below from opening for its sample.
        """

        def room(slides: Array, o: Array, attracts: Array) -> Array:
            inside = jnp.minimum(o, 1 - o) - _GATE_ROUNDING * jnp.finfo(o.dtype).eps
            repelled = -jnp.maximum(jnp.abs(o), jnp.abs(1 - o))
            return jnp.where(slides, jnp.where(attracts < 0, repelled, inside), jnp.inf)

        return per_layer(room, sliding, self.value, self.attraction)

    def out(self, sliding: Mask) -> Mask:
        """The sliding sites that are to be let go."""
        return per_layer(lambda room: room < 0, self.room(sliding))

    def repels(self, sliding: Mask) -> Mask:
        """The sliding sites whose kinks repel."""
        return per_layer(lambda s, a: s & (a < 0), sliding, self.attraction)

    def as_before(self, before: "Openness", slid: Mask) -> "Openness":
        """The same, but where kinks repel with the gates of sites that slid before as they
        stood then: where one holds z on a kink that repels, no descent stays."""
        value = per_layer(
            lambda o, a, o0, s: jnp.where(s & (a < 0), o0, o),
            self.value,
            self.attraction,
            before.value,
            slid,
        )
        return Openness(value, self.attraction)

    def release(self, gates: GateState, out: Mask) -> GateState:
        """The gates with some sliding ones let go, to the side where they stand."""
        out = both(out, gates.sliding)
        on = per_layer(lambda r, o, g: jnp.where(r, o > 0.5, g), out, self.value, gates.on)
        return GateState(on, without(gates.sliding, out), gates.frozen)
