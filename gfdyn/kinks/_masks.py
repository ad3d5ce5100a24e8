"""Masks of sites, layer by layer."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._by_layer import per_layer
from .._types import Mask, Sites


def masked(mask: Mask, sites: Sites) -> Sites:
    """The values at the sites of the mask, 0 elsewhere."""
    return per_layer(lambda m, s: jnp.where(m, s, 0.0), mask, sites)


def both(a: Mask, b: Mask) -> Mask:
    """The sites in both masks."""
    return per_layer(jnp.logical_and, a, b)


def either(a: Mask, b: Mask) -> Mask:
    """The sites in at least one of the masks."""
    return per_layer(jnp.logical_or, a, b)


def without(a: Mask, b: Mask) -> Mask:
    """The sites in the first mask and not in the second."""
    return per_layer(lambda p, q: p & ~q, a, b)


def any_of(mask: Mask) -> Bool[Array, ""]:
    """Whether any site is in the mask."""
    return jnp.any(jnp.stack([jnp.any(m) for m in mask]))


def samples_of(mask: Mask) -> Bool[Array, " samples"]:
    """The samples of which any site is in the mask."""
    return jnp.any(jnp.stack([jnp.any(m, axis=1) for m in mask]), axis=0)


def count(mask: Mask) -> Array:
    """The number of sites in the mask."""
    sums = [jnp.sum(m, dtype=jnp.int32) for m in mask]
    return jnp.sum(jnp.stack(sums), dtype=jnp.int32)


def smallest(mask: Mask, sites: Sites) -> Float[Array, ""]:
    """The smallest value over the sites of the mask, ∞ if there is none."""
    lows = [jnp.min(s, where=m, initial=jnp.inf) for m, s in zip(mask, sites, strict=True)]
    return jnp.min(jnp.stack(lows))
