"""Places for sites at kinks, in a fixed number, and the states of sites."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8

from .._by_layer import in_layers, in_one_row, per_layer
from .._types import Mask
from ._sites import GateState


# The states of a site
OFF, ON, SLIDING = np.int8(0), np.int8(1), np.int8(2)
# No state
NONE = np.int8(-1)
States = tuple[Int8[Array, "samples _"], ...]
# So many sites at kinks are looked at together by default: in networks of up to so many.
_PLACES = ((1024, 64), (4096, 128))
# Places are worked on in blocks, those of which all are empty not at all.
BLOCK = 16


class Slots(eqx.Module):
    """A fixed number of places for sites, counted in one row through the layers."""

    site: Int[Array, " slots"]
    present: Bool[Array, " slots"]
    sample: Int[Array, " slots"]
    # Of the sample's units in all hidden layers
    unit: Int[Array, " slots"]
    # Whether there were more sites than places
    overflow: Bool[Array, ""]

    def read(self, sites: tuple[Array, ...]) -> Array:
        """The values at these sites, those of empty places arbitrary."""
        return in_one_row(sites)[self.site]

    def write(self, values: Array, sites: tuple[Array, ...]) -> tuple[Array, ...]:
        """Values over all sites with those of these replaced."""
        row = in_one_row(sites)
        where = jnp.where(self.present, self.site, len(row))
        return in_layers(row.at[where].set(values, mode="drop"), sites)

    def mask(self, chosen: Bool[Array, " slots"], like: Mask) -> Mask:
        """The chosen ones of these sites."""
        nowhere = tuple(jnp.zeros_like(m) for m in like)
        return self.write(chosen, nowhere)


def states_of(on: Mask, sliding: Mask) -> States:
    """The state of each site, from which gates are on and which slide."""
    return per_layer(
        lambda o, slides: jnp.where(slides, SLIDING, jnp.where(o, ON, OFF)), on, sliding
    )


def no_alternative(gates: GateState) -> States:
    """That no site could go on in another state: the flow is unique."""
    return tuple(jnp.full(on.shape, NONE) for on in gates.on)


def places_among(sites: int, wanted: int | None = None) -> int:
    """How many places there are in a network of so many sites: as many as wanted, or by its
    size if None; in whole blocks, and not more than there are sites."""
    if wanted is None:
        wanted = next((n for most, n in _PLACES if sites <= most), _PLACES[-1][1])
    return BLOCK * -(-min(sites, wanted) // BLOCK)


def slots_of(mask: Mask, places: int) -> Slots:
    """So many places for the sites of a mask."""
    row = in_one_row(mask)
    (site,) = jnp.nonzero(row, size=places, fill_value=len(row))
    present = site < len(row)
    site = jnp.minimum(site, len(row) - 1)
    before, of_sample, of_unit = 0, [], []
    for m in mask:
        sample, unit = np.divmod(np.arange(m.size), max(m.shape[1], 1))
        of_sample.append(sample)
        of_unit.append(before + unit)
        before += m.shape[1]
    return Slots(
        site,
        present,
        jnp.asarray(np.concatenate(of_sample))[site],
        jnp.asarray(np.concatenate(of_unit))[site],
        jnp.sum(row) > places,
    )


def by_block(function: Callable[..., Any], *rows: Array) -> Any:
    """A function of some places, the last row whether they are taken, block by block; 0
    where none is."""
    # Traced once, for its shapes and for its values
    function = jax.jit(function)
    blocks = [r.reshape(-1, BLOCK, *r.shape[1:]) for r in rows]
    shapes = jax.eval_shape(function, *(b[0] for b in blocks))
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def block(_: None, parts: tuple[Array, ...]) -> tuple[None, Any]:
        taken = jnp.any(parts[-1])
        return None, jax.lax.cond(taken, lambda: function(*parts), lambda: empty)

    _, found = jax.lax.scan(block, None, tuple(blocks))
    return jax.tree.map(lambda f: f.reshape(-1, *f.shape[2:]), found)
