"""How Ψ changes as a kink is let go, and how the sites above it move apart."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ._sites import Scalar
from ._tangent import Row, Square


class Surroundings(eqx.Module):
    """What decides on how sites at rest or sliding move as one kink is let go."""

    # What a site passes adds this to the rates of those above it.
    rising: Square
    shares: Square
    mu: Row
    signal: Row
    on: Bool[Array, " sites"]
    hangs: Bool[Array, " sites"]
    still: Bool[Array, " sites"]
    layers: int = eqx.field(static=True)

    def change(self, p: Row) -> Row:
        """What each site adds to Ψ at rates p."""
        return self.signal * jnp.maximum(p, 0.0) - self.mu * p

    def psi(self, p: Row) -> Scalar:
        """Ψ at rates p."""
        return jnp.sum(jnp.where(self.still, self.change(p), 0.0))

    def following(self, first: Row) -> Row:
        """The rates of all sites as those of one kink get the rates `first`.

        In each layer, from below, a kink whose sites are pushed apart stays where it is, or
        moves so that one of them does not: whichever makes Ψ smaller there.
        """
        own, still = first != 0, self.still
        together = (self.shares != 0) & ~own[None, :]
        columns = jnp.arange(len(first))
        p = first
        for _ in range(self.layers - 1):
            # What sites pass beyond what those that are on pass already
            beyond = jnp.maximum(p, 0.0) - jnp.where(self.on, p, 0.0)
            passed = jnp.where(still, beyond, 0.0)
            pushed = jnp.where(still & ~own, self.rising @ passed, 0.0)
            change = self.change(pushed)
            staying = jnp.sum(jnp.where(together, change[None, :], 0.0), axis=1)
            moved = pushed[None, :] - pushed[:, None] * self.shares
            changes = jax.vmap(self.change)(moved)
            moving = jnp.sum(jnp.where(together, changes, 0.0), axis=1)
            # Of all sites of a kink the best to keep still
            choice = jnp.argmin(jnp.where(together, moving[:, None], jnp.inf), axis=0)
            better = (moving[choice] < staying) & ~self.hangs & (pushed[choice] != 0)
            p = jnp.where(own, first, jnp.where(better, moved[choice, columns], pushed))
        return p


def let_go(
    around: Surroundings, leader: Bool[Array, " sites"]
) -> tuple[Row, Row, Square, Square]:
    """Ψ as each kink is let go, to either side, and the rates of all sites: with what is
    above it moved apart, where anything is."""
    shares, still = around.shares, around.still
    gained, lost = jnp.maximum(shares, 0.0), jnp.maximum(-shares, 0.0)
    opens = gained @ around.signal - shares @ around.mu
    closes = lost @ around.signal + shares @ around.mu
    shared = (jnp.sum(shares != 0, axis=1) > 1) | around.hangs
    above = jnp.where((still & shared)[:, None] & still[None, :], around.rising, 0.0)
    stacked = leader & jnp.any((shares != 0) & jnp.any(above != 0, axis=0)[None, :], axis=1)
    order = jnp.argsort(~stacked, stable=True)

    def look(i: Int[Array, ""], found: tuple) -> tuple:
        opens, closes, opened, closed = found
        site = order[i]
        p_open, p_closed = around.following(shares[site]), around.following(-shares[site])
        return (
            opens.at[site].set(around.psi(p_open)),
            closes.at[site].set(around.psi(p_closed)),
            opened.at[site].set(p_open),
            closed.at[site].set(p_closed),
        )

    start = (opens, closes, shares, -shares)
    return jax.lax.fori_loop(0, jnp.sum(stacked), look, start)
