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
from ..flows._base import axpy, dot
from ..nets import AbstractNet
from ._gates import (
    GateState,
    Linearisation,
    Sites,
    any_of,
    linearise,
    masked,
    preactivations,
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
    # Products with J_S J_Sᵀ that the multipliers took, and whether they were found
    products: Int[Array, ""]
    converged: Bool[Array, ""]

    def openness(self, net: AbstractNet, lines: Lines) -> Sites:
        """The place of each sliding gate between off (0) and on (1)."""
        nus = self.nu
        signal = tuple(
            (1 - sigma.slope) * c
            for sigma, c in zip(net.activations, self.signal, strict=True)
        )
        return lines.openness(nus, signal)


def motion(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    lines: Lines,
    guess: Sites,
    tolerance: Scalar,
    solving: Bool[Array, ""] | bool = True,
) -> Motion:
    """The velocity with the frozen gates fixed and the sliding ones held on their kinks.

    The multipliers are found from a guess, to an error of the velocity of `tolerance`; or
    the guess is taken as it is, if not `solving`.
    """
    at = linearise(flow, position, gates)
    fixed = linearise(constant(flow), constant(position), gates)
    cotangent = flow.cotangent(position, at.outputs)
    held = lines.one_of_each(gates.sliding)
    guess = masked(held, guess)
    gradient, signal = at.pullback(cotangent, guess)

    def solved() -> tuple[Sites, AbstractNet, Sites, Array, Array]:
        pushed = masked(held, at.pushforward(gradient))
        size = jnp.sqrt(dot(gradient, gradient))
        change, products, converged = _solve_normal(
            at, fixed, held, tuple(-z for z in pushed), tolerance * size
        )
        step, signals = at.pullback(jnp.zeros_like(at.outputs), change)
        nu = tuple(a + b for a, b in zip(guess, change, strict=True))
        moved = axpy(jnp.ones_like(size), step, gradient)
        arriving = tuple(a + b for a, b in zip(signal, signals, strict=True))
        return nu, moved, arriving, products, converged

    def given() -> tuple[Sites, AbstractNet, Sites, Array, Array]:
        return guess, gradient, signal, jnp.asarray(0, jnp.int32), jnp.asarray(True)

    nu, gradient, signal, products, converged = jax.lax.cond(
        any_of(gates.sliding) & solving, solved, given
    )
    return Motion(
        velocity=flow.assemble(position, at.outputs, gradient),
        gradient=gradient,
        outputs=at.outputs,
        z=at.z,
        signal=signal,
        nu=nu,
        products=products,
        converged=converged,
    )


def z_rates(
    flow: AbstractFlow, position: Any, gates: GateState, velocity: State
) -> Sites:
    """dz/dτ of every site under the gates."""
    moved = jax.tree.map(lambda p, v: v.astype(p.dtype), position, velocity.position)
    return jax.jvp(lambda p: preactivations(flow, p, gates), (position,), (moved,))[1]


def back_to_kinks(
    flow: AbstractFlow, position: Any, gates: GateState, lines: Lines, tolerance: Scalar
) -> tuple[Any, Array]:
    """The nearest position at which the sliding sites have z = 0, to first order; and how
    many products with J_S J_Sᵀ it took."""

    def project() -> tuple[AbstractNet, Array]:
        at = linearise(flow, position, gates)
        fixed = linearise(constant(flow), constant(position), gates)
        held = lines.one_of_each(gates.sliding)
        point = flow.point(position)
        size = jnp.sqrt(dot(point, point))
        nu, products, _ = _solve_normal(
            at, fixed, held, masked(held, at.z), tolerance * size
        )
        step, _ = at.pullback(jnp.zeros_like(at.outputs), nu)
        return axpy(-jnp.ones((), at.outputs.dtype), step, point), products

    moved, products = jax.lax.cond(
        any_of(gates.sliding),
        project,
        lambda: (flow.point(position), jnp.asarray(0, jnp.int32)),
    )
    return flow.with_point(position, moved), products


# In units of the precision, relative to the right-hand side.
_CG_RESIDUAL = 20.0
_CG_STEPS = 200


def _solve_normal(
    at: Linearisation,
    fixed: Linearisation,
    held: tuple[Array, ...],
    right: Sites,
    error: Scalar,
) -> tuple[Sites, Array, Array]:
    """ν with J_S J_Sᵀ ν = right, such that J_Sᵀν is right up to an error of this norm.

    Its derivative is that of the solution, solved for to rounding; `fixed` is the same
    linearisation without derivatives.
    """

    def normal(nu: Sites, at: Linearisation = at) -> Sites:
        step, _ = at.pullback(jnp.zeros_like(at.outputs), masked(held, nu))
        pushed = at.pushforward(step)
        # The identity at other sites, where cotangents arrive in reverse mode.
        return tuple(jnp.where(h, p, n) for h, p, n in zip(held, pushed, nu, strict=True))

    def exactly(matvec: Callable[[Sites], Sites], b: Sites) -> Sites:
        return _conjugate_gradients(matvec, b, jnp.zeros_like(error))[0]

    nu, products, converged = _conjugate_gradients(
        lambda nu: normal(nu, fixed), constant(right), constant(error)
    )
    # Zero, but for its derivative.
    rest = tuple(r - n for r, n in zip(right, normal(nu), strict=True))
    rest = tuple(r - constant(r) for r in rest)
    change = jax.lax.custom_linear_solve(normal, rest, exactly, symmetric=True)
    return tuple(n + d for n, d in zip(nu, change, strict=True)), products, converged


def _conjugate_gradients(
    matvec: Callable[[Sites], Sites], b: Sites, error: Scalar
) -> tuple[Sites, Array, Array]:
    """x with A x = b, A = J Jᵀ, b in its range; the products it took; whether it converged.

    Ends when a step gains less than `error` in ‖Jᵀx‖ (the energy norm), or at rounding:
    once the residual is down to it, a further step divides rounding by rounding.
    """
    eps = jnp.finfo(b[0].dtype).eps
    rounding = (_CG_RESIDUAL * eps) ** 2 * _inner(b, b)

    def going(carry: tuple[Sites, Sites, Sites, Array, Array, Array]) -> Array:
        *_, square, gain, i = carry
        return (square > rounding) & (gain > error**2) & (i < _CG_STEPS)

    def step(
        carry: tuple[Sites, Sites, Sites, Array, Array, Array],
    ) -> tuple[Sites, Sites, Sites, Array, Array, Array]:
        x, residual, direction, square, _, i = carry
        image = matvec(direction)
        curvature = _inner(direction, image)
        alpha = jnp.where(curvature > 0, square / _nonzero(curvature), 0.0)
        x = _axpy(alpha, direction, x)
        residual = _axpy(-alpha, image, residual)
        next_square = jnp.where(curvature > 0, _inner(residual, residual), 0.0)
        direction = _axpy(next_square / _nonzero(square), direction, residual)
        return x, residual, direction, next_square, alpha * square, i + 1

    zeros = tuple(jnp.zeros_like(entry) for entry in b)
    infinite = jnp.full_like(error, jnp.inf)
    start = (zeros, b, b, _inner(b, b), infinite, jnp.asarray(0, jnp.int32))
    x, _, _, square, gain, i = jax.lax.while_loop(going, step, start)
    return x, i, ~((square > rounding) & (gain > 10 * error**2) & (i >= _CG_STEPS))


def _inner(a: Sites, b: Sites) -> Array:
    products = [jnp.sum(p * q) for p, q in zip(a, b, strict=True)]
    return jnp.sum(jnp.stack(products))


def _axpy(factor: Array, a: Sites, b: Sites) -> Sites:
    return tuple(factor * p + q for p, q in zip(a, b, strict=True))


def _nonzero(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.where(x == 0, 1.0, x)
