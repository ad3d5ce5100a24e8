"""From near an escape direction onto it: the localized flow, followed until it rests."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..._types import Scalar
from ...diagnostics import (
    direction,
    kink_count,
    layer_norms,
    neuron_balance,
    numerical_rank,
)
from ...flows import EscapeFlow
from ...nets import MLP
from ...problem import Problem
from ...run import solve
from ...solvers import ExactKinks
from ...stopping import AbstractStop, Observation
from ._residual import clarke_residual


# At rest: |dρ/dτ| below this many rtol, in units of s.
_AT_REST = 10.0
# The end of the clock, in units of 1/s: steps run out before.
_HORIZON = 1e6
# What a neuron adds to the outputs, in units of rtol, that is left out at the end
_TRACE = 1e-3
# Tolerances to try in turn, in units of rtol: where one fails, which hangs on the order of
# events, a looser one may not, and leads to where rtol itself works.
_ATTEMPTS = ((1.0,), (10.0, 1.0), (100.0, 1.0), (1000.0, 1.0))


class Found(eqx.Module):
    """A direction that a start has led to, and what is known of it."""

    net: MLP
    outputs: Float[Array, "samples outputs"]
    speed: Scalar
    converged: Bool[Array, ""]
    residual: Scalar
    ranks: Int[Array, " layers"]
    layer_norms: Float[Array, " layers"]
    imbalance: Scalar
    kinks: Int[Array, " hidden"]


class AtRest(AbstractStop):
    """For a time of 1/|risk|, |dρ/dτ| has stayed below `tolerance` · |risk|.

    For the localized flow of an `EscapeFlow`, whose risk is −s: free of scale, and not met
    by a single short step at an event.
    """

    tolerance: Float[Array, ""] | float

    def init(self, dtype: Any) -> Scalar:
        """How long it has been quiet."""
        return jnp.zeros((), dtype)

    def update(self, memory: Scalar, seen: Observation) -> tuple[Scalar, Bool[Array, ""]]:
        """slope ≤ tolerance · |risk|, without a break for 1/|risk|."""
        speed = jnp.abs(seen.risk)
        quiet = seen.slope <= self.tolerance * speed
        memory = jnp.where(quiet, memory + seen.size, 0.0)
        return memory, memory * speed >= 1


def converge(problem: Problem, net: MLP, rtol: float, max_steps: int) -> Found:
    """Where the localized flow leads from this net, of speed s > 0.

    The speed never falls along the flow. A solve that ends slower than it began, or not at
    rest, has failed and is repeated with a looser tolerance from the faster of its ends;
    what then comes to rest is followed on as accurately as the others. Of 100 starts one or
    two need it at depth 3 and width 16, some ten at depth 4 and width 8. If all fail,
    `converged` is False.
    """

    def follow(net: MLP, rtol: float, horizon: float = _HORIZON) -> Found:
        limits = jnp.asarray([rtol, horizon], net.weights[0].dtype)
        return _follow(problem, net, limits, max_steps, kink_tolerance)

    # Kinks along which the flow slides are met to rounding; others nearby count as passed.
    precision = float(jnp.finfo(net.weights[0].dtype).eps)
    kink_tolerance = max(0.01 * rtol, 10 * precision)
    best = follow(net, rtol, horizon=0.0)
    for attempt in _ATTEMPTS:
        for looser in attempt:
            found = follow(best.net, looser * rtol)
            if not found.speed >= (1 - looser * rtol) * best.speed:
                break
            best = found
            if not found.converged:
                break
        else:
            return best
    return eqx.tree_at(lambda f: f.converged, best, jnp.asarray(False))


@eqx.filter_jit
def _follow(
    problem: Problem,
    net: MLP,
    limits: Float[Array, "2"],
    max_steps: int,
    kink_tolerance: float,
) -> Found:
    """Where the flow rests, or is after a time of horizon/s; limits: (rtol, horizon)."""
    rtol, horizon = limits[0], limits[1]
    flow = EscapeFlow(problem, localized=True)
    trajectory = solve(
        flow,
        net,
        ts=(horizon / -flow.risk(flow.start(net)))[None],
        solver=ExactKinks(rtol=rtol),
        stop=AtRest(_AT_REST * rtol),
        max_steps=max_steps,
        throw=False,
        derivatives="forward",
    )
    rho = direction(problem, _without_traces(trajectory.final_direction, _TRACE * rtol))
    gaps = [jnp.max(jnp.abs(gap), initial=0) for gap in neuron_balance(problem, rho)]
    return Found(
        net=rho,
        outputs=problem.outputs(rho),
        speed=-problem.localized_risk(rho),
        converged=trajectory.stop_index == 0,
        residual=clarke_residual(problem, rho, kink_tolerance),
        ranks=numerical_rank(problem, rho),
        layer_norms=layer_norms(problem, rho),
        imbalance=jnp.max(jnp.stack(gaps)) if gaps else jnp.zeros_like(rtol),
        kinks=kink_count(problem, rho),
    )


def _without_traces(net: Any, negligible: Scalar) -> MLP:
    """Neurons that add no more than this to the outputs, set to 0.

    What dies out does so exponentially. A trace of norm a adds a² to the outputs, but its
    own direction may be far from at rest: no kink of so little weight is followed.
    """
    weights = list(net.weights)
    for layer in range(len(weights) - 1):
        incoming = jnp.linalg.norm(weights[layer], axis=1)
        outgoing = jnp.linalg.norm(weights[layer + 1], axis=0)
        kept = incoming * outgoing > negligible
        weights[layer] = jnp.where(kept[:, None], weights[layer], 0)
        weights[layer + 1] = jnp.where(kept[None, :], weights[layer + 1], 0)
    return MLP.from_weights(weights, net.activations)
