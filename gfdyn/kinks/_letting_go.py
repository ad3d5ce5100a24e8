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
        base: what the gates of those carry.
        shares: the rate of each site as another moves off its kink, 0 where they do not
            share it.
        together: the sites that slide.
        hangs: those that have no normal: what moves them is let through by others.
        rests: those that are off at their kinks.
    """

    t: TangentNetwork
    through: Square
    base: Row
    shares: Square
    together: Bool[Array, " sites"]
    hangs: Bool[Array, " sites"]
    rests: Bool[Array, " sites"]

    @property
    def rising(self) -> Square:
        """What a site passes adds this to the rates of those above it."""
        return self.through @ self.t.passed

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
        """The signals under multipliers, Ψ of each direction, and how that changes with
        them."""
        mu, signal = signals_under(self.t, self.through, self.base + nu)
        psi, opened, moved = self.directions(signal, mu)
        return signal, psi, opened @ self.rising.T - moved @ self.through.T

    def opening(self, signal: Row) -> Row:
        """What opening each site adds to Ψ, with what rests at kinks above it: what has no
        normal follows the push, the rest does where that descends."""
        follows = self.rests & (self.hangs | (signal < 0))
        itself = jnp.eye(len(signal), dtype=signal.dtype)

        def added() -> Row:
            above = jnp.zeros_like(itself)
            for _ in range(self.t.layers - 1):
                above = self.rising @ (above + itself)
                above = jnp.where(follows[:, None], jnp.maximum(above, 0.0), 0.0)
            return signal + signal @ above

        return jax.lax.cond(jnp.any(follows), added, lambda: signal)

    def directions(self, signal: Row, mu: Row) -> tuple[Array, Array, Array]:
        """Ψ of each direction in which sites are let go, ∞ if there is none, and which
        sites open in it and move: kinks to both sides, then single sites to both sides, of
        kinks that some below would push apart.

        With c ≥ 0 a site may move to both sides. With c < 0 it does to that to which its
        kink is taken as one that shares it, pushed, is kept where it is.
        """
        added, unit = self.opening(signal), jnp.eye(len(mu), dtype=mu.dtype)
        push = jnp.sum(jnp.where(self.together[None, :], self.rising, 0.0), axis=1)
        push = jnp.where(self.together, push, 0.0)
        others = jnp.where(unit > 0, 0.0, jnp.sign(self.shares))
        taken = push - others.T @ push
        pushed = self._of_kinks(push != 0)
        shared = pushed & (jnp.sum(self.shares != 0, axis=1) > 1)
        which = jnp.concatenate(
            [
                self.leader,
                self.leader,
                shared & ((added >= 0) | (taken > 0)),
                shared & ((added >= 0) | (taken < 0)),
            ]
        )
        moved = jnp.concatenate([self.shares, -self.shares, unit, -unit])
        moved = jnp.where(which[:, None], moved, 0.0)
        opened = jnp.maximum(moved, 0.0)
        psi = jnp.where(which, opened @ added - moved @ mu, jnp.inf)
        return psi, opened, moved
