"""Whether stability limits the steps, and how far it lets other methods go."""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._types import Count, Scalar
from ..flows import State
from ..kinks import constant
from ..nets import norm
from ._chebyshev import longest_stable, stages_for


# Tsit5 is stable up to size · radius = 3.3: near that, stability limits a step, and not
# accuracy. A Chebyshev step costs as much for each unit of time where size · radius is 1.6.
_NEAR_LIMIT, _WORTHWHILE = 2.0, 1.6
# So many steps in a row are to be limited by stability before the method changes; twice as
# many each time that it has changed back, so that vain trials cost little in all.
_IN_A_ROW = 20
# The spectral radius is estimated anew after so many steps, to a part of itself, in so many
# iterations at most; from below, so that it is given a margin.
_ESTIMATE_EVERY, _PRECISION, _MOST_ITERATIONS, _MARGIN = 25, 0.01, 100, 1.1


class Stiffness(eqx.Module):
    """Which of two methods takes the next step, Tsit5 or that of Chebyshev."""

    # How many steps in a row stability has limited, and with how many the method changes
    limited: Count
    patience: Count
    # The spectral radius of the Jacobian, a vector near its eigenvector, and how many steps
    # ago it was estimated
    radius_found: Scalar
    eigenvector: Any
    age: Count

    @property
    def stiff(self) -> Bool[Array, ""]:
        """Whether the next step is one of Chebyshev."""
        return self.limited >= self.patience

    @property
    def radius(self) -> Scalar:
        """The spectral radius as it was last estimated, with a margin."""
        return _MARGIN * self.radius_found

    @property
    def shortest(self) -> Scalar:
        """The shortest step that is worth its while by Chebyshev."""
        return _WORTHWHILE / jnp.where(self.radius > 0, self.radius, 1.0)

    def within_stability(self, size: Scalar) -> Scalar:
        """A size that the next step may have."""
        longest = jnp.minimum(size, longest_stable(self.radius))
        return jnp.where(self.stiff, longest, size)

    def stages(self, size: Scalar) -> Count:
        """How many stages a step by Chebyshev takes.

        Under `jax.vmap` lanes of Tsit5 come there too, and go through no stage.
        """
        return jnp.where(self.stiff, stages_for(size, self.radius), 1)

    def up_to_date(
        self, velocity: Callable[[Any], State], position: Any
    ) -> tuple["Stiffness", Count]:
        """With the spectral radius of the velocity, if it is old and needed; and in how
        many field evaluations."""
        old = self.stiff & (self.age >= _ESTIMATE_EVERY)
        none = jnp.asarray(0, jnp.int32)
        found, count = jax.lax.cond(
            old, lambda: self._estimated(velocity, position, old), lambda: (self, none)
        )
        return constant(found), count

    def _estimated(
        self, velocity: Callable[[Any], State], position: Any, needed: Bool[Array, ""]
    ) -> tuple["Stiffness", Count]:
        """By power iteration on differences; in no iteration where it is not needed, as in
        some lanes under `jax.vmap`."""
        here = constant(position)
        base = velocity(here).position
        fraction = jnp.sqrt(jnp.finfo(self.radius_found.dtype).eps)
        distance = fraction * jnp.maximum(norm(here), fraction)

        def image(direction: Any) -> Any:
            beside = jax.tree.map(lambda p, d: p + distance * d, here, direction)
            moved = velocity(beside).position
            return jax.tree.map(lambda a, b: (a - b) / distance, moved, base)

        def iterate(carry: Any) -> Any:
            _, radius, direction, count = carry
            new = image(direction)
            return radius, norm(new), _unit(new), count + 1

        def unfinished(carry: Any) -> Bool[Array, ""]:
            before, radius, _, count = carry
            close = jnp.abs(radius - before) <= _PRECISION * radius
            return needed & (count < _MOST_ITERATIONS) & ~(close & (count > 1))

        known = norm(self.eigenvector) > 0
        start = jax.tree.map(
            lambda a, b: jnp.where(known, a, b), self.eigenvector, _anywhere(here)
        )
        zero, none = jnp.zeros_like(self.radius_found), jnp.asarray(0, jnp.int32)
        carry = constant((zero, zero, _unit(start), none))
        _, radius, direction, count = jax.lax.while_loop(unfinished, iterate, carry)
        found = Stiffness(self.limited, self.patience, radius, direction, none)
        return found, count

    def after_tsit5(
        self, seen: Scalar, accepted: Bool[Array, ""], went: Scalar
    ) -> "Stiffness":
        """After a step of Tsit5 that went so far, and saw this spectral radius."""
        near = accepted & (went * seen > _NEAR_LIMIT)
        limited = jnp.where(near, self.limited + 1, jnp.where(accepted, 0, self.limited))
        # The spectral radius is estimated anew when the method has changed.
        age = jnp.full_like(self.age, _ESTIMATE_EVERY)
        return eqx.tree_at(lambda s: (s.limited, s.age), self, (limited, age))

    def after_chebyshev(self, accepted: Bool[Array, ""], next_size: Scalar) -> "Stiffness":
        """After a step of Chebyshev, of which the next one would have this size."""
        pays = ~accepted | (constant(next_size) > self.shortest)
        return eqx.tree_at(
            lambda s: (s.limited, s.patience, s.age),
            self,
            (
                jnp.where(pays, self.limited, 0),
                jnp.where(pays, self.patience, 2 * self.patience),
                # What was not accepted may be so for a radius that has grown.
                jnp.where(accepted, self.age + 1, _ESTIMATE_EVERY),
            ),
        )


def not_stiff(position: Any, like: Scalar) -> Stiffness:
    """At the start of a solve."""
    none, patience = (jnp.asarray(n, jnp.int32) for n in (0, _IN_A_ROW))
    still = jax.tree.map(jnp.zeros_like, position)
    return Stiffness(none, patience, jnp.zeros_like(like), still, none)


def radius_seen(stages: Any, size: Scalar) -> Scalar:
    """‖f₇ − f₆‖/‖y₇ − y₆‖ of the last two stages of Tsit5, both at the end of the step.

    Near the spectral radius where stability limits the step (Hairer and Wanner, Solving
    Ordinary Differential Equations II, section IV.2).
    """
    tableau: Any = dfx.Tsit5.tableau
    last, before = (np.asarray(tableau.a_lower[i]) for i in (-1, -2))
    weights = last - np.append(before, 0.0)

    def between(k: Array) -> Array:
        return jnp.tensordot(jnp.asarray(weights, k.dtype), k[:-1], axes=1)

    apart = norm(jax.tree.map(between, stages))
    change = norm(jax.tree.map(lambda k: k[-1] - k[-2], stages))
    seen = jnp.where(apart > 0, change / jnp.where(apart > 0, apart * size, 1.0), 0.0)
    return constant(seen)


def _unit(tree: Any) -> Any:
    length = norm(tree)
    factor = 1 / jnp.where(length > 0, length, 1.0)
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def _anywhere(tree: Any) -> Any:
    """A fixed vector with a part in all directions."""

    def wave(leaf: Array) -> Array:
        numbers = jnp.arange(1, leaf.size + 1, dtype=leaf.dtype)
        return jnp.sin(numbers * (1 + numbers / leaf.size)).reshape(leaf.shape)

    return jax.tree.map(wave, tree)
