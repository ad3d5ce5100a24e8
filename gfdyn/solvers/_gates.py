"""Gates held fixed during a step: which are on, and which slide along their kink.

A site is a (layer, unit, sample). Arrays over sites are tuples with one (samples, units)
array for each hidden layer.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..flows import AbstractFlow
from ..nets import AbstractNet, FrozenGate, PiecewiseLinear


Sites = tuple[Float[Array, "samples _"], ...]
Mask = tuple[Bool[Array, "samples _"], ...]


class GateState(eqx.Module):
    """The side of each gate, and whether it slides (its side is then `off`)."""

    on: Mask
    sliding: Mask


class ShiftedGate(eqx.Module):
    """z → value · z + shift: a frozen gate whose output can be perturbed."""

    value: Float[Array, "samples width"]
    shift: Float[Array, "samples width"]

    def __call__(self, z: Float[Array, "samples width"]) -> Float[Array, "samples width"]:
        """The gated pre-activation, shifted."""
        return self.value * z + self.shift


class Linearisation(eqx.Module):
    """A flow at a point under fixed gates: outputs, pre-activations, and both ways through.

    `pullback(outputs' cotangent, z's cotangent)` gives the gradient in the parameters and
    the signal c that arrives at each post-activation; `pushforward` the change of z.
    """

    outputs: Array
    z: Sites
    pullback: Callable[[Array, Sites], tuple[AbstractNet, Sites]]
    pushforward: Callable[[AbstractNet], Sites]


def live_gates(flow: AbstractFlow, position: Any) -> GateState:
    """The gates as the signs of the pre-activations have them, none sliding."""
    net = flow.point(position)
    z = net.preactivations(flow.problem.data.x)
    on = tuple(
        (zl > 0) | sigma.is_linear for zl, sigma in zip(z, net.activations, strict=True)
    )
    return GateState(on, tuple(jnp.zeros_like(o) for o in on))


def linearise(flow: AbstractFlow, position: Any, gates: GateState) -> Linearisation:
    """The forward pass at a position under fixed gates; sliding ones stand at `off`."""
    net, x = flow.point(position), flow.problem.data.x
    values = tuple(
        _value(sigma, on, x.dtype)
        for sigma, on in zip(net.activations, gates.on, strict=True)
    )

    def forward(net: AbstractNet, shifts: Sites) -> tuple[Array, Sites]:
        frozen = [ShiftedGate(v, s) for v, s in zip(values, shifts, strict=True)]
        return net.forward(x, frozen)

    zeros = tuple(jnp.zeros_like(v) for v in values)
    (outputs, z), vjp = jax.vjp(forward, net, zeros)
    _, jvp = jax.linearize(lambda n: forward(n, zeros)[1], net)
    return Linearisation(outputs, z, lambda d, nu: vjp((d, nu)), jvp)


def preactivations(flow: AbstractFlow, position: Any, gates: GateState) -> Sites:
    """z of every site under fixed gates."""
    net, x = flow.point(position), flow.problem.data.x
    frozen = [
        FrozenGate(_value(sigma, on, x.dtype))
        for sigma, on in zip(net.activations, gates.on, strict=True)
    ]
    return net.forward(x, frozen)[1]


def kinked(net: AbstractNet) -> tuple[bool, ...]:
    """Which hidden layers have a kink at all."""
    return tuple(not sigma.is_linear for sigma in net.activations)


def shared_kinks(x: Float[Array, "samples dim"]) -> Float[Array, "samples samples"]:
    """r_ij with x_i = r_ij x_j for samples on one line through the origin, 0 for others.

    A unit of the first layer has one kink for all samples on such a line: the gates of
    parallel ones (r > 0) are equal, of antipodal ones (r < 0) λ and 1 − λ.
    """
    gram = x @ x.T
    squares = jnp.diag(gram)
    known = squares > 0
    safe = jnp.where(known, squares, 1.0)
    cosine = gram / jnp.sqrt(safe[:, None] * safe[None, :])
    collinear = jnp.abs(cosine) > 1 - 8 * jnp.finfo(x.dtype).eps
    collinear &= known[:, None] & known[None, :]
    own = jnp.eye(x.shape[0], dtype=bool)
    return jnp.where(own, 1.0, jnp.where(collinear, gram / safe[None, :], 0.0))


def one_of_each(mask: Mask, shared: Float[Array, "samples samples"]) -> Mask:
    """The mask with one site kept of those that share a kink."""
    if not mask:
        return mask
    earlier = jnp.tril(shared != 0, k=-1)
    first = mask[0] & ~jnp.any(earlier, axis=1)[:, None]
    return (first, *mask[1:])


def with_sharers(mask: Mask, shared: Float[Array, "samples samples"]) -> Mask:
    """The mask, and in the first layer all sites that share a kink with one in it."""
    if not mask:
        return mask
    first = (shared.T != 0).astype(shared.dtype) @ mask[0].astype(shared.dtype) > 0
    return (first, *mask[1:])


def masked(mask: Mask, sites: Sites) -> Sites:
    """The values at the sites of the mask, 0 elsewhere."""
    return tuple(jnp.where(m, s, 0.0) for m, s in zip(mask, sites, strict=True))


def any_of(mask: Mask) -> Bool[Array, ""]:
    """Whether any site is in the mask."""
    return jnp.any(jnp.stack([jnp.any(m) for m in mask]))


def count(mask: Mask) -> Array:
    """The number of sites in the mask."""
    sums = [jnp.sum(m, dtype=jnp.int32) for m in mask]
    return jnp.sum(jnp.stack(sums), dtype=jnp.int32)


def smallest(mask: Mask, sites: Sites) -> Float[Array, ""]:
    """The smallest value over the sites of the mask, ∞ if there is none."""
    lows = [jnp.min(s, where=m, initial=jnp.inf) for m, s in zip(mask, sites, strict=True)]
    return jnp.min(jnp.stack(lows))


def _value(sigma: PiecewiseLinear, on: Array, dtype: Any) -> Array:
    return jnp.where(on, 1.0, sigma.slope).astype(dtype)
