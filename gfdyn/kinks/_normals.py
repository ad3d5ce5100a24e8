"""The normals of kinks, and multipliers along them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from .._numerics import nonzero
from ..nets import AbstractNet
from ._sites import GateState, HeldGate, constant
from ._slots import Slots, by_block


# Values at sites at kinks, and at pairs of them
Row = Float[Array, " sites"]
Square = Float[Array, "sites sites"]
# ∂z/∂θ is rounding below this part of what it is with all gates open, in units of the
# precision: what only rounding moves has no kink.
_NO_NORMAL = 1e3


def gram_of(normals: Array, present: Array) -> Array:
    """⟨n_a, n_b⟩."""
    return by_block(lambda n, _: n @ normals.T, normals, present)


class Normals(eqx.Module):
    """∂z/∂θ of some sites, what arrives at others of what they pass, and the length below
    which a normal is rounding."""

    normals: Float[Array, "slots parameters"]
    passed: Float[Array, "slots slots"]
    rounding: Float[Array, " slots"]

    @property
    def lengths(self) -> Float[Array, " slots"]:
        """‖∂z/∂θ‖, 0 where that is rounding."""
        squares = jnp.sum(self.normals**2, axis=1)
        exists = squares > self.rounding**2
        return jnp.where(exists, jnp.sqrt(jnp.where(exists, squares, 1.0)), 0.0)


def normals_of(net: AbstractNet, x: Array, gates: GateState, slots: Slots) -> Normals:
    """The normals of the kinks of some sites under given gates."""

    def of_slot(sample: Array, unit: Array, present: Array) -> tuple[Array, Array]:
        on, frozen = ([m[sample][None] for m in part] for part in (gates.on, gates.frozen))
        row = x[sample][None]
        sizes = [m.shape[1] for m in gates.on]
        zeros = jnp.zeros(sum(sizes), x.dtype)
        bounds = np.cumsum([0, *sizes])

        def forward(net: AbstractNet, shift: Array) -> Array:
            held = [
                HeldGate(sigma, o, f, shift[None, a:b])
                for sigma, o, f, a, b in zip(
                    net.activations, on, frozen, bounds, bounds[1:], strict=False
                )
            ]
            return jnp.concatenate([z[0] for z in net.forward(row, held)[1]])

        chosen = jnp.where(present, jnp.zeros_like(zeros).at[unit].set(1.0), 0.0)
        _, pull = jax.vjp(lambda n: forward(n, zeros), net)
        _, above = jax.jvp(lambda s: forward(net, s), (zeros,), (chosen,))
        return ravel_pytree(pull(chosen)[0])[0], above

    normals, above = by_block(jax.vmap(of_slot), slots.sample, slots.unit, slots.present)
    together = slots.sample[:, None] == slots.sample[None, :]
    both = slots.present[:, None] & slots.present[None, :]
    passed = jnp.where(together & both, above[:, slots.unit].T, 0.0)
    open_norms = net.gradient_norms(x, tuple(jnp.ones(m.shape, x.dtype) for m in gates.on))
    rounding = _NO_NORMAL * jnp.finfo(x.dtype).eps * slots.read(open_norms)
    return Normals(normals, passed, constant(rounding))


def unit_normals(
    net: AbstractNet, x: Array, gates: GateState, slots: Slots
) -> tuple[Array, Array]:
    """The unit normals of kinks, 0 where there is none, and the lengths of ∂z/∂θ, or ∞."""
    found = normals_of(net, x, gates, slots)
    sizes = jnp.where(found.lengths > 0, found.lengths, jnp.inf)
    return found.normals / sizes[:, None], sizes


def parallel_angle(dtype: Any) -> float:
    """Normals at less than this angle, ∛ε, count as parallel: to tell such kinks apart
    would take multipliers that are rounding alone."""
    return float(jnp.finfo(dtype).eps) ** (1 / 3)


def weak_normals(gram: Square, rounding: Row, size: Array) -> Row:
    """By how much the length² of each normal may change and multipliers of a size move
    nothing beyond the rounding of rates by that, or it counts as parallel to what it was.
    """
    moved = rounding / jnp.where(size > 0, size, jnp.inf)
    return jnp.maximum(parallel_angle(gram.dtype) ** 2 * jnp.diagonal(gram), moved)


class Held(eqx.Module):
    """Sites held on their kinks, and the Cholesky factor of their Gram matrix."""

    gram: Float[Array, "slots slots"]
    held: Bool[Array, " slots"]
    factor: Float[Array, "slots slots"]

    def multipliers(self, given: Float[Array, "slots ..."]) -> Float[Array, "slots ..."]:
        """ν with G ν = given at the sites held, 0 at others; the smallest where their
        normals depend on each other."""
        found = self.damped(given)
        # Once more, for what damping has left.
        return found + self.damped(given - self.gram @ found)

    def damped(self, given: Float[Array, "slots ..."]) -> Float[Array, "slots ..."]:
        """(G + damping)⁻¹ given at the sites held, 0 at others."""
        wanted = jnp.where(self.held, given.T, 0.0).T
        return jax.scipy.linalg.cho_solve((self.factor, True), wanted)

    def spans(self, asked: Bool[Array, " slots"]) -> Bool[Array, " slots"]:
        """The sites asked about whose normals lie in the span of those of the sites held,
        up to the angle at which normals count as parallel."""
        own = jnp.diagonal(self.gram)
        return asked & (self.free(asked) <= parallel_angle(own.dtype) ** 2 * own)

    def free(self, asked: Bool[Array, " slots"]) -> Row:
        """The length² of what the sites held leave of the normals of those asked about."""
        wanted = jnp.where(asked[None, :], self.gram, 0.0)
        parts = self.multipliers(wanted)
        taken = jnp.sum(jnp.where(self.held[:, None], wanted * parts, 0.0), axis=0)
        return jnp.diagonal(self.gram) - taken


def holding(
    gram: Float[Array, "slots slots"],
    held: Bool[Array, " slots"],
    damping: Row | None = None,
) -> Held:
    """Some sites held; what moves the diagonal of their normals' Gram matrix by less than
    `damping` counts as none: by default, what parallel normals may differ by."""
    pair = held[:, None] & held[None, :]
    if damping is None:
        damping = parallel_angle(gram.dtype) ** 2 * nonzero(jnp.diagonal(gram))
    damped = jnp.where(pair, gram, 0.0) + jnp.diag(jnp.where(held, damping, 1.0))
    return Held(gram, held, jnp.linalg.cholesky(damped))
