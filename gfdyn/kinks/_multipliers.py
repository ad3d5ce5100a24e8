"""The multipliers that hold sliding gates on their kinks, ν with J_S J_Sᵀ ν = b.

Matrix-free, by conjugate gradients: J_S and J_Sᵀ are one JVP and one VJP.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._by_layer import in_layers, in_one_row
from .._numerics import nonzero
from .._types import Mask, Scalar, Sites
from ..flows import AbstractFlow
from ..nets import AbstractNet
from ._masks import masked, samples_of
from ._sites import GateState, Linearisation, constant, linearise, standing, values_of


# In units of the precision, relative to the right-hand side.
_CG_RESIDUAL = 20.0
_CG_STEPS = 1000
# Samples of which some gate slides are treated apart if they are few: this part of all.
_FEW = 1 / 8
_FEWEST = 32


class Multipliers(eqx.Module):
    """Multipliers ν, and what they cost, in field evaluations.

    `unsolved` is what is left of the right-hand side, along unit normals, as steps run out;
    0 if they do not.
    """

    nu: Sites
    # Jᵀν, and the signal that it sends
    step: AbstractNet
    signal: Sites
    cost: Scalar
    unsolved: Scalar
    # What damping leaves of what was wanted, as a part of it
    left: Scalar


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
    involved = samples_of(held)

    def on_some() -> Any:
        return work(jnp.nonzero(involved, size=few, fill_value=samples)[0])

    return jax.lax.cond(jnp.sum(involved) <= few, on_some, lambda: work(None))


def on_rows(arrays: Any, rows: Rows) -> Any:
    """What arrays of all samples have of some, 0 for none."""
    if rows is None:
        return arrays
    return jax.tree.map(lambda a: a.at[rows].get(mode="fill", fill_value=0), arrays)


def multipliers(
    flow: AbstractFlow,
    net: AbstractNet,
    at: Linearisation,
    gates: GateState,
    held: Mask,
    rows: Rows,
    wanted: Callable[[Linearisation], Sites],
    error: Scalar,
    damping: float,
) -> Multipliers:
    """ν with (J_S J_Sᵀ + damping D) ν = wanted, D about the diagonal of J_S J_Sᵀ, such that
    J_Sᵀν is right up to an error of this norm; `at` is the net on all samples.
    """
    x = flow.problem.data.x
    samples = len(x)
    if rows is not None:
        x, gates, held = on_rows((x, gates, held), rows)
        at = linearise(net, x, gates)
    right = masked(held, wanted(at))
    fixed = {"at": constant(at), "gates": gates, "held": held, "error": constant(error)}
    row, products, unsolved, left = _multipliers(
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
    return Multipliers(nu, step, signal, cost, unsolved, left)


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
) -> tuple[Row, Array, Array, Array]:
    """ν as above, from the right-hand side at the sites held; the products it took; what is
    unsolved; what damping leaves of the right-hand side."""
    normal, scales = _normal_equations(net, x, at, gates, held, damping)
    nu, products, unsolved = _conjugate_gradients(normal, right, scales, error)
    rest, wanted = (jnp.sum(b**2 / scales) for b in (damping * scales * nu, right))
    return nu, products, unsolved, jnp.sqrt(rest / nonzero(wanted))


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
    return found, (change, None, None, None)


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
    products it took; what is left of b, so scaled, as steps run out, or 0.

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
    return x, i, jnp.sqrt(jnp.where(i < _CG_STEPS, 0.0, square))
