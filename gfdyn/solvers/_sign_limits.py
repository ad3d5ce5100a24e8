"""Where the sign flow switches, and how it goes on."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._by_layer import in_layers, in_one_row
from .._types import Scalar
from ..flows import AbstractFlow
from ..nets import AbstractNet
from ._base import Step
from ._sign_mode import FrozenRisk, Mode, SignField, parallel, settled


# Looks at a step for the first switch in it, and halvings that locate that
LOOKS, _HALVINGS = 8, 50
# What counts as 0 of a derivative or a pre-activation, relative to the largest, in units of
# the precision.
ROUNDING = 1e3
# A derivative in proportion to one that is located at 0 is there up to so many times it.
_NEAR = 10.0


class Limits(eqx.Module):
    """How far it is to each switch of a mode, in one row: of a derivative's sign, of a
    sliding parameter's speed to 1, of each pre-activation to 0. Below 0, the mode is wrong.
    """

    flow: AbstractFlow
    mode: Mode
    rounding: Scalar

    def room(self, position: AbstractNet) -> Array:
        """The distances, of parameters and then of sites."""
        frozen = FrozenRisk(self.flow, self.mode.on, position)
        row, mode = frozen.start, self.mode
        left = 1 - jnp.abs(SignField(self.flow, mode).speeds(frozen, row))
        moving = ~mode.slides & (mode.signs != 0)
        signed = jnp.where(moving, mode.signs * frozen.gradient(row), jnp.inf)
        of_signs = jnp.where(mode.leads, left, signed)
        return jnp.concatenate([of_signs, self._sides(position, frozen)])

    def tolerated(self, position: AbstractNet, error: Scalar) -> Array:
        """Below which distance there is a switch: 0 but for rounding; of a derivative that
        is off its 0 by no more than an error already, what it is at the position."""
        z, leads = self._scales(position), self.mode.leads
        eps = ROUNDING * jnp.finfo(z.dtype).eps
        rounding = jnp.concatenate(
            [jnp.where(leads, jnp.sqrt(eps), self.rounding), eps * z]
        )
        errors = jnp.concatenate([jnp.where(leads, 0.0, error), jnp.zeros_like(z)])
        return jnp.clip(self.room(position), -errors, 0.0) - rounding

    def _sides(self, position: AbstractNet, frozen: FrozenRisk) -> Array:
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


def first_switch(limits: Limits, trial: Step, least: Array, size: Scalar) -> Scalar:
    """The part of a step after which the first switch is due, 1 if there is none."""

    def wrong(fraction: Scalar) -> Bool[Array, ""]:
        return jnp.any(limits.room(trial.at(fraction * size).position) < least)

    looks = jnp.arange(1, LOOKS + 1, dtype=size.dtype) / LOOKS
    found = jax.lax.map(wrong, looks)
    late = jnp.where(jnp.any(found), looks[jnp.argmax(found)], 1.0)

    def halve(_: Array, bracket: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        early, late = bracket
        middle = (early + late) / 2
        over = wrong(middle)
        return jnp.where(over, early, middle), jnp.where(over, middle, late)

    def located() -> Scalar:
        bracket = (late - 1 / LOOKS, late)
        return jax.lax.fori_loop(0, _HALVINGS, halve, bracket)[1]

    return jax.lax.cond(jnp.any(found), located, lambda: jnp.ones_like(size))


def switched(
    limits: Limits, position: AbstractNet, which: Array
) -> tuple[Mode, Bool[Array, ""]]:
    """The mode after a switch, and whether the flow goes on in it."""
    flow, mode = limits.flow, limits.mode
    parameters = len(mode.signs)

    def of_sign() -> tuple[Mode, Bool[Array, ""]]:
        frozen = FrozenRisk(flow, mode.on, position)
        row, leads = frozen.start, mode.leads[which]
        gradient, hessian = frozen.gradient(row), frozen.hessian(row)
        lengths = jnp.linalg.norm(hessian, axis=1)
        ratio = lengths / jnp.where(lengths[which] > 0, lengths[which], 1.0)
        at_zero = jnp.abs(gradient) <= _NEAR * (1 + ratio) * limits.rounding
        with_it = parallel(hessian, which) & at_zero & ~mode.slides & (mode.signs != 0)
        together = jnp.where(leads, mode.leader == which, with_it)
        together = together.at[which].set(True)
        speed = SignField(flow, mode).speeds(frozen, row)[which]
        let_go = -jnp.sign(speed) * mode.signs
        crossed = Mode(jnp.where(together, -mode.signs, mode.signs), mode.leader, mode.on)
        behind = SignField(flow, crossed).velocity(frozen, row)
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
        frozen = FrozenRisk(flow, gates, position)
        row = frozen.start
        opened = Mode(mode.signs, mode.leader, gates)
        after = settled(frozen, row, opened, limits.rounding)
        velocity = SignField(flow, after).velocity(frozen, row)
        rate = jax.jvp(frozen.preactivations, (row,), (velocity,))[1][site]
        return after, jnp.where(on[site], rate, -rate) >= 0

    if not mode.on:
        return of_sign()
    return jax.lax.cond(which < parameters, of_sign, of_gate)
