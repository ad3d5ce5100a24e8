"""Kinks that coincide wherever θ is: sites whose pre-activations are proportional.

Samples on one line through the origin share those of the first layer of a network without
biases; positive multiples, those of all layers; equal patches of images, those of a
convolution. So it is tried out, at some random parameters.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Shaped

from .._by_layer import in_one_row
from ._activation import PiecewiseLinear
from ._base import AbstractNet


# At so many parameters z are compared, up to rounding in units of the precision.
_PLACES = 6
_ROUNDING = 1000.0
# Sites are sorted by one number that those with a common kink share; by chance, up to
# rounding, so many others may come in between.
_NEIGHBOURS = 4


class Coincidence(eqx.Module):
    """For each site of all hidden layers, in one row, the first one with the same kink, and
    r with z = r · z_first; r is 0 where z is, wherever θ is: such a site has no kink."""

    first: Int[Array, " sites"]
    ratio: Float[Array, " sites"]

    @property
    def is_first(self) -> Bool[Array, " sites"]:
        """Whether each site is the first one with its kink."""
        return self.first == jnp.arange(len(self.first))

    def of_first(self, row: Shaped[Array, "*row"]) -> Shaped[Array, "*row"]:
        """The values at the first sites with the same kinks."""
        return row[self.first]

    def summed(self, row: Shaped[Array, "*row"]) -> Shaped[Array, "*row"]:
        """Sums over those with the same kink, at the first one; 0 elsewhere."""
        return jnp.zeros_like(row).at[self.first].add(row)

    def largest_of(
        self, among: Bool[Array, " sites"], sizes: Float[Array, " sites"]
    ) -> Bool[Array, " sites"]:
        """Of those with the same kink the largest one, the first if several are."""
        sizes = jnp.where(among, sizes, -1.0)
        largest = jnp.full_like(sizes, -1.0).at[self.first].max(sizes)
        own = jnp.arange(len(sizes))
        place = jnp.where(among & (sizes == self.of_first(largest)), own, len(sizes))
        foremost = jnp.full_like(own, len(sizes)).at[self.first].min(place)
        return own == self.of_first(foremost)


def coinciding_kinks(net: AbstractNet, x: Float[Array, "samples in"]) -> Coincidence:
    """Which sites of a net share a kink; those of a linear layer have none.

    Args:
        x: inputs, one a row.
    """
    net, x = jax.lax.stop_gradient((net, x))
    flat, unravel = ravel_pytree(net)
    gates = [_Probe(sigma) for sigma in net.activations]

    def probe(key: Array) -> Array:
        # Drawn by the program, of which it would be most if it were a constant.
        place = jax.random.uniform(key, flat.shape, flat.dtype, -1.0, 1.0)
        z = unravel(place).forward(x, gates)[1]
        kinked = [
            jnp.zeros_like(zl) if sigma.is_linear else zl
            for sigma, zl in zip(net.activations, z, strict=True)
        ]
        return in_one_row(kinked)

    keys = jax.random.split(jax.random.key(0, impl="unsafe_rbg"), _PLACES)
    return _proportional(jax.lax.map(probe, keys).T)


class _Probe(eqx.Module):
    """A gate that lets every sample through, and keeps deep networks in range."""

    activation: PiecewiseLinear

    def __call__(self, z: Array) -> Array:
        # With slope ½ and no ReLU, that no sample dies
        bent = z if self.activation.is_linear else jnp.where(z > 0, z, 0.5 * z)
        largest = jnp.max(jnp.abs(z))
        return bent / jnp.where(largest > 0, largest, 1.0)


def _proportional(rows: Float[Array, "sites places"]) -> Coincidence:
    """Which rows are multiples of each other, to rounding."""
    length = jnp.linalg.norm(rows, axis=1)
    known = length > 0
    units = rows / jnp.where(known, length, 1.0)[:, None]
    weights = jnp.cos(jnp.arange(rows.shape[1], dtype=rows.dtype))
    order = jnp.argsort(jnp.abs(units @ weights))
    own = jnp.arange(len(rows))
    tolerance = _ROUNDING * jnp.finfo(rows.dtype).eps
    sorted_units, sorted_known = units[order], known[order]

    # Each is linked to the nearest one before it in this order that it is a multiple of.
    link = own
    for shift in range(1, _NEIGHBOURS + 1):
        before = jnp.roll(sorted_units, shift, axis=0)
        sign = jnp.where(jnp.sum(sorted_units * before, axis=1) > 0, 1.0, -1.0)
        gap = jnp.max(jnp.abs(sorted_units - sign.astype(rows.dtype)[:, None] * before), 1)
        same = (gap <= tolerance) & sorted_known & (own >= shift)
        link = jnp.where(same & (link == own), own - shift, link)
    rounds = max(1, math.ceil(math.log2(len(rows))))
    root = jax.lax.fori_loop(0, rounds, lambda _, link: link[link], link)

    lowest = jnp.full_like(own, len(rows)).at[root].min(order)
    first = jnp.zeros_like(own).at[order].set(lowest[root])
    squares = jnp.where(known, length**2, 1.0)[first]
    return Coincidence(first, jnp.sum(rows * rows[first], axis=1) / squares)
