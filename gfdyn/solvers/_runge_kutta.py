"""One step of an explicit Runge–Kutta pair under fixed gates.

diffrax's tableaus and dense outputs; the stages are taken here, since they pass on what is
known at the sites: the multipliers of sliding gates, and what the last stage saw.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._by_layer import per_layer
from .._types import Mask, Scalar, Sites
from ..flows import AbstractFlow, State
from ..kinks import FieldEvaluation, GateState, Slots, evaluate_along, evaluate_field
from ._controller import held_while


class SmoothStep(eqx.Module):
    """A step under fixed gates: where it leads, and what is known there."""

    end: State
    error: State
    interpolation: Any
    evaluation: FieldEvaluation
    # In field evaluations
    cost: Scalar

    def at(self, time: Scalar) -> State:
        """The state `time` after the start, by dense output."""
        return self.interpolation.evaluate(time)


class FixedGates(eqx.Module):
    """The field of a flow under fixed gates.

    The multipliers of the sliding gates, of one `held` for each kink, are solved for at
    each stage, or, if not `solving`, follow `nu` + time · `nu_rate`. While `coasting`, the
    direction of θ is held.
    """

    flow: AbstractFlow
    gates: GateState
    held: Mask
    nu_rate: Sites
    solving: bool = eqx.field(static=True)
    coasting: Bool[Array, ""]
    tolerance: Scalar
    # The places of sliding sites, where dense algebra over them is to solve
    slots: Slots | None = None

    def evaluate(self, position: Any, guess: Sites) -> FieldEvaluation:
        """The field at a stage, from a guess of the multipliers."""
        if self.slots is not None:
            return evaluate_along(self.flow, position, self.gates, self.slots)
        return evaluate_field(
            self.flow,
            position,
            self.gates,
            self.held,
            guess,
            self.tolerance,
            solving=self.solving,
        )

    def velocity(self, evaluation: FieldEvaluation) -> State:
        """The velocity of a field evaluation, its direction held while coasting."""
        return held_while(self.coasting, self.flow, evaluation.velocity)


def explicit_step(
    method: dfx.AbstractERK,
    field: FixedGates,
    start: State,
    first: FieldEvaluation,
    size: Scalar,
) -> SmoothStep:
    """A step of the method from a state where the field is known."""
    tableau: Any = method.tableau
    stages, dtype = tableau.num_stages, size.dtype
    lower = np.zeros((stages - 1, stages))
    for i, row in enumerate(tableau.a_lower):
        lower[i, : len(row)] = row
    stage_times = jnp.asarray(np.asarray(tableau.c), dtype)

    def scaled(m: FieldEvaluation) -> State:
        return jax.tree.map(lambda v: size * v, field.velocity(m))

    def stage(
        carry: tuple[State, State, FieldEvaluation, Array], row: Any
    ) -> tuple[Any, None]:
        ks, _, last, cost = carry
        i, weights, time = row
        y = _combine(start, weights, ks)
        guess = last.nu
        if not field.solving:
            guess = per_layer(
                lambda n, rate: n + time * size * rate, first.nu, field.nu_rate
            )
        here = field.evaluate(y.position, guess)
        ks = jax.tree.map(lambda rows, k: rows.at[i].set(k), ks, scaled(here))
        return (ks, y, here, cost + here.cost), None

    ks = jax.tree.map(
        lambda k: jnp.zeros((stages, *k.shape), k.dtype).at[0].set(k), scaled(first)
    )
    rows = (jnp.arange(1, stages), jnp.asarray(lower, dtype), stage_times)
    nothing_yet = jnp.zeros_like(size)
    (ks, y, last, cost), _ = jax.lax.scan(stage, (ks, start, first, nothing_yet), rows)
    if tableau.ssal:
        end, evaluations = y, stages - 1
    else:
        end, evaluations = _combine(start, jnp.asarray(tableau.b_sol, dtype), ks), stages
        last = field.evaluate(end.position, last.nu)
    nothing = jax.tree.map(jnp.zeros_like, start)
    error = _combine(nothing, jnp.asarray(tableau.b_error, dtype), ks)
    interpolation = method.interpolation_cls(
        t0=jnp.zeros_like(size), t1=size, y0=start, y1=end, k=ks
    )
    return SmoothStep(end, error, interpolation, last, cost + evaluations)


def _combine(start: State, weights: Array, ks: State) -> State:
    """start + Σ_j weights_j k_j."""
    return jax.tree.map(lambda y, k: y + jnp.tensordot(weights, k, axes=1), start, ks)
