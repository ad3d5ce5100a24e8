"""The sign flow between two switches: signs, what slides, and how fast."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from .._by_layer import in_one_row
from .._types import Mask, Scalar
from ..flows import AbstractFlow, State
from ..nets import AbstractNet, FrozenGate


Parameters = Float[Array, " parameters"]

# Rows of the Hessian at less than this squared sine count as parallel.
_PARALLEL = 1e-12


class Mode(eqx.Module):
    """What stands between two switches.

    Attributes:
        signs: of the partial derivatives, 0 where nothing depends on a parameter; of one
            that slides, what it was.
        leader: which parameter one slides with, itself or another, -1 if it does not.
            Derivatives that are proportional change sign together.
        on: the open gates.
    """

    signs: Parameters
    leader: Int[Array, " parameters"]
    on: Mask

    @property
    def slides(self) -> Bool[Array, " parameters"]:
        """The parameters that slide."""
        return self.leader >= 0

    @property
    def leads(self) -> Bool[Array, " parameters"]:
        """The first of each group that slides together."""
        return self.leader == jnp.arange(len(self.leader))

    @property
    def free(self) -> Parameters:
        """The velocity of what does not slide, 0 elsewhere."""
        return jnp.where(self.slides, 0.0, -self.signs)

    @property
    def groups(self) -> Float[Array, "parameters parameters"]:
        """The signs of each group in the column of its leader."""
        columns = self.leader[:, None] == jnp.arange(len(self.leader))[None, :]
        return jnp.where(columns, self.signs[:, None], 0.0)


class FrozenRisk:
    """The risk as a function of θ in one row, with gates held open or closed."""

    def __init__(self, flow: AbstractFlow, on: Mask, like: AbstractNet):
        self.problem = flow.problem
        self.start, self.unravel = ravel_pytree(like)
        self.gates = tuple(
            FrozenGate(jnp.where(o, 1.0, sigma.slope).astype(self.start.dtype))
            for o, sigma in zip(on, like.activations, strict=True)
        )

    def risk(self, row: Parameters) -> Scalar:
        """R."""
        return self.problem.cost(self._forward(row)[0])

    def gradient(self, row: Parameters) -> Parameters:
        """∇R."""
        return jax.grad(self.risk)(row)

    def hessian(self, row: Parameters) -> Float[Array, "parameters parameters"]:
        """∇²R."""
        return jax.jacfwd(self.gradient)(row)

    def preactivations(self, row: Parameters) -> Array:
        """z of all hidden layers, in one row."""
        z = self._forward(row)[1]
        return in_one_row(z) if z else jnp.zeros((0,), row.dtype)

    def _forward(self, row: Parameters) -> tuple[Array, tuple[Array, ...]]:
        return self.unravel(row).forward(self.problem.data.x, self.gates)


class SignField(eqx.Module):
    """The velocity in a mode."""

    flow: AbstractFlow
    mode: Mode

    def __call__(self, position: AbstractNet) -> State:
        """dθ/dt, and the rate at which the risk falls."""
        frozen = FrozenRisk(self.flow, self.mode.on, position)
        velocity = self.velocity(frozen, frozen.start)
        fall = -velocity @ frozen.gradient(frozen.start)
        return State(frozen.unravel(velocity), fall)

    def velocity(self, frozen: FrozenRisk, row: Parameters) -> Parameters:
        """−sign g, and of what slides the speeds that keep g at 0."""
        return self.mode.free + self.mode.groups @ self.speeds(frozen, row)

    def speeds(self, frozen: FrozenRisk, row: Parameters) -> Parameters:
        """μ of the leader of each group that slides, 0 elsewhere."""
        free = self.mode.free
        return self._held(frozen, row, lambda hessian: -hessian @ free)

    def back(self, position: AbstractNet) -> AbstractNet:
        """The position with what slides back at a derivative of 0, by a Newton step."""
        frozen = FrozenRisk(self.flow, self.mode.on, position)
        row = frozen.start
        shift = self._held(frozen, row, lambda _: -frozen.gradient(row))
        return frozen.unravel(row + self.mode.groups @ shift)

    def is_stable(self, position: AbstractNet) -> Bool[Array, ""]:
        """Whether what slides is driven back from every side: EᵀHE, scaled to a diagonal
        of 1, is positive definite. Otherwise the flow is not unique there."""
        frozen = FrozenRisk(self.flow, self.mode.on, position)

        def definite() -> Bool[Array, ""]:
            matrix = self._matrix(frozen.hessian(frozen.start))
            sizes = jnp.sqrt(jnp.diagonal(matrix))
            scaled = matrix / sizes[:, None] / sizes[None, :]
            least = math.sqrt(_PARALLEL) * jnp.eye(len(sizes), dtype=sizes.dtype)
            return jnp.all(jnp.isfinite(jnp.linalg.cholesky(scaled - least)))

        return jax.lax.cond(jnp.any(self.mode.leads), definite, lambda: jnp.asarray(True))

    def _held(
        self, frozen: FrozenRisk, row: Parameters, right: Callable[[Array], Parameters]
    ) -> Parameters:
        """x with EᵀHE x = Eᵀ right(H) at the leaders, 0 elsewhere."""

        def found() -> Parameters:
            hessian = frozen.hessian(row)
            wanted = self.mode.groups.T @ right(hessian)
            return jnp.linalg.solve(self._matrix(hessian), wanted)

        return jax.lax.cond(jnp.any(self.mode.leads), found, lambda: jnp.zeros_like(row))

    def _matrix(self, hessian: Array) -> Array:
        """EᵀHE among the leaders, 1 at others."""
        groups, others = self.mode.groups, jnp.where(self.mode.leads, 0.0, 1.0)
        return groups.T @ hessian @ groups + jnp.diag(others)


def settled(frozen: FrozenRisk, row: Parameters, mode: Mode, rounding: Scalar) -> Mode:
    """The mode with signs by the derivatives there; those of them that are 0 slide, each
    with its leader for as long as theirs stay proportional, or rest if nothing depends on
    them."""
    gradient, hessian = frozen.gradient(row), frozen.hessian(row)
    zero = jnp.abs(gradient) <= rounding
    slides = zero & jnp.any(hessian != 0, axis=1)
    itself = jnp.arange(len(row), dtype=mode.leader.dtype)
    leader = jnp.where(mode.slides, mode.leader, itself)
    with_it = jax.vmap(lambda i: parallel(hessian, leader[i])[i])(itself)
    leader = jnp.where(slides[leader] & with_it, leader, itself)
    kept = jnp.where(mode.signs != 0, mode.signs, 1.0)
    signs = jnp.where(zero, jnp.where(slides, kept, 0.0), jnp.sign(gradient))
    return Mode(signs, jnp.where(slides, leader, -1), mode.on)


def parallel(hessian: Array, which: Array) -> Bool[Array, " parameters"]:
    """Whose derivatives are proportional to one, as far as their own derivatives tell."""
    row = hessian[which]
    products = hessian @ row
    lengths = jnp.sum(hessian**2, axis=1) * jnp.sum(row**2)
    return (lengths > 0) & (products**2 >= (1 - _PARALLEL) * lengths)
