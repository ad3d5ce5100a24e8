"""The network blown up at a point: what is left of it are the sites at their kinks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from .._types import Scalar
from ..flows import AbstractFlow
from ..nets import norm
from ._normals import Row, Square, gram_of, normals_of, weak_normals
from ._sites import GateState, constant, linearise, through_gates
from ._slots import Slots


# What cancels as θ comes to rest leaves rounding, in units of the precision.
_CANCELLED = 64.0


class TangentNetwork(eqx.Module):
    """The sites at kinks, each in units in which its normal has length about 1.

    Attributes:
        gram: of the normals, times how fast θ moves for a unit of gradient, all gates at
            kinks closed.
        passed: W, what arrives at a site of what another passes once it is open.
        signal: what opening each gate adds to the gradient along its normal.
        rate: dz/dτ of each.
        present: which places are taken.
        terms: what `rate` is a sum of, ∑ᵢ |∂z/∂θᵢ| |dθᵢ/dτ|: less where θ moves fast
            elsewhere than where z depends on it, as in units much smaller than others.
        pulls: the same of the gradient alone, without what the flow takes away from it.
        astray: how far `rate` may be from what it is on the kink itself, as θ is off it.
        gain: how fast θ moves for a unit of gradient.
        layers: the number of hidden layers.
        has_normal: the sites that the parameters alone move, all gates at kinks closed.
        scale: how fast each site would move if nothing cancelled in its rate, and all sites
            below were open.
        rounding: rates that are rounding: of what they are sums of, or of what cancels in
            that, or as sites are only near their kinks; or that of sites below.
    """

    gram: Float[Array, "slots slots"]
    passed: Float[Array, "slots slots"]
    signal: Float[Array, " slots"]
    rate: Float[Array, " slots"]
    present: Bool[Array, " slots"]
    terms: Row
    pulls: Row
    astray: Row
    gain: Scalar
    layers: int = eqx.field(static=True)
    # What follows from these, once for all that ask
    has_normal: Bool[Array, " slots"]
    scale: Row
    rounding: Row

    def __init__(
        self,
        gram: Square,
        passed: Square,
        signal: Row,
        rate: Row,
        present: Bool[Array, " slots"],
        terms: Row,
        pulls: Row,
        astray: Row,
        gain: Scalar,
        layers: int,
    ):
        """The sites, and what follows from that."""
        self.gram, self.passed, self.signal, self.rate = gram, passed, signal, rate
        self.present, self.gain, self.layers = present, gain, layers
        self.terms, self.pulls, self.astray = terms, pulls, astray
        eps = jnp.finfo(terms.dtype).eps
        self.has_normal = jnp.diagonal(gram) > 0
        alone = terms + jnp.abs(gram) @ jnp.abs(signal)
        self.scale = _with_passed(alone, jnp.abs(passed), layers)
        rounding = jnp.sqrt(eps) * alone + _CANCELLED * eps * pulls + astray
        self.rounding = _with_passed(rounding, jnp.abs(passed), layers)

    def first(self, places: int) -> "TangentNetwork":
        """The same of the first places alone."""
        return jax.tree.map(lambda a: a[(slice(places),) * a.ndim], self)

    @property
    def largest_signal(self) -> Scalar:
        """The largest |signal|, about as large as multipliers in range may be."""
        return jnp.max(jnp.where(self.present, jnp.abs(self.signal), 0.0))

    def weak(self, gram: Square, size: Row) -> Row:
        """By how much the length² of each normal may change and multipliers of a size, or
        in range, move nothing beyond rounding by that (`weak_normals`)."""
        return weak_normals(gram, self.rounding, jnp.maximum(self.largest_signal, size))


def _with_passed(alone: Row, passed: Square, layers: int) -> Row:
    """What sites have alone, and what others pass them of theirs, layer by layer."""
    total = alone
    for _ in range(layers - 1):
        total = alone + passed @ total
    return total


# Traced once for all that call it
@eqx.filter_jit
def tangent_network(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    slots: Slots,
    certain: Bool[Array, " slots"],
    least: Scalar,
) -> TangentNetwork:
    """The network at a position, blown up at certain sites and at those others that could
    add as much as `least` to the velocity, with all that they carry; other gates as given.
    """
    flow, position, gates = constant((flow, position, gates))
    net, x = flow.point(position), flow.problem.data.x
    chosen = slots.mask(slots.present, gates.on)
    closed = GateState(
        tuple(o & ~c for o, c in zip(gates.on, chosen, strict=True)),
        gates.sliding,
        tuple(f | c for f, c in zip(gates.frozen, chosen, strict=True)),
    )
    at = linearise(net, x, closed)
    nothing = tuple(jnp.zeros_like(z) for z in at.z)
    gradient, signal = at.pullback(flow.cotangent(position, at.outputs), nothing)
    velocity = flow.assemble(position, at.outputs, gradient).position
    moves, _ = ravel_pytree(flow.point(velocity))
    pull, _ = ravel_pytree(gradient)
    found = normals_of(net, x, closed, slots)
    factor = slots.read(
        tuple(
            jnp.full_like(z, 1 - s.slope)
            for z, s in zip(at.z, net.activations, strict=True)
        )
    )
    passed = found.passed * factor[None, :]
    squares = found.lengths**2
    layers = len(gates.on)
    length = jnp.sqrt(_with_passed(squares, passed**2, layers))
    gain = flow.gain(gradient)
    exists = slots.present & (length > found.rounding)
    size = jnp.where(exists, length, 1.0)
    passed = jnp.where(exists[:, None], passed * size[None, :] / size[:, None], 0.0)
    jump = jnp.where(exists, slots.read(through_gates(net, signal)) * size, 0.0)
    most = _with_passed(jnp.abs(jump), jnp.abs(passed).T, layers)
    present = exists & (certain | (gain * most > least))
    has_normal = present & (squares > 0)
    normals = jnp.where(has_normal[:, None], found.normals / size[:, None], 0.0)
    pair = present[:, None] & present[None, :]
    # How fast θ turns, as an angle in time, if nothing cancels in the gradient.
    turning = gain * norm(gradient) / norm(net)
    return TangentNetwork(
        gram=gain * gram_of(normals, present),
        passed=jnp.where(pair, passed, 0.0),
        signal=jnp.where(present, jump, 0.0),
        rate=normals @ moves,
        present=present,
        terms=jnp.abs(normals) @ jnp.abs(moves),
        pulls=gain * jnp.abs(normals) @ jnp.abs(pull),
        astray=2 * turning * jnp.where(present, jnp.abs(slots.read(at.z)) / size, 0.0),
        gain=gain,
        layers=layers,
    )
