"""Ψ of the directions in which sliding sites are let go: by kinks, and one by one."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ._normals import Row, Square
from ._tangent import TangentNetwork


def signals_under(t: TangentNetwork, through: Square, carried: Row) -> tuple[Row, Row]:
    """What all gates carry of what each does, and the signals with that; `through` is what
    reaches each site of the rates of all."""
    mu = through.T @ carried
    return mu, t.signal + t.passed.T @ mu


class LettingGo(eqx.Module):
    """The directions in which sliding sites may be let go.

    Attributes:
        t: the sites at kinks.
        through: what reaches each site of the rates of all, through those that are on.
        rising: what each adds to the rates of those above it as it passes its own.
        base: what the gates of those carry.
        shares: the rate of each site as another moves off its kink, 0 where they do not
            share it.
        together: the sites that slide.
        hangs: those that have no normal: what moves them is let through by others.
        rests: those that are off at their kinks.
    """

    t: TangentNetwork
    through: Square
    rising: Square
    base: Row
    shares: Square
    together: Bool[Array, " sites"]
    hangs: Bool[Array, " sites"]
    rests: Bool[Array, " sites"]

    @property
    def leader(self) -> Bool[Array, " sites"]:
        """One sliding site of each kink."""
        together = self.together
        first = jnp.argmax((self.shares != 0) & together[None, :], axis=1)
        return together & (first == jnp.arange(len(together)))

    @property
    def below(self) -> Bool[Array, " sites"]:
        """The sites of kinks that are below others that slide."""
        return self._of_kinks(jnp.any(self._above, axis=0))

    @property
    def stacked(self) -> Bool[Array, " sites"]:
        """The sites of kinks that are below or above others that slide, or below such as
        hang on several of them."""
        above, carried = self._above, self._over_sliding(self.hangs)
        by_several = jnp.sum(carried, axis=1, keepdims=True) > 1
        return self._of_kinks(jnp.any(above | above.T | carried & by_several, axis=0))

    @property
    def _above(self) -> Bool[Array, "sites sites"]:
        """Which sliding sites are above which."""
        return self._over_sliding(self.together)

    def _over_sliding(self, upper: Bool[Array, " sites"]) -> Bool[Array, "sites sites"]:
        """Which of some sites are above which sliding ones."""
        return upper[:, None] & self.together[None, :] & (self.rising != 0)

    def _of_kinks(self, sites: Bool[Array, " sites"]) -> Bool[Array, " sites"]:
        """The sliding sites that share the kinks of some."""
        return self.together & jnp.any((self.shares != 0) & sites[None, :], axis=1)

    def under(self, nu: Row) -> tuple[Row, Array, Array]:
        """The signals under multipliers, in which directions sites are let go under them,
        and Ψ of each, ∞ where there is none: kinks to both sides, then single sites to both
        sides."""
        mu, signal = signals_under(self.t, self.through, self.base + nu)
        added, shares = self.opening(signal), self.shares
        psi = [
            jnp.maximum(shares, 0.0) @ added - shares @ mu,
            jnp.maximum(-shares, 0.0) @ added + shares @ mu,
            added - mu,
            mu,
        ]
        which = self.directions(added)
        return signal, which, jnp.where(which, jnp.concatenate(psi), jnp.inf)

    def change_of_psi(self, which: Bool[Array, " directions"]) -> Array:
        """How Ψ of each direction changes with the multipliers."""
        shares, through, rising = self.shares, self.through.T, self.rising.T
        moved = shares @ through
        change = [
            jnp.maximum(shares, 0.0) @ rising - moved,
            jnp.maximum(-shares, 0.0) @ rising + moved,
            rising - through,
            through,
        ]
        return jnp.where(which[:, None], jnp.concatenate(change), 0.0)

    def opening(self, signal: Row) -> Row:
        """What opening each site adds to Ψ, with what rests at kinks above it: what has no
        normal follows the push, the rest does where that descends."""
        follows = self.rests & (self.hangs | (signal < 0))
        itself = jnp.eye(len(signal), dtype=signal.dtype)

        def added() -> Row:
            above = followed(self.rising)
            for _ in range(self.t.layers - 2):
                above = followed(self.rising @ (above + itself))
            return signal + signal @ above

        def followed(above: Square) -> Square:
            return jnp.where(follows[:, None], jnp.maximum(above, 0.0), 0.0)

        return jax.lax.cond(jnp.any(follows), added, lambda: signal)

    def directions(self, added: Row) -> Bool[Array, " directions"]:
        """In which directions sites may be let go: kinks to both sides, and to both sides
        single sites, of kinks that some below would push apart.

        With c ≥ 0 a site may move to both sides. With c < 0 it does to that to which its
        kink is taken as one that shares it, pushed, is kept where it is.
        """
        push = jnp.sum(jnp.where(self.together[None, :], self.rising, 0.0), axis=1)
        push = jnp.where(self.together, push, 0.0)
        itself = jnp.eye(len(added), dtype=bool)
        others = jnp.where(itself, 0.0, jnp.sign(self.shares))
        taken = push - others.T @ push
        pushed = self._of_kinks(push != 0)
        shared = pushed & (jnp.sum(self.shares != 0, axis=1) > 1)
        opens, closes = (added >= 0) | (taken > 0), (added >= 0) | (taken < 0)
        kinks = self.leader
        return jnp.concatenate([kinks, kinks, shared & opens, shared & closes])
