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
from jaxtyping import Array, Float

from ..flows import AbstractFlow, State
from ..flows._base import axpy
from ..nets import AbstractNet
from ._gates import (
    GateState,
    Linearisation,
    Mask,
    Sites,
    any_of,
    linearise,
    masked,
    one_of_each,
    shared_kinks,
)


# In units of the precision, relative to the right-hand side.
_CG_RESIDUAL = 20.0
_CG_STEPS = 200


class Motion(eqx.Module):
    """The velocity under fixed gates, and what happens at the sites."""

    velocity: State
    z_rate: Sites
    # The position of each sliding gate between off (0) and on (1)
    openness: Sites


def motion(flow: AbstractFlow, position: Any, gates: GateState) -> Motion:
    """The velocity with the gates fixed and the sliding ones held on their kinks."""
    at = linearise(flow, position, gates)
    cotangent = flow.cotangent(position, at.outputs)
    zeros = tuple(jnp.zeros_like(z) for z in at.z)
    free, _ = at.pullback(cotangent, zeros)

    shared = shared_kinks(flow.problem.data.x)
    held = one_of_each(gates.sliding, shared)

    def constrained() -> Sites:
        pushed = masked(held, at.pushforward(free))
        return _solve_normal(at, held, tuple(-z for z in pushed))

    nu = jax.lax.cond(any_of(gates.sliding), constrained, lambda: zeros)
    gradient, signal = at.pullback(cotangent, nu)
    velocity = flow.assemble(position, at.outputs, gradient)
    moved = flow.point(velocity.position)
    net = flow.point(position)
    openness = tuple(
        _openness(n, (1 - sigma.slope) * c, shared if i == 0 else None)
        for i, (n, c, sigma) in enumerate(zip(nu, signal, net.activations, strict=True))
    )
    return Motion(velocity, at.pushforward(moved), openness)


def back_to_kinks(flow: AbstractFlow, position: Any, gates: GateState) -> Any:
    """The nearest position at which the sliding sites have z = 0, to first order."""

    def project() -> AbstractNet:
        at = linearise(flow, position, gates)
        held = one_of_each(gates.sliding, shared_kinks(flow.problem.data.x))
        nu = _solve_normal(at, held, masked(held, at.z))
        step, _ = at.pullback(jnp.zeros_like(at.outputs), nu)
        return axpy(-jnp.ones((), at.outputs.dtype), step, flow.point(position))

    moved = jax.lax.cond(any_of(gates.sliding), project, lambda: flow.point(position))
    return flow.with_point(position, moved)


def _openness(nu: Array, signal: Array, shared: Array | None) -> Array:
    """Where a sliding gate stands between off (0) and on (1).

    The multiplier is what the gates add to the gradient along ∇z: o c for a kink of its
    own. Where samples share it, Σ_k o_k r_k c_k over them, with o for r > 0 and 1 − o for
    r < 0, must equal Σ_k r_k ν_k.
    """
    if shared is None:
        return nu / _nonzero(signal)
    total = shared.T @ nu
    opposite = jnp.minimum(shared, 0.0).T @ signal
    return (total - opposite) / _nonzero(jnp.abs(shared).T @ signal)


def _solve_normal(at: Linearisation, held: Mask, right: Sites) -> Sites:
    """ν with J_S J_Sᵀ ν = right, by conjugate gradients."""

    def normal(nu: Sites) -> Sites:
        step, _ = at.pullback(jnp.zeros_like(at.outputs), masked(held, nu))
        pushed = at.pushforward(step)
        # The identity at other sites, where cotangents arrive in reverse mode.
        return tuple(jnp.where(h, p, n) for h, p, n in zip(held, pushed, nu, strict=True))

    def solve(matvec: Callable[[Sites], Sites], b: Sites) -> Sites:
        return _conjugate_gradients(matvec, b)

    return jax.lax.custom_linear_solve(normal, right, solve, symmetric=True)


def _conjugate_gradients(matvec: Callable[[Sites], Sites], b: Sites) -> Sites:
    """x with A x = b, A symmetric and positive semidefinite, b in its range.

    Goes on to rounding and then stops: once the residual is down to it, a further step
    divides rounding by rounding.
    """
    eps = jnp.finfo(b[0].dtype).eps
    enough = (_CG_RESIDUAL * eps) ** 2 * _inner(b, b)

    def going(carry: tuple[Sites, Sites, Sites, Array, Array]) -> Array:
        *_, square, i = carry
        return (square > enough) & (i < _CG_STEPS)

    def step(
        carry: tuple[Sites, Sites, Sites, Array, Array],
    ) -> tuple[Sites, Sites, Sites, Array, Array]:
        x, residual, direction, square, i = carry
        image = matvec(direction)
        curvature = _inner(direction, image)
        alpha = jnp.where(curvature > 0, square / _nonzero(curvature), 0.0)
        x = _axpy(alpha, direction, x)
        residual = _axpy(-alpha, image, residual)
        next_square = jnp.where(curvature > 0, _inner(residual, residual), 0.0)
        direction = _axpy(next_square / _nonzero(square), direction, residual)
        return x, residual, direction, next_square, i + 1

    zeros = tuple(jnp.zeros_like(entry) for entry in b)
    start = (zeros, b, b, _inner(b, b), jnp.asarray(0, jnp.int32))
    return jax.lax.while_loop(going, step, start)[0]


def _inner(a: Sites, b: Sites) -> Array:
    products = [jnp.sum(p * q) for p, q in zip(a, b, strict=True)]
    return jnp.sum(jnp.stack(products))


def _axpy(factor: Array, a: Sites, b: Sites) -> Sites:
    return tuple(factor * p + q for p, q in zip(a, b, strict=True))


def _nonzero(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.where(x == 0, 1.0, x)
