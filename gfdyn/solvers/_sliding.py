"""The velocity along kinks that attract from both sides (Filippov's sliding modes).

While a set S of sites slides, z_S = 0 is a constraint: the gradient with those gates off is
projected, g = g₀ + J_Sᵀν with J_S J_Sᵀ ν = −J_S g₀. The multiplier is what the gates
contribute, ν = (λ − slope) c, with c the signal that arrives at the site, so that it gives
the value λ of each gate between its slope and 1. Matrix-free: J_S and J_Sᵀ are one JVP and
one VJP.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..flows import AbstractFlow, State
from ..nets import AbstractNet, in_layers, in_one_row
from ._gates import (
    GateState,
    Linearisation,
    Mask,
    Sites,
    any_of,
    linearise,
    masked,
    nonzero,
    per_layer,
    preactivations,
    standing,
    values_of,
    without,
    zeros_at,
)
from ._lines import Lines


Scalar = Float[Array, ""]


def constant(tree: Any) -> Any:
    """The same, without derivative."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.tree.map(jax.lax.stop_gradient, arrays), rest)


class Motion(eqx.Module):
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

    def openness(self, net: AbstractNet, lines: Lines, sliding: Mask) -> Sites:
        """The place of each sliding gate between off (0) and on (1)."""
        jumps = _jumps_of(net, self.signal)
        return lines.openness(sliding, self.nu, jumps, self.z)


def motion(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    held: Mask,
    guess: Sites,
    tolerance: Scalar,
    lines: Lines | None = None,
    solving: bool = True,
) -> Motion:
    """The velocity with the frozen gates fixed and the sliding ones held on their kinks, by
    one of those that share each, `held`.

    The multipliers are found from a guess, such that they are right up to an error of the
    gradient of norm `tolerance`; or the guess is taken as it is, if not `solving`. The
    signal is what arrives with them at those held, and with `lines` at all sharers.
    """
    net = flow.point(position)
    at = linearise(net, flow.problem.data.x, gates)
    cotangent = flow.cotangent(position, at.outputs)
    guess = masked(held, guess)
    gradient, signal = at.pullback(cotangent, guess)

    def solved(rows: Rows) -> _Solved:
        def wanted(on: Linearisation) -> Sites:
            return tuple(-z for z in on.pushforward(gradient))

        parallel = float(jnp.finfo(at.outputs.dtype).eps) ** _PARALLEL_POWER
        change = _solve_normal(
            flow, net, at, gates, held, rows, wanted, tolerance, parallel**2
        )
        nu = per_layer(jnp.add, guess, change.nu)
        moved = jax.tree.map(jnp.add, gradient, change.step)
        arriving = per_layer(jnp.add, signal, change.signal)
        return _Solved(nu, moved, arriving, change.cost, change.converged)

    def given() -> _Solved:
        return _Solved(
            guess, gradient, signal, jnp.zeros_like(tolerance), jnp.asarray(True)
        )

    found = given()
    if solving:
        found = jax.lax.cond(
            any_of(gates.sliding), lambda: on_few_rows(held, solved), given
        )
    signal = found.signal
    if lines is not None:
        signal = _through_sharers(net, at, cotangent, gates.sliding, lines, held, found)
    return Motion(
        velocity=flow.assemble(position, at.outputs, found.step),
        gradient=found.step,
        outputs=at.outputs,
        z=at.z,
        signal=signal,
        nu=found.nu,
        cost=found.cost,
        converged=found.converged,
    )


def _through_sharers(
    net: AbstractNet,
    at: Linearisation,
    cotangent: Array,
    sliding: Mask,
    lines: Lines,
    held: Mask,
    found: "_Solved",
) -> Sites:
    """The signal, with each multiplier shared out among the gates of its kink.

    It was found for one of them. θ moves as with all, but what arrives below depends on
    the samples that it goes through. In a layer that needs what arrives there from above.
    """

    def below(_: Array, signal: Sites) -> Sites:
        jumps = _jumps_of(net, signal)
        openness = lines.openness(sliding, found.nu, jumps, at.z)
        shares = masked(sliding, per_layer(jnp.multiply, openness, jumps))
        return at.pullback(cotangent, shares)[1]

    def shared() -> Sites:
        return jax.lax.fori_loop(0, len(sliding) - 1, below, found.signal)

    others = without(sliding, held)[1:]
    if not others:
        return found.signal
    return jax.lax.cond(any_of(others), shared, lambda: found.signal)


def _jumps_of(net: AbstractNet, signal: Sites) -> Sites:
    """What each gate that opens adds to the gradient along ∇z."""
    return tuple(
        (1 - sigma.slope) * c for sigma, c in zip(net.activations, signal, strict=True)
    )


def gate_values(flow: AbstractFlow, position: Any, gates: GateState, lines: Lines) -> Sites:
    """The value of each gate, from the activation's slope to 1."""
    net, x = flow.point(position), flow.problem.data.x
    exactly = jnp.zeros((), x.dtype)
    lines = lines.under(net, gates, preactivations(flow, position, gates))
    held, nothing = lines.one_of_each(gates.sliding), zeros_at(x, gates)
    here = motion(flow, position, gates, held, nothing, exactly, lines)
    openness = here.openness(net, lines, gates.sliding)
    values = values_of(net, standing(gates, here.z), x.dtype)
    return tuple(
        jnp.where(slides, sigma.slope + (1 - sigma.slope) * jnp.clip(o, 0.0, 1.0), value)
        for sigma, slides, o, value in zip(
            net.activations, gates.sliding, openness, values, strict=True
        )
    )


def z_rates(flow: AbstractFlow, position: Any, gates: GateState, velocity: State) -> Sites:
    """dz/dτ of every site under the gates."""
    moved = jax.tree.map(lambda p, v: v.astype(p.dtype), position, velocity.position)
    return jax.jvp(lambda p: preactivations(flow, p, gates), (position,), (moved,))[1]


def back_to_kinks(
    flow: AbstractFlow, position: Any, gates: GateState, lines: Lines, tolerance: Scalar
) -> tuple[Any, Scalar]:
    """The nearest position at which the sliding sites have z = 0, to first order, up to an
    error of norm `tolerance`; and what it cost, in field evaluations.

    Kinks of aligned neurons may be all but parallel: to be on all of them exactly would
    move the parameters by far more than z, which damping forbids.
    """
    net = flow.point(position)
    held = lines.leading(gates.sliding)

    def project(rows: Rows) -> tuple[AbstractNet, Scalar]:
        at = linearise(net, flow.problem.data.x, gates)
        change = _solve_normal(
            flow, net, at, gates, held, rows, lambda on: on.z, tolerance, _DAMPING
        )
        return jax.tree.map(jnp.subtract, net, change.step), change.cost

    moved, cost = jax.lax.cond(
        any_of(gates.sliding),
        lambda: on_few_rows(held, project),
        lambda: (net, jnp.zeros_like(tolerance)),
    )
    return flow.with_point(position, moved), cost


# In units of the precision, relative to the right-hand side.
_CG_RESIDUAL = 20.0
_CG_STEPS = 200
# Relative to the diagonal. On the way to the kinks, directions in which they differ by
# less than its root are left alone.
_DAMPING = 1e-6
# Velocities along kinks: those that differ by less than this power of the precision are
# parallel. To hold z at 0 on all of them would take multipliers that are rounding alone.
_PARALLEL_POWER = 1 / 3
# Samples of which some gate slides are treated apart if they are few: this part of all.
_FEW = 1 / 8
_FEWEST = 32


class _Solved(eqx.Module):
    nu: Sites
    # Jᵀν, and the signal that it sends
    step: AbstractNet
    signal: Sites
    cost: Scalar
    converged: Bool[Array, ""]


# Values at the sites of all layers, one after the other
Row = Float[Array, " sites"]
# Which samples to work on, N for none; all of them if None
Rows = Int[Array, " rows"] | None


def on_few_rows(held: Mask, work: Callable[[Rows], Any]) -> Any:
    """`work(rows)` on the samples of which some gate slides, where they are few."""
    samples = held[0].shape[0]
    few = max(_FEWEST, int(_FEW * samples))
    if samples < 2 * few:
        return work(None)
    involved = jnp.any(jnp.stack([jnp.any(h, axis=1) for h in held]), axis=0)

    def on_some() -> Any:
        return work(jnp.nonzero(involved, size=few, fill_value=samples)[0])

    return jax.lax.cond(jnp.sum(involved) <= few, on_some, lambda: work(None))


def _solve_normal(
    flow: AbstractFlow,
    net: AbstractNet,
    at: Linearisation,
    gates: GateState,
    held: Mask,
    rows: Rows,
    wanted: Callable[[Linearisation], Sites],
    error: Scalar,
    damping: float,
) -> _Solved:
    """ν with (J_S J_Sᵀ + damping D) ν = wanted, D about the diagonal of J_S J_Sᵀ, such that
    J_Sᵀν is right up to an error of this norm; `at` is the net on all samples.
    """
    x = flow.problem.data.x
    samples = len(x)
    if rows is not None:
        x, gates, held = jax.tree.map(
            lambda a: a.at[rows].get(mode="fill", fill_value=0), (x, gates, held)
        )
        at = linearise(net, x, gates)
    right = masked(held, wanted(at))
    fixed = {"at": constant(at), "gates": gates, "held": held, "error": constant(error)}
    row, products, converged = _multipliers(
        net, x, in_one_row(right), **fixed, damping=damping
    )
    nu = masked(held, in_layers(row, right))
    step, signal = at.pullback_of_sites(nu)
    cost = (products.astype(error.dtype) + 2) * (len(x) / samples)
    if rows is not None:
        nu, signal = jax.tree.map(
            lambda a: (
                jnp.zeros((samples, *a.shape[1:]), a.dtype).at[rows].set(a, mode="drop")
            ),
            (nu, signal),
        )
    return _Solved(nu, step, signal, cost, converged)


@eqx.filter_custom_jvp
def _multipliers(
    net: AbstractNet,
    x: Array,
    right: Row,
    *,
    at: Linearisation,
    gates: GateState,
    held: Mask,
    error: Scalar,
    damping: float,
) -> tuple[Row, Array, Array]:
    """ν as above, from the right-hand side at the sites held; the products it took; whether
    they were found."""
    normal, scales = _normal_equations(net, x, at, gates, held, damping)
    return _conjugate_gradients(normal, right, scales, error)


@_multipliers.def_jvp
def _multipliers_jvp(
    primals: Any,
    tangents: Any,
    *,
    at: Linearisation,
    gates: GateState,
    held: Mask,
    error: Scalar,
    damping: float,
) -> Any:
    """A dν = db − dA ν, solved to rounding."""
    net, x, right = primals
    found = _multipliers(
        net, x, right, at=at, gates=gates, held=held, error=error, damping=damping
    )
    normal, scales = _normal_equations(net, x, at, gates, held, damping)

    def rest(net: AbstractNet, x: Array, right: Row) -> Row:
        near = linearise(net, x, gates)
        there, _ = _normal_equations(net, x, near, gates, held, damping)
        return right - there(found[0])

    def exactly(matvec: Callable[[Row], Row], b: Row) -> Row:
        return _conjugate_gradients(matvec, b, scales, jnp.zeros_like(error))[0]

    _, change = eqx.filter_jvp(rest, primals, tangents)
    change = jnp.zeros_like(found[0]) if change is None else change
    change = jax.lax.custom_linear_solve(normal, change, exactly, symmetric=True)
    return found, (change, None, None)


def _normal_equations(
    net: AbstractNet,
    x: Array,
    at: Linearisation,
    gates: GateState,
    held: Mask,
    damping: float,
) -> tuple[Callable[[Row], Row], Row]:
    """ν → (J_S J_Sᵀ + damping D) ν, and D."""
    values = values_of(net, standing(gates, at.z), x.dtype)
    norms = constant(net.gradient_norms(x, values))
    scales, in_row = nonzero(in_one_row(norms) ** 2), in_one_row(held)

    def normal(nu: Row) -> Row:
        step, _ = at.pullback_of_sites(masked(held, in_layers(nu, held)))
        pushed = in_one_row(at.pushforward(step))
        # The identity at other sites, where cotangents arrive in reverse mode.
        return jnp.where(in_row, pushed + damping * scales * nu, nu)

    return normal, scales


def _conjugate_gradients(
    matvec: Callable[[Row], Row], b: Row, scales: Row, error: Scalar
) -> tuple[Row, Array, Array]:
    """x with A x = b, A = J Jᵀ, b in its range, with about A's diagonal to scale it by; the
    products it took; whether it converged (or came as far as 1 % of b at least).

    Ends when a step gains less than `error` in ‖Jᵀx‖ (the energy norm), or at rounding:
    once the residual is down to it, a further step divides rounding by rounding.
    """
    eps = jnp.finfo(b.dtype).eps

    def going(carry: tuple[Row, Row, Row, Array, Array, Array]) -> Array:
        *_, square, gain, i = carry
        return (square > rounding) & (gain > error**2) & (i < _CG_STEPS)

    def step(
        carry: tuple[Row, Row, Row, Array, Array, Array],
    ) -> tuple[Row, Row, Row, Array, Array, Array]:
        x, residual, direction, square, _, i = carry
        image = matvec(direction)
        curvature = jnp.sum(direction * image)
        alpha = jnp.where(curvature > 0, square / nonzero(curvature), 0.0)
        x = x + alpha * direction
        residual = residual - alpha * image
        scaled = inverse * residual
        next_square = jnp.where(curvature > 0, jnp.sum(residual * scaled), 0.0)
        direction = scaled + next_square / nonzero(square) * direction
        return x, residual, direction, next_square, alpha * square, i + 1

    infinite = jnp.full_like(error, jnp.inf)
    inverse = 1 / scales
    first = inverse * b
    size = jnp.sum(b * first)
    rounding = (_CG_RESIDUAL * eps) ** 2 * size
    start = (jnp.zeros_like(b), b, first, size, infinite, jnp.asarray(0, jnp.int32))
    x, _, _, square, _, i = jax.lax.while_loop(going, step, start)
    return x, i, (i < _CG_STEPS) | (square < 1e-4 * size)
