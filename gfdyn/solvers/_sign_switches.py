"""The sign flow exactly: switches of sign located, and what slides held there."""

import math
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ..flows import AbstractFlow, State
from ..kinks import GateState, Mask
from ..nets import AbstractNet, FrozenGate, in_layers, in_one_row
from ._adaptive import Adaptive
from ._base import AbstractSolver, Scalar, Step


Parameters = Float[Array, " parameters"]

# A dense Hessian says how fast parameters slide: of networks of up to so many.
_LARGEST = 2000
# Looks at a step for the first switch in it, and halvings that locate that; so that no two
# hide between looks, a step moves θ by no more than this part of its root mean square.
_LOOKS, _HALVINGS = 8, 50
_LONGEST = 0.02
# What counts as 0 of a derivative or a pre-activation, relative to the largest, in units of
# the precision.
_ROUNDING = 1e3
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


class SignSwitches(AbstractSolver):
    r"""Steps up to the next switch of the sign flow, each of them located to rounding.

    While signs and gates stand, θ moves along a straight line. Where a derivative $g_i$
    reaches 0 and would be driven back if its sign switched, $\theta_i$ slides, and so do
    with it all whose derivatives are proportional to it: at a common speed μ, from 1 to -1
    times their signs, that keeps $g_i = 0$, $E^\top H E \mu = -E^\top H u$ with E the signs
    of each group and u what does not slide, up to the moment when some |μ| reaches 1
    (Filippov's solution, and the mean of the steps of sign descent). A pre-activation that
    passes 0 switches its gate; if the signs behind that drive it back, the neuron would
    slide along its kink: the solve ends with `RESULTS.no_regime`.

    Not differentiable: the times of switches are not followed.

    Args:
        rtol: relative tolerance per step.
        atol: absolute tolerance per step, for the root mean square entry of a matrix.
    """

    steps: Adaptive

    def __init__(self, rtol: float | Scalar = 1e-6, atol: float | Scalar = 1e-12):
        """Choose the tolerances.

        Raises:
            ValueError: unless rtol > 0 and atol ≥ 0 are finite.
        """
        self.steps = Adaptive(dfx.Tsit5(), rtol, atol)

    @property
    def tolerance(self) -> float | Scalar:
        """`rtol`, relative, per step."""
        return self.steps.rtol

    def check(self, flow: AbstractFlow, net: AbstractNet) -> None:
        """Raise unless the flow is one of signs, of a network that it can take.

        Raises:
            ValueError: on another flow, on a network that was wrapped as it is, or on a
                large one.
        """
        if flow.jumps_at != "signs":
            raise ValueError(
                f"solver=SignSwitches(): a {type(flow).__name__} does not switch signs; "
                "use gf.solvers.ExactKinks()."
            )
        if not net.knows_kinks:
            raise ValueError(
                "SignSwitches does not see where a wrapped model bends; build the network "
                "with gf.nets.MLP or gf.nets.sequential."
            )
        size = sum(leaf.size for leaf in jax.tree.leaves(net))
        if size > _LARGEST:
            raise ValueError(
                f"SignSwitches takes up to {_LARGEST} parameters, for it solves with a "
                f"dense Hessian; this network has {size}. Use sign descent: "
                "gf.descend(problem, net, optax.sign_sgd(rate), steps)."
            )

    def init(
        self, flow: AbstractFlow, state: State, dt0: Scalar | None
    ) -> tuple["_SwitchState", Scalar]:
        """The signs and gates at the start."""
        net = flow.point(state.position)
        on = tuple(gate.value > sigma.slope for gate, sigma in _gates(flow, net))
        frozen = _Frozen(flow, on, net)
        gradient = frozen.gradient(frozen.start)
        largest = jnp.max(jnp.abs(gradient))
        alone = Mode(jnp.ones_like(gradient), jnp.arange(len(gradient)), on)
        controller = self.steps.start_controller(flow, state, jnp.ones_like(largest))
        begun = _SwitchState(controller, alone, largest)
        mode = _settled(frozen, frozen.start, alone, begun.rounding)
        if dt0 is None:
            dt0 = _longest(net)
        return eqx.tree_at(lambda s: s.mode, begun, mode), dt0

    def with_scan_kind(self, kind: str) -> "SignSwitches":
        """The same solver."""
        return self

    def follows_kinks(self, net: AbstractNet) -> bool:
        """No: it keeps no log of them."""
        return False

    def gates_of(self, solver_state: Any) -> GateState | None:
        """None."""

    def step(
        self, flow: AbstractFlow, state: State, size: Scalar, solver_state: "_SwitchState"
    ) -> Step:
        """A step under fixed signs and gates, cut short where the first switches."""
        before = solver_state
        mode = before.mode
        field = _SignField(flow, mode)
        started = self.steps.started(field, state, size, before.controller)
        trial = self.steps.attempt(flow, field, state, size, started)
        limits = _Limits(flow, mode, before.rounding)
        least = limits.tolerated(state.position, self.steps.rtol * before.largest)
        fraction = jax.lax.cond(
            trial.accepted,
            lambda: _first_switch(limits, trial, least, size),
            lambda: jnp.ones_like(size),
        )
        switches = fraction < 1
        end = jax.tree.map(
            lambda cut, whole: jnp.where(switches, cut, whole),
            trial.at(fraction * size),
            trial.state,
        )
        # The first in order, so that switches which follow at once come to an end (Murty).
        which = jnp.argmax(limits.room(end.position) < least)
        after, goes_on = jax.lax.cond(
            switches & trial.accepted,
            lambda: _switched(limits, end.position, which),
            lambda: (mode, jnp.asarray(True)),
        )
        goes_on &= _SignField(flow, after).is_stable(end.position)
        position = _SignField(flow, mode).back(end.position)
        end = eqxi.nondifferentiable(
            State(position, end.dissipated), name="gf.solvers.SignSwitches"
        )
        return Step(
            accepted=trial.accepted,
            finite=trial.finite,
            converged=jnp.asarray(True),
            size=fraction * size,
            next_size=jnp.minimum(
                jnp.where(switches, size, trial.next_size), _longest(position)
            ),
            state=end,
            interpolation=trial.interpolation,
            solver_state=_SwitchState(
                trial.solver_state.controller,
                jax.tree.map(
                    lambda new, old: jnp.where(trial.accepted, new, old), after, mode
                ),
                before.largest,
            ),
            num_field_evaluations=trial.num_field_evaluations + 1 + _LOOKS,
            verified=goes_on,
        )


class _SwitchState(eqx.Module):
    controller: Any
    mode: Mode
    # The largest derivative at the start
    largest: Scalar

    @property
    def rounding(self) -> Scalar:
        """Derivatives that count as 0."""
        return _ROUNDING * jnp.finfo(self.largest.dtype).eps * self.largest


class _Frozen:
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


class _SignField(eqx.Module):
    """The velocity in a mode."""

    flow: AbstractFlow
    mode: Mode

    def __call__(self, position: AbstractNet) -> State:
        """dθ/dt, and the rate at which the risk falls."""
        frozen = _Frozen(self.flow, self.mode.on, position)
        velocity = self.velocity(frozen, frozen.start)
        fall = -velocity @ frozen.gradient(frozen.start)
        return State(frozen.unravel(velocity), fall)

    def velocity(self, frozen: _Frozen, row: Parameters) -> Parameters:
        """−sign g, and of what slides the speeds that keep g at 0."""
        return self.mode.free + self.mode.groups @ self.speeds(frozen, row)

    def speeds(self, frozen: _Frozen, row: Parameters) -> Parameters:
        """μ of the leader of each group that slides, 0 elsewhere."""
        free = self.mode.free
        return self._held(frozen, row, lambda hessian: -hessian @ free)

    def back(self, position: AbstractNet) -> AbstractNet:
        """The position with what slides back at a derivative of 0, by a Newton step."""
        frozen = _Frozen(self.flow, self.mode.on, position)
        row = frozen.start
        shift = self._held(frozen, row, lambda _: -frozen.gradient(row))
        return frozen.unravel(row + self.mode.groups @ shift)

    def is_stable(self, position: AbstractNet) -> Bool[Array, ""]:
        """Whether what slides is driven back from every side: EᵀHE, scaled to a diagonal
        of 1, is positive definite. Otherwise the flow is not unique there."""
        frozen = _Frozen(self.flow, self.mode.on, position)

        def definite() -> Bool[Array, ""]:
            matrix = self._matrix(frozen.hessian(frozen.start))
            sizes = jnp.sqrt(jnp.diagonal(matrix))
            scaled = matrix / sizes[:, None] / sizes[None, :]
            least = math.sqrt(_PARALLEL) * jnp.eye(len(sizes), dtype=sizes.dtype)
            return jnp.all(jnp.isfinite(jnp.linalg.cholesky(scaled - least)))

        return jax.lax.cond(jnp.any(self.mode.leads), definite, lambda: jnp.asarray(True))

    def _held(
        self, frozen: _Frozen, row: Parameters, right: Callable[[Array], Parameters]
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


class _Limits(eqx.Module):
    """How far it is to each switch of a mode, in one row: of a derivative's sign, of a
    sliding parameter's speed to 1, of each pre-activation to 0. Below 0, the mode is wrong.
    """

    flow: AbstractFlow
    mode: Mode
    rounding: Scalar

    def room(self, position: AbstractNet) -> Array:
        """The distances, of parameters and then of sites."""
        frozen = _Frozen(self.flow, self.mode.on, position)
        row, mode = frozen.start, self.mode
        left = 1 - jnp.abs(_SignField(self.flow, mode).speeds(frozen, row))
        moving = ~mode.slides & (mode.signs != 0)
        signed = jnp.where(moving, mode.signs * frozen.gradient(row), jnp.inf)
        of_signs = jnp.where(mode.leads, left, signed)
        return jnp.concatenate([of_signs, self._sides(position, frozen)])

    def tolerated(self, position: AbstractNet, error: Scalar) -> Array:
        """Below which distance there is a switch: 0 but for rounding; of a derivative that
        is off its 0 by no more than an error already, what it is at the position."""
        z, leads = self._scales(position), self.mode.leads
        eps = _ROUNDING * jnp.finfo(z.dtype).eps
        rounding = jnp.concatenate(
            [jnp.where(leads, jnp.sqrt(eps), self.rounding), eps * z]
        )
        errors = jnp.concatenate([jnp.where(leads, 0.0, error), jnp.zeros_like(z)])
        return jnp.clip(self.room(position), -errors, 0.0) - rounding

    def _sides(self, position: AbstractNet, frozen: _Frozen) -> Array:
        """z of each site, on the side on which its gate is; ∞ where it has no kink."""
        z = frozen.preactivations(frozen.start)
        on = in_one_row(self.mode.on) if self.mode.on else jnp.zeros((0,), bool)
        return jnp.where(self._bends(position), jnp.where(on, z, -z), jnp.inf)

    def _bends(self, position: AbstractNet) -> Bool[Array, " sites"]:
        parts = [
            jnp.full(o.size, not sigma.is_linear)
            for o, sigma in zip(self.mode.on, position.activations, strict=True)
        ]
        return jnp.concatenate([jnp.zeros(0, bool), *parts])

    def _scales(self, position: AbstractNet) -> Array:
        """The largest |z| of each site's layer."""
        z = position.preactivations(self.flow.problem.data.x)
        largest = [jnp.full(zl.size, jnp.max(jnp.abs(zl))) for zl in z]
        return jnp.concatenate([jnp.zeros(0, self.rounding.dtype), *largest])


def _first_switch(limits: _Limits, trial: Step, least: Array, size: Scalar) -> Scalar:
    """The part of a step after which the first switch is due, 1 if there is none."""

    def wrong(fraction: Scalar) -> Bool[Array, ""]:
        return jnp.any(limits.room(trial.at(fraction * size).position) < least)

    looks = jnp.arange(1, _LOOKS + 1, dtype=size.dtype) / _LOOKS
    found = jax.lax.map(wrong, looks)
    late = jnp.where(jnp.any(found), looks[jnp.argmax(found)], 1.0)

    def halve(_: Array, bracket: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        early, late = bracket
        middle = (early + late) / 2
        over = wrong(middle)
        return jnp.where(over, early, middle), jnp.where(over, middle, late)

    def located() -> Scalar:
        bracket = (late - 1 / _LOOKS, late)
        return jax.lax.fori_loop(0, _HALVINGS, halve, bracket)[1]

    return jax.lax.cond(jnp.any(found), located, lambda: jnp.ones_like(size))


def _switched(
    limits: _Limits, position: AbstractNet, which: Array
) -> tuple[Mode, Bool[Array, ""]]:
    """The mode after a switch, and whether the flow goes on in it."""
    flow, mode = limits.flow, limits.mode
    parameters = len(mode.signs)

    def of_sign() -> tuple[Mode, Bool[Array, ""]]:
        frozen = _Frozen(flow, mode.on, position)
        row, leads = frozen.start, mode.leads[which]
        together = jnp.where(
            leads,
            mode.leader == which,
            _parallel(frozen.hessian(row), which) & ~mode.slides & (mode.signs != 0),
        )
        speed = _SignField(flow, mode).speeds(frozen, row)[which]
        let_go = -jnp.sign(speed) * mode.signs
        crossed = Mode(jnp.where(together, -mode.signs, mode.signs), mode.leader, mode.on)
        behind = _SignField(flow, crossed).velocity(frozen, row)
        rate = jax.jvp(frozen.gradient, (row,), (behind,))[1][which]
        passes = rate * mode.signs[which] < 0
        signs = jnp.where(leads, let_go, jnp.where(passes, -mode.signs, mode.signs))
        leader = jnp.where(leads | passes, -1, which.astype(mode.leader.dtype))
        after = Mode(
            jnp.where(together, signs, mode.signs),
            jnp.where(together, leader, mode.leader),
            mode.on,
        )
        return after, jnp.asarray(True)

    def of_gate() -> tuple[Mode, Bool[Array, ""]]:
        site = which - parameters
        on = in_one_row(mode.on)
        on = on.at[site].set(~on[site])
        gates = in_layers(on, mode.on)
        frozen = _Frozen(flow, gates, position)
        row = frozen.start
        opened = Mode(mode.signs, mode.leader, gates)
        after = _settled(frozen, row, opened, limits.rounding)
        velocity = _SignField(flow, after).velocity(frozen, row)
        rate = jax.jvp(frozen.preactivations, (row,), (velocity,))[1][site]
        return after, jnp.where(on[site], rate, -rate) >= 0

    if not mode.on:
        return of_sign()
    return jax.lax.cond(which < parameters, of_sign, of_gate)


def _longest(net: AbstractNet) -> Scalar:
    row, _ = ravel_pytree(net)
    return _LONGEST * jnp.sqrt(jnp.mean(row**2))


def _gates(flow: AbstractFlow, net: AbstractNet) -> list[tuple[FrozenGate, Any]]:
    gates = net.frozen_gates(flow.problem.data.x)
    return list(zip(gates, net.activations, strict=True))


def _settled(frozen: _Frozen, row: Parameters, mode: Mode, rounding: Scalar) -> Mode:
    """The mode with signs by the derivatives there; those of them that are 0 slide, each
    with its leader for as long as theirs stay proportional, or rest if nothing depends on
    them."""
    gradient, hessian = frozen.gradient(row), frozen.hessian(row)
    zero = jnp.abs(gradient) <= rounding
    slides = zero & jnp.any(hessian != 0, axis=1)
    itself = jnp.arange(len(row), dtype=mode.leader.dtype)
    leader = jnp.where(mode.slides, mode.leader, itself)
    with_it = jax.vmap(lambda i: _parallel(hessian, leader[i])[i])(itself)
    leader = jnp.where(slides[leader] & with_it, leader, itself)
    kept = jnp.where(mode.signs != 0, mode.signs, 1.0)
    signs = jnp.where(zero, jnp.where(slides, kept, 0.0), jnp.sign(gradient))
    return Mode(signs, jnp.where(slides, leader, -1), mode.on)


def _parallel(hessian: Array, which: Array) -> Bool[Array, " parameters"]:
    """Whose derivatives are proportional to one, as far as their own derivatives tell."""
    row = hessian[which]
    products = hessian @ row
    lengths = jnp.sum(hessian**2, axis=1) * jnp.sum(row**2)
    return (lengths > 0) & (products**2 >= (1 - _PARALLEL) * lengths)
