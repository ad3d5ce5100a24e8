"""Where gradient flow leads under given gates, seen at the sites of a net."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from ._types import Gates
from .nets import AbstractNet, FrozenGate, Invariant
from .problem import Problem


class _Shifted(eqx.Module):
    """z → gate · z + shift, by which ∂R/∂a is found."""

    gate: FrozenGate
    shift: Float[Array, "samples width"]

    def __call__(self, z: Array) -> Array:
        return self.gate(z) + self.shift


class SiteMotion(eqx.Module):
    """Where gradient flow leads under given gates, and what passes its sites.

    Attributes:
        velocity: of θ.
        z: the pre-activations.
        signal: ∂R/∂a, what arrives at each activation.
        gates: their values.
    """

    velocity: AbstractNet
    z: Gates
    signal: Gates
    gates: Gates


def motion(problem: Problem, net: AbstractNet, gates: Gates | None) -> SiteMotion:
    """The motion under these gates; under the activations' own if they are None."""
    x = problem.data.x
    frozen = net.frozen_gates(x)
    if gates is not None:
        frozen = tuple(FrozenGate(value) for value in gates)
    values = tuple(gate.value for gate in frozen)

    def forward(net: AbstractNet, shifts: Gates) -> tuple[Array, Gates]:
        return net.forward(x, list(map(_Shifted, frozen, shifts)))

    shifts = tuple(jnp.zeros_like(value) for value in values)
    outputs, pullback, z = jax.vjp(forward, net, shifts, has_aux=True)
    gradient, signal = pullback(problem.cost_gradient(outputs))
    return SiteMotion(jax.tree.map(jnp.negative, gradient), z, signal, values)


def at_units(invariant: Invariant, sites: Any) -> Shaped[Array, "rows units"]:
    """The values at the units of an invariant, a row for each sample and position."""
    values = sites[invariant.layer - 1]
    if invariant.units is not None:
        values = values[:, jnp.asarray(invariant.units)]
    return values.reshape(-1, len(invariant.incoming))


def equal_columns(rows: Shaped[Array, "rows units"]) -> Bool[Array, "units units"]:
    """Whether two columns agree in every row; in memory for some arrays like `rows`."""
    return jax.lax.map(lambda column: jnp.all(rows == column[:, None], axis=0), rows.T)
