"""The velocity along kinks that attract from both sides (Filippov's sliding modes).

While a set S of sites slides, z_S = 0 is a constraint: the gradient with those gates off is
projected, g = g₀ + J_Sᵀν with J_S J_Sᵀ ν = −J_S g₀. The multiplier is what the gates
contribute, ν = (λ − slope) c, with c the signal that arrives at the site, so that it gives
the value λ of each gate between its slope and 1.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from .._by_layer import per_layer
from .._numerics import nonzero
from .._types import Mask, Scalar, Sites
from ..flows import AbstractFlow, State
from ..nets import AbstractNet, norm
from ._masks import any_of, masked, without
from ._multipliers import Multipliers, Rows, multipliers, on_few_rows, on_rows
from ._normals import gram_of, holding, parallel_angle, unit_normals, weak_normals
from ._openness import Openness
from ._shared import SharedKinks
from ._sites import (
    GateState,
    Linearisation,
    constant,
    linearise,
    preactivations,
    standing,
    through_gates,
    values_of,
    zeros_at,
)
from ._slots import Slots


# Relative to the diagonal. On the way to the kinks, directions in which they differ by
# less than its root are left alone; and so is a position that is off its kinks in these
# directions for the most part, as no step nears them there.
_DAMPING, _MOST_LEFT = 1e-6, 0.5
# Positions put back on a kink are this much on one side of it, in units of the precision
# and of the norms of the parameters and of ∂z/∂θ.
_Z_ROUNDING = 8.0


class FieldEvaluation(eqx.Module):
    """The velocity at a position under given gates, and what is known at the sites."""

    velocity: State
    gradient: AbstractNet
    outputs: Array
    z: Sites
    # What arrives at each post-activation, and the multipliers of the sliding sites
    signal: Sites
    nu: Sites
    # What the multipliers cost, in field evaluations, and whether they were found
    cost: Scalar
    converged: Bool[Array, ""]

    def openness(self, net: AbstractNet, shared: SharedKinks, sliding: Mask) -> Openness:
        """Where each sliding gate stands."""
        jumps = through_gates(net, self.signal)
        return shared.openness(sliding, self.nu, jumps, self.z)


# Traced once for all that call it
@eqx.filter_jit
def evaluate_field(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    held: Mask,
    guess: Sites,
    tolerance: Scalar,
    shared: SharedKinks | None = None,
    solving: bool = True,
) -> FieldEvaluation:
    """The velocity with the frozen gates fixed and the sliding ones held on their kinks, by
    one of those that share each, `held`.

    The multipliers are found from a guess, such that they are right up to an error of the
    gradient of norm `tolerance`; or the guess is taken as it is, if not `solving`. The
    signal is what arrives with them at those held, and with `shared` at all sharers.
    """
    net = flow.point(position)
    at = linearise(net, flow.problem.data.x, gates)
    cotangent = flow.cotangent(position, at.outputs)
    guess = masked(held, guess)
    gradient, signal = at.pullback(cotangent, guess)
    rounding = jnp.sqrt(jnp.finfo(at.outputs.dtype).eps) * norm(constant(gradient))

    def solved(rows: Rows) -> Multipliers:
        def wanted(on: Linearisation) -> Sites:
            return tuple(-z for z in on.pushforward(gradient))

        parallel = parallel_angle(at.outputs.dtype)
        change = multipliers(
            flow, net, at, gates, held, rows, wanted, tolerance, parallel**2
        )
        nu = per_layer(jnp.add, guess, change.nu)
        moved = jax.tree.map(jnp.add, gradient, change.step)
        arriving = per_layer(jnp.add, signal, change.signal)
        found = nu, moved, arriving
        return eqx.tree_at(lambda m: (m.nu, m.step, m.signal), change, found)

    def given() -> Multipliers:
        none = jnp.zeros_like(tolerance)
        return Multipliers(guess, gradient, signal, none, none, none)

    found = given()
    if solving:
        found = jax.lax.cond(
            any_of(gates.sliding), lambda: on_few_rows(held, solved), given
        )
    signal = found.signal
    if shared is not None:
        signal = _through_sharers(net, at, cotangent, gates.sliding, shared, held, found)
    return FieldEvaluation(
        velocity=flow.assemble(position, at.outputs, found.step),
        gradient=found.step,
        outputs=at.outputs,
        z=at.z,
        signal=signal,
        nu=found.nu,
        cost=found.cost,
        # Rates of z are known to rounding of what they are sums of.
        converged=found.unsolved <= rounding,
    )


# Traced once for all that call it
@eqx.filter_jit
def evaluate_along(
    flow: AbstractFlow, position: Any, gates: GateState, slots: Slots
) -> FieldEvaluation:
    """The same for few sliding sites, by dense algebra over them."""
    net, x = flow.point(position), flow.problem.data.x
    at = linearise(net, x, gates)
    cotangent = flow.cotangent(position, at.outputs)
    nothing = zeros_at(x, gates)
    gradient, signal = at.pullback(cotangent, nothing)

    def held() -> tuple[AbstractNet, Sites, Sites]:
        moves = flow.assemble(position, at.outputs, gradient).position
        moves, _ = ravel_pytree(flow.point(moves))
        normals, sizes = unit_normals(net, x, gates, slots)
        gram = flow.gain(gradient) * gram_of(normals, slots.present)
        jumps = jnp.abs(slots.read(through_gates(net, signal)))
        jumps = jnp.where(jnp.isfinite(sizes), jumps * sizes, 0.0)
        terms = jnp.abs(normals) @ jnp.abs(moves) + jnp.abs(gram) @ jumps
        rounding = jnp.sqrt(jnp.finfo(x.dtype).eps) * terms
        # Dead units have no normal; below gates that are off sites move, but get no signal.
        given, own = normals @ moves, nonzero(jnp.diagonal(gram))
        size = jnp.max(jnp.maximum(jumps, jnp.abs(given) / own))
        weak = constant(nonzero(weak_normals(gram, rounding, size)))
        nu = holding(gram, slots.present, weak).multipliers(given)
        nu = slots.write(nu / sizes, nothing)
        return *at.pullback(cotangent, nu), nu

    gradient, signal, nu = jax.lax.cond(
        any_of(gates.sliding), held, lambda: (gradient, signal, nothing)
    )
    return FieldEvaluation(
        velocity=flow.assemble(position, at.outputs, gradient),
        gradient=gradient,
        outputs=at.outputs,
        z=at.z,
        signal=signal,
        nu=nu,
        cost=jnp.zeros((), x.dtype),
        converged=jnp.asarray(True),
    )


def back_along(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    slots: Slots,
    opens: Bool[Array, " slots"],
) -> Any:
    """The nearest position at which z = 0 at some sites, to first order; by rounding on the
    open side of those that open, on the closed side of others, so that gates that do not
    matter at first go on as was decided."""
    net, x = flow.point(position), flow.problem.data.x

    def project() -> AbstractNet:
        normals, sizes = unit_normals(net, x, gates, slots)
        rounding = _Z_ROUNDING * jnp.finfo(x.dtype).eps * norm(constant(net))
        z = slots.read(preactivations(flow, position, gates)) / sizes
        side = jnp.where(opens, rounding, -rounding)
        gram = gram_of(normals, slots.present)
        held = holding(gram, slots.present, jnp.full_like(z, _DAMPING))
        nu, aside = held.multipliers(jnp.stack([z, side], axis=1)).T
        off, rest = (jnp.where(slots.present, d, 0.0) for d in (z, z - gram @ nu))
        # But for rounding
        nears = rest @ rest <= _MOST_LEFT**2 * (off @ off) + rounding**2
        flat, unravel = ravel_pytree(net)
        return unravel(flat - jnp.where(nears, nu - aside, 0.0) @ normals)

    moved = jax.lax.cond(jnp.any(slots.present), project, lambda: net)
    return flow.with_point(position, moved)


def _through_sharers(
    net: AbstractNet,
    at: Linearisation,
    cotangent: Array,
    sliding: Mask,
    shared: SharedKinks,
    held: Mask,
    found: Multipliers,
) -> Sites:
    """The signal, with each multiplier shared out among the gates of its kink.

    It was found for one of them. θ moves as with all, but what arrives below depends on
    the samples that it goes through. In a layer that needs what arrives there from above.
    """

    def below(_: Array, signal: Sites) -> Sites:
        jumps = through_gates(net, signal)
        openness = shared.openness(sliding, found.nu, jumps, at.z).value
        shares = masked(sliding, per_layer(jnp.multiply, openness, jumps))
        return at.pullback(cotangent, shares)[1]

    def spread() -> Sites:
        return jax.lax.fori_loop(0, len(sliding) - 1, below, found.signal)

    others = without(sliding, held)[1:]
    if not others:
        return found.signal
    return jax.lax.cond(any_of(others), spread, lambda: found.signal)


def gate_values(
    flow: AbstractFlow, position: Any, gates: GateState, shared: SharedKinks
) -> Sites:
    """The value of each gate, from the activation's slope to 1."""
    net, x = flow.point(position), flow.problem.data.x
    exactly = jnp.zeros((), x.dtype)
    shared = shared.under(net, gates, preactivations(flow, position, gates))
    held, nothing = shared.representatives(gates.sliding), zeros_at(x, gates)
    here = evaluate_field(flow, position, gates, held, nothing, exactly, shared)
    openness = here.openness(net, shared, gates.sliding).value
    values = values_of(net, standing(gates, here.z), x.dtype)
    return tuple(
        jnp.where(slides, sigma.slope + (1 - sigma.slope) * jnp.clip(o, 0.0, 1.0), value)
        for sigma, slides, o, value in zip(
            net.activations, gates.sliding, openness, values, strict=True
        )
    )


def back_to_kinks(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    shared: SharedKinks,
    tolerance: Scalar,
    let_go: Mask,
) -> tuple[Any, Scalar]:
    """The nearest position at which the sliding sites have z = 0, to first order, up to an
    error of norm `tolerance`; and what it cost, in field evaluations.

    What is let go is on the side of its gate, by rounding, so that gates that do not matter
    at first go on as was decided. Kinks of aligned neurons may be all but parallel: to be
    on all of them exactly would move θ by far more than z, which damping forbids. Where it
    leaves most of the way, none is gone.
    """
    net, x = flow.point(position), flow.problem.data.x
    held = shared.leading(gates.sliding)

    def sides(z: Sites) -> Sites:
        rounding = _Z_ROUNDING * jnp.finfo(x.dtype).eps * norm(net)
        sizes = net.gradient_norms(x, values_of(net, standing(gates, z), x.dtype))
        side = per_layer(lambda on, n: rounding * jnp.where(on, n, -n), gates.on, sizes)
        return constant(masked(let_go, side))

    def project(rows: Rows) -> tuple[AbstractNet, Scalar]:
        at = linearise(net, x, gates)
        aside = jax.lax.cond(any_of(let_go), sides, lambda z: zeros_at(x, gates), at.z)

        def beyond(on: Linearisation) -> Sites:
            return per_layer(jnp.subtract, on.z, on_rows(aside, rows))

        change = multipliers(flow, net, at, gates, held, rows, beyond, tolerance, _DAMPING)
        nears = change.left <= _MOST_LEFT
        led = jax.tree.map(lambda w, s: jnp.where(nears, w - s, w), net, change.step)
        return led, change.cost

    moved, cost = jax.lax.cond(
        any_of(gates.sliding),
        lambda: on_few_rows(held, project),
        lambda: (net, jnp.zeros_like(tolerance)),
    )
    return flow.with_point(position, moved), cost
