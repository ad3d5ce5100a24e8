"""An adaptive solve that changes to a stabilised method where stability limits steps."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ..flows import AbstractFlow, State
from ..nets import AbstractNet
from ._adaptive import Adaptive
from ._base import AbstractSolver, Scalar, Step
from ._chebyshev import (
    ERROR_ORDER,
    Count,
    chebyshev_step,
    longest_stable,
    stages_for,
)


# Tsit5 is stable up to size · radius = 3.3: near that for so many steps in a row, stability
# limits them, and not accuracy. A Chebyshev step costs as much for each unit of time where
# size · radius is 1.6.
_NEAR_LIMIT, _IN_A_ROW, _TO_TSIT5 = 2.0, 20, 1.6
# The spectral radius is estimated anew after so many steps, to a part of itself, in so many
# iterations at most; from below, so that it is given a margin.
_ESTIMATE_EVERY, _PRECISION, _MOST_ITERATIONS, _MARGIN = 25, 0.01, 100, 1.1
# In field evaluations, what a product with the Jacobian costs.
_PRODUCT_COST = 2


class Stabilised(AbstractSolver):
    r"""Runge–Kutta with error control, for smooth flows that may be stiff.

    Along a plateau the flow is slow, yet steps of `Adaptive()` are held to $3.3/\varrho$ by
    stability, $\varrho$ the largest eigenvalue of the Hessian in size. There this solver
    goes on by the Runge–Kutta–Chebyshev method, whose $s$ stages take a step of
    $0.65\,s^2/\varrho$; elsewhere by Tsit5. It sees from each step which of the two is the
    cheaper. Blind to kinks, as `Adaptive` is, and with the same error control.

    Args:
        rtol: relative tolerance per step, as in `Adaptive`.
        atol: absolute tolerance per step, as in `Adaptive`.
    """

    steps: Adaptive
    loop_kind: str

    def __init__(self, rtol: float | Scalar = 1e-6, atol: float | Scalar = 1e-12):
        """Choose the tolerances.

        Raises:
            ValueError: as `Adaptive`.
        """
        self.steps = Adaptive(dfx.Tsit5(), rtol, atol)
        self.loop_kind = "checkpointed"

    @property
    def tolerance(self) -> float | Scalar:
        """`rtol`, relative, per step."""
        return self.steps.rtol

    def check(self, flow: AbstractFlow, net: AbstractNet) -> None:
        """Raise on a flow that chatters everywhere; any network will do.

        Raises:
            ValueError: on a flow that switches signs.
        """
        self.steps.check(flow, net)

    def init(
        self, flow: AbstractFlow, state: State, dt0: Scalar | None
    ) -> tuple["_StabilisedState", Scalar]:
        """As `Adaptive`, by Tsit5 at first."""
        steps, size = self.steps.init(flow, state, dt0)
        spectrum = _Spectrum(
            jnp.zeros_like(size),
            jax.tree.map(jnp.zeros_like, state.position),
            jnp.asarray(0, jnp.int32),
        )
        return _StabilisedState(steps, jnp.asarray(0, jnp.int32), spectrum), size

    def follows_kinks(self, net: AbstractNet) -> bool:
        """No: to it each gate is the sign of its pre-activation."""
        return False

    def gates_of(self, solver_state: Any) -> None:
        """None."""

    def with_scan_kind(self, kind: str) -> "Stabilised":
        """The same solver, differentiable in the mode that goes with this kind of loop."""
        return eqx.tree_at(
            lambda s: (s.loop_kind, s.steps), self, (kind, self.steps.with_scan_kind(kind))
        )

    def step(
        self,
        flow: AbstractFlow,
        state: State,
        size: Scalar,
        solver_state: "_StabilisedState",
    ) -> Step:
        """One step of the method that runs."""
        first = flow.velocity(state.position)
        return jax.lax.cond(
            solver_state.stiff,
            lambda: self._by_chebyshev(flow, state, size, first, solver_state),
            lambda: self._by_tsit5(flow, state, size, first, solver_state),
        )

    def _by_tsit5(
        self,
        flow: AbstractFlow,
        state: State,
        size: Scalar,
        first: State,
        before: "_StabilisedState",
    ) -> Step:
        """A step of Tsit5 as `Adaptive` takes it, and whether the next one is too."""
        step = self.steps.step_from(flow, state, size, first, before.steps)
        stages: Any = step.interpolation.k
        radius = jax.lax.stop_gradient(_radius_seen(stages.position, size))
        near = step.accepted & (size * radius > _NEAR_LIMIT)
        limited = jnp.where(
            near, before.limited + 1, jnp.where(step.accepted, 0, before.limited)
        )
        # Estimated anew before its first step.
        overdue = jnp.full_like(before.spectrum.age, _ESTIMATE_EVERY)
        spectrum = eqx.tree_at(lambda s: s.age, before.spectrum, overdue)
        return eqx.tree_at(
            lambda s: (s.solver_state, s.interpolation),
            step,
            (
                _StabilisedState(step.solver_state, limited, spectrum),
                _DenseOutput(
                    step.interpolation, _no_cubic(state, size), jnp.asarray(False)
                ),
            ),
        )

    def _by_chebyshev(
        self,
        flow: AbstractFlow,
        state: State,
        size: Scalar,
        first: State,
        before: "_StabilisedState",
    ) -> Step:
        """A Chebyshev step, and whether the next one is of Tsit5."""
        spectrum, products = before.spectrum.up_to_date(flow, state.position, before.stiff)
        radius = _MARGIN * spectrum.radius
        size = jnp.minimum(size, longest_stable(radius))
        # Under `jax.vmap` other lanes of Tsit5 come here too, and go through no stage.
        stages = jnp.where(before.stiff, stages_for(size, radius), 1)
        trial = chebyshev_step(flow.velocity, state, first, size, stages, self.loop_kind)
        verdict = self.steps.judge(
            flow,
            trial.error,
            state,
            trial.end,
            size,
            before.steps.controller,
            error_order=ERROR_ORDER,
        )
        # What was not accepted may be so for a radius that has grown.
        age = jnp.where(verdict.accepted, spectrum.age + 1, _ESTIMATE_EVERY)
        spectrum = eqx.tree_at(lambda s: s.age, spectrum, age)
        pays = ~verdict.accepted | (verdict.next_size * radius > _TO_TSIT5)
        limited = jnp.where(pays, before.limited, 0)
        steps = self.steps.started(flow.velocity, trial.end, size, verdict.controller)
        tableau: Any = dfx.Tsit5.tableau
        explicit = dfx.Tsit5.interpolation_cls(
            t0=jnp.zeros_like(size),
            t1=size,
            y0=state,
            y1=state,
            k=jax.tree.map(
                lambda leaf: jnp.zeros((tableau.num_stages, *leaf.shape), leaf.dtype), state
            ),
        )
        return Step(
            accepted=verdict.accepted,
            finite=verdict.finite,
            converged=jnp.asarray(True),
            size=size,
            next_size=verdict.next_size,
            state=trial.end,
            interpolation=_DenseOutput(explicit, trial.interpolation, jnp.asarray(True)),
            solver_state=_StabilisedState(steps, limited, spectrum),
            num_field_evaluations=1 + stages + _PRODUCT_COST * products,
        )


class _Spectrum(eqx.Module):
    """The spectral radius of the Jacobian, the direction in which it was found, and how
    many steps ago."""

    radius: Scalar
    direction: Any
    age: Count

    def up_to_date(
        self, flow: AbstractFlow, position: Any, needed: Bool[Array, ""]
    ) -> tuple["_Spectrum", Count]:
        """Estimated anew by power iteration if it is old and needed, and in how many
        products with the Jacobian."""
        position = jax.lax.stop_gradient(position)
        flow = _without_derivatives(flow)

        def product(direction: Any) -> Any:
            return jax.jvp(lambda p: flow.velocity(p).position, (position,), (direction,))[
                1
            ]

        def iterate(carry: Any) -> Any:
            _, radius, direction, products = carry
            image = product(direction)
            length = _norm(image)
            direction = _times(1 / jnp.where(length > 0, length, 1.0), image)
            return radius, length, direction, products + 1

        def unfinished(carry: Any) -> Bool[Array, ""]:
            before, radius, _, products = carry
            close = jnp.abs(radius - before) <= _PRECISION * radius
            return (products < _MOST_ITERATIONS) & ~(close & (products > 1))

        start = _times(1.0, self.direction)
        length = _norm(start)
        # Nothing known: a fixed vector with a part in all directions.
        start = jax.tree.map(
            lambda known, any_: jnp.where(length > 0, known, any_),
            start,
            _anywhere(position),
        )
        start = _times(1 / _norm(start), start)
        zero = jnp.zeros_like(self.radius)
        none = jnp.asarray(0, jnp.int32)
        old = needed & (self.age >= _ESTIMATE_EVERY)
        start = jax.lax.stop_gradient(start)
        found = jax.lax.while_loop(
            lambda carry: old & unfinished(carry), iterate, (zero, zero, start, none)
        )
        radius = jnp.where(old, found[1], self.radius)
        direction = jax.tree.map(
            lambda new, known: jnp.where(old, new, known), found[2], self.direction
        )
        return _Spectrum(radius, direction, jnp.where(old, 0, self.age)), found[3]


class _StabilisedState(eqx.Module):
    steps: Any
    # How many steps in a row stability has limited; from _IN_A_ROW on, those of Chebyshev
    limited: Count
    spectrum: _Spectrum

    @property
    def stiff(self) -> Bool[Array, ""]:
        """Whether the next step is a Chebyshev step."""
        return self.limited >= _IN_A_ROW


class _DenseOutput(eqx.Module):
    """That of the method that took the step."""

    explicit: Any
    cubic: Any
    stiff: Bool[Array, ""]

    def evaluate(self, time: Scalar) -> State:
        """The state `time` after the start."""
        return jax.tree.map(
            lambda a, b: jnp.where(self.stiff, a, b),
            self.cubic.evaluate(time),
            self.explicit.evaluate(time),
        )


def _radius_seen(stages: Any, size: Scalar) -> Scalar:
    """‖f₇ − f₆‖/‖y₇ − y₆‖ of the last two stages of Tsit5, both at the end of the step.

    Near the spectral radius where stability limits the step (Hairer and Wanner, Solving
    Ordinary Differential Equations II, section IV.2).
    """
    tableau: Any = dfx.Tsit5.tableau
    last, before = (np.asarray(tableau.a_lower[i]) for i in (-1, -2))
    weights = last - np.append(before, 0.0)

    def between(k: Array) -> Array:
        return jnp.tensordot(jnp.asarray(weights, k.dtype), k[:-1], axes=1)

    apart = _norm(jax.tree.map(between, stages))
    change = _norm(jax.tree.map(lambda k: k[-1] - k[-2], stages))
    return jnp.where(apart > 0, change / jnp.where(apart > 0, apart * size, 1.0), 0.0)


def _no_cubic(state: State, size: Scalar) -> dfx.ThirdOrderHermitePolynomialInterpolation:
    still = jax.tree.map(jnp.zeros_like, state)
    return dfx.ThirdOrderHermitePolynomialInterpolation(
        t0=jnp.zeros_like(size), t1=size, y0=state, y1=state, k0=still, k1=still
    )


def _norm(tree: Any) -> Scalar:
    squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))


def _times(factor: Scalar | float, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def _anywhere(tree: Any) -> Any:
    """A fixed vector with a part in all directions."""

    def wave(leaf: Array) -> Array:
        numbers = jnp.arange(1, leaf.size + 1, dtype=leaf.dtype)
        return jnp.sin(numbers * (1 + numbers / leaf.size)).reshape(leaf.shape)

    return jax.tree.map(wave, tree)


def _without_derivatives(tree: Any) -> Any:
    numbers, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(jax.lax.stop_gradient(numbers), rest)
