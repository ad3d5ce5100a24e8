"""How near sites are to their kinks, and what of that is rounding."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._by_layer import per_layer
from .._types import Mask, Sites
from ..flows import AbstractFlow
from ..nets import AbstractNet, norm
from ._masks import any_of, either, without
from ._sites import GateState, linearise, standing, through_gates, values_of


# A site counts as dead where ‖∂z/∂θ‖ is this part of what it is with all gates open.
_DEAD = 0.1
# What counts as rounding of z, relative to the largest of its layer, in units of the
# precision.
_Z_ROUNDING = 500.0
# z counts as 0 but for rounding where parameters no further off than this power of the
# precision, relative to ‖θ‖, have z = 0: events leave several kinks that meet so near.
_AT_KINK = 3 / 4


def near_kinks(flow: AbstractFlow, position: Any, gates: GateState, z: Sites) -> Mask:
    """The sites at which z is 0 but for rounding, of samples that could reach them."""
    net, x = flow.point(position), flow.problem.data.x
    on = either(standing(gates, z), gates.sliding)
    norms = net.gradient_norms(x, values_of(net, on, x.dtype))
    near = _within_rounding(net, z, norms)
    reached = net.gradient_norms(x, values_of(net, either(on, near), x.dtype))
    return per_layer(lambda m, n: m & (n > 0), near, reached)


def _within_rounding(net: AbstractNet, z: Sites, norms: Sites) -> Mask:
    """The sites at which z is 0 but for rounding, given ‖∂z/∂θ‖."""
    reach = jnp.finfo(norms[0].dtype).eps ** _AT_KINK * norm(net)
    return tuple(
        (jnp.abs(zl) <= reach * n) & (not sigma.is_linear)
        for zl, n, sigma in zip(z, norms, net.activations, strict=True)
    )


def kink_sizes(
    flow: AbstractFlow,
    position: Any,
    z: Sites,
    signal: Sites,
    nu: Sites,
    gates: GateState,
    reach: Array,
    at_rest: bool = False,
) -> Sites:
    """How far the gradient jumps where each gate flips, ‖(1 − slope) c_a ∂z_a/∂θ‖, with
    sliding gates open.

    A sample that hardly any unit of some layer lets through has next to no z in the layers
    above, and lets no signal down. That changes at once where a unit opens: gates there
    that parameters moving by `reach` could then open count as on for the signal. So do, if
    `at_rest`, those that wait at z = 0 for a sliding one below to open.
    """
    net, x = flow.point(position), flow.problem.data.x
    on = either(standing(gates, z), gates.sliding)
    values = values_of(net, on, x.dtype)
    norms = net.gradient_norms(x, values)
    open_norms = net.gradient_norms(x, tuple(jnp.ones_like(v) for v in values))
    waits = _within_rounding(net, z, norms)
    revived = tuple(
        ~o & ((n < _DEAD * full) | (at_rest & w)) & (zl > -reach * full)
        for o, n, full, zl, w in zip(on, norms, open_norms, z, waits, strict=True)
    )

    def reviving() -> Sites:
        opened = GateState(
            either(gates.on, revived), gates.sliding, either(gates.frozen, revived)
        )
        at = linearise(net, x, opened)
        return at.pullback(flow.cotangent(position, at.outputs), nu)[1]

    signal = jax.lax.cond(any_of(revived), reviving, lambda: signal)
    return per_layer(lambda c, n: jnp.abs(c) * n, through_gates(net, signal), norms)


def rounding_of(z: Array) -> Array:
    """How far from 0 a pre-activation of a layer may be by rounding."""
    return _Z_ROUNDING * jnp.finfo(z.dtype).eps * jnp.max(jnp.abs(z))


def slack(
    z: Array, slides: Array, leeway: Array, off: Array | float = 0.0, part: float = 1.0
) -> Array:
    """How far beyond its kink a pre-activation of a layer may be and not count as beyond:
    by its rounding or, where others slide on its sample, by the part `leeway` of its unit's
    largest or by `off` (or a part of all that); or as far as those others are off theirs.

    Kinks of aligned neurons on a sample are all but one: what takes some off it takes all.
    """
    beside = jnp.any(slides, axis=1, keepdims=True)
    largest_of_unit = jnp.max(jnp.abs(z), axis=0, keepdims=True)
    leeway = jnp.maximum(leeway * largest_of_unit, off)
    allowed = jnp.maximum(rounding_of(z), jnp.where(beside, leeway, 0.0))
    return jnp.maximum(part * allowed, drift(z, slides))


def drift(z: Array, slides: Array) -> Array:
    """How far those that slide on a sample are off their kinks, at most."""
    return jnp.max(jnp.abs(z), axis=1, keepdims=True, where=slides, initial=0.0)


def sliding_along(gates: GateState, sharers: Mask, z: Sites, leeway: Array) -> GateState:
    """The gates with those that share a kink with a sliding one sliding, too.

    But for those not on it: where the unit below that lets a sample through is about to
    close, z is 0 of that sample alone.
    """

    def on_kink(shares: Array, slides: Array, zl: Array) -> Array:
        return shares & (jnp.abs(zl) <= slack(zl, slides, leeway))

    along = per_layer(on_kink, sharers, gates.sliding, z)
    along = without(along, gates.sliding)
    sliding = either(gates.sliding, along)
    return GateState(without(gates.on, along), sliding, either(gates.frozen, along))
