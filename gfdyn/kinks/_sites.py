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

from .._by_layer import per_layer
from .._types import Mask, Sites
from ..flows import AbstractFlow, State
from ..nets import AbstractNet, PiecewiseLinear
from ._masks import any_of, either, samples_of, without


class GateState(eqx.Module):
    """The side of each gate, and whether it is held there (frozen), or slides.

    A gate that slides is frozen at `off`; one that is not frozen is live: it follows the
    sign of its pre-activation, and `on` says nothing of it.
    """

    on: Mask
    sliding: Mask
    frozen: Mask


class HeldGate(eqx.Module):
    """z → value · z + shift, the value held fixed where the gate is frozen."""

    activation: PiecewiseLinear = eqx.field(static=True)
    on: Bool[Array, "samples width"]
    frozen: Bool[Array, "samples width"]
    shift: Float[Array, "samples width"]

    def __call__(self, z: Float[Array, "samples width"]) -> Float[Array, "samples width"]:
        """The gated pre-activation, shifted."""
        on = jnp.where(self.frozen, self.on, z > 0)
        value = jnp.where(on, 1.0, self.activation.slope).astype(z.dtype)
        return value * z + self.shift


class Linearisation(eqx.Module):
    """A net under given gates: outputs, pre-activations, and both ways through."""

    outputs: Array
    z: Sites
    # Pytrees, with what they hold on to as leaves
    _vjp: Callable[[tuple[Array, Sites]], tuple[AbstractNet, Sites]]
    _jvp: Callable[[AbstractNet], Sites]

    def pullback(self, outputs: Array, z: Sites) -> tuple[AbstractNet, Sites]:
        """From cotangents of the outputs and of z: the gradient in the parameters, and the
        signal c that arrives at each post-activation."""
        return self._vjp((outputs, z))

    def pullback_of_sites(self, z: Sites) -> tuple[AbstractNet, Sites]:
        """The same, from cotangents of z alone."""
        return self.pullback(jnp.zeros_like(self.outputs), z)

    def pushforward(self, change: AbstractNet) -> Sites:
        """The change of z with the parameters."""
        return self._jvp(change)


def live_gates(flow: AbstractFlow, position: Any) -> GateState:
    """The gates as the signs of the pre-activations have them, none frozen or sliding."""
    net = flow.point(position)
    z = net.preactivations(flow.problem.data.x)
    on = tuple(
        (zl > 0) | sigma.is_linear for zl, sigma in zip(z, net.activations, strict=True)
    )
    nowhere = tuple(jnp.zeros_like(o) for o in on)
    return GateState(on, nowhere, nowhere)


def linearise(net: AbstractNet, x: Array, gates: GateState) -> Linearisation:
    """The forward pass of samples under their gates; sliding ones stand at `off`."""

    def forward(net: AbstractNet, shifts: Sites) -> tuple[Array, Sites]:
        return net.forward(x, _held(net, gates, shifts))

    zeros = zeros_at(x, gates)
    (outputs, z), vjp = jax.vjp(forward, net, zeros)
    _, jvp = jax.linearize(lambda n: forward(n, zeros)[1], net)
    return Linearisation(outputs, z, vjp, jvp)


def awaiting(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    opening: Mask,
    parting: Mask,
    needed: Array,
) -> GateState:
    """The gates, if that is needed, with those set that wait for a neuron to open.

    Where a sample passes a layer through neurons at their kinks only, sliding or `opening`
    right now, z is 0 in the layers above, whatever the weights. Nothing crosses there; but
    the gates say what arrives at those neurons, and so whether they open. They are held
    where z goes as soon as they do, all together, each in proportion to how fast its z can
    move. So are sliding ones that are `parting` from the kinks of others as they open.
    """
    net, x = jax.lax.stop_gradient((flow.point(position), flow.problem.data.x))

    def look() -> GateState:
        z = preactivations(flow, position, gates)
        closed = GateState(without(gates.on, opening), gates.sliding, gates.frozen)
        norms = net.gradient_norms(x, values_of(net, standing(closed, z), x.dtype))
        asleep = per_layer(lambda n: n == 0, norms)
        wakes = samples_of(opening)[:, None]
        opens = per_layer(
            lambda o, slides: jnp.where(wakes, o, slides), opening, gates.sliding
        )
        follows = either(asleep, parting)
        held = _held(net, gates, zeros_at(x, gates))
        parts = zip(held, follows, opens, norms, strict=True)
        opened = net.forward(x, [_OpeningGate(*part) for part in parts])[1]
        waits = per_layer(lambda f, zl: f & (zl != 0), follows, opened)
        on = per_layer(lambda w, zl, o: jnp.where(w, zl > 0, o), waits, opened, gates.on)
        frozen = either(gates.frozen, waits)
        return GateState(on, without(gates.sliding, follows), frozen)

    at_kinks = any_of(gates.sliding) | any_of(opening)
    return jax.lax.cond(needed & at_kinks, look, lambda: gates)


class _OpeningGate(eqx.Module):
    """A held gate, but for those that open, which let their `opened` value through, and
    those that follow the sign of z."""

    held: HeldGate
    follows: Bool[Array, "samples width"]
    opens: Bool[Array, "samples width"]
    opened: Float[Array, "samples width"]

    def __call__(self, z: Float[Array, "samples width"]) -> Float[Array, "samples width"]:
        """The gated pre-activation once neurons have opened."""
        held = jnp.where(self.opens, self.opened, self.held(z))
        return jnp.where(self.follows, self.held.activation(z), held)


def preactivations(flow: AbstractFlow, position: Any, gates: GateState) -> Sites:
    """z of every site under the gates."""
    net = flow.point(position)
    x = flow.problem.data.x
    return net.forward(x, _held(net, gates, zeros_at(x, gates)))[1]


def z_rates(flow: AbstractFlow, position: Any, gates: GateState, velocity: State) -> Sites:
    """dz/dτ of every site under the gates."""
    moved = jax.tree.map(lambda p, v: v.astype(p.dtype), position, velocity.position)
    return jax.jvp(lambda p: preactivations(flow, p, gates), (position,), (moved,))[1]


def standing(gates: GateState, z: Sites) -> Mask:
    """The gates that are on, held there or live; sliding ones stand at `off`."""
    return per_layer(lambda f, o, zl: jnp.where(f, o, zl > 0), gates.frozen, gates.on, z)


def values_of(net: AbstractNet, on: Mask, dtype: Any) -> Sites:
    """The factor on z of each gate: 1 where it is on, the activation's slope elsewhere."""
    return tuple(
        jnp.where(o, 1.0, sigma.slope).astype(dtype)
        for sigma, o in zip(net.activations, on, strict=True)
    )


def through_gates(net: AbstractNet, signal: Sites) -> Sites:
    """What each gate that opens adds to the gradient along ∇z: (1 − slope) c."""
    return tuple(
        (1 - sigma.slope) * c for sigma, c in zip(net.activations, signal, strict=True)
    )


def flips(net: AbstractNet, gates: GateState, signal: Sites) -> Sites:
    """What a flip of each gate adds to the gradient, along ∇z: ±(1 − slope) c."""
    opened = through_gates(net, signal)
    return per_layer(lambda on, c: jnp.where(on, -c, c), gates.on, opened)


def flipped(gates: GateState, crossed: Mask) -> GateState:
    """The gates with those of the mask on their other side."""
    on = per_layer(jnp.logical_xor, gates.on, crossed)
    return GateState(on, gates.sliding, gates.frozen)


def captured(gates: GateState, caught: Mask) -> GateState:
    """The gates with those of the mask sliding."""
    on = without(gates.on, caught)
    return GateState(on, either(gates.sliding, caught), gates.frozen)


def returning(gates: GateState, crossed: Mask, values: Sites) -> Mask:
    """The crossed sites at which z, or its rate, beyond the kink has the sign that it had
    before it; `gates` are those beyond."""

    def back(c: Array, on: Array, value: Array) -> Array:
        return c & jnp.where(on, value < 0, value > 0)

    return per_layer(back, crossed, gates.on, values)


def _held(net: AbstractNet, gates: GateState, shifts: Sites) -> list[HeldGate]:
    parts = zip(net.activations, gates.on, gates.frozen, shifts, strict=True)
    return [HeldGate(*part) for part in parts]


def zeros_at(x: Array, gates: GateState) -> Sites:
    """0 at every site."""
    return tuple(jnp.zeros(on.shape, x.dtype) for on in gates.on)


def constant(tree: Any) -> Any:
    """The same, without derivative."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.tree.map(jax.lax.stop_gradient, arrays), rest)


def nowhere(gates: GateState) -> Mask:
    """No site."""
    return per_layer(jnp.zeros_like, gates.on)
