"""By what a trajectory can be trusted without a reference: three numbers, whether the first
of them is as small as the tolerance promises, and how it was decided at kinks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._types import Scalar
from ..flows import AbstractFlow


# The certificate holds while the energy residual is below so many times the tolerance; but
# never above a per cent, and always below what no chattering solver comes down to.
_RESIDUAL_PER_TOLERANCE = 1e3
_STRICTEST, _LOOSEST = 2e-3, 1e-2


class CertificateWarning(UserWarning):
    """A solve whose energy identity fails by more than its tolerance explains."""


class Certificate(eqx.Module):
    r"""What must vanish along a gradient flow, measured over every accepted step.

    Attributes:
        energy_residual: $|E(0) - E(T) - \int \|\dot\theta\|^2 dt|$ over the larger of
            $|E(0)|, |E(T)|$, the integral carried with the state. The identity holds
            through crossings and slides, and fails when a solver chatters. E is the risk
            (with its penalty); log E in the clock of the loss; L₀(ρ) on the sphere for a
            localized escape flow.
        balance_drift: the largest drift of a conserved quantity, over the largest ‖θ‖².
        risk_increase: the largest rise of the risk over one accepted step.
        choices: at how many points the flow is not unique: a kink along which a neuron
            slides turned from attracting to repelling, so that either side could follow;
            or let go of a neuron that gradient descent holds for longer or shorter,
            depending on its step, where that moves θ by more than the tolerance.
        residual_limit: up to what energy residual the certificate holds: 1000 `rtol`, but
            between 2e-3, as for a descent, and 1e-2.
        verified: whether at all kinks it went on in regimes that are verified to be those
            of gradient descent, or there are none; not where gates went by the two sides
            of each kink (`gfdyn.solvers.ExactKinks` says where), or by the sign of z.
    """

    energy_residual: Scalar
    balance_drift: Scalar
    risk_increase: Scalar
    choices: Int[Array, "*batch"] | int = 0
    residual_limit: Float[Array, "*batch"] | float = _STRICTEST
    verified: Bool[Array, "*batch"] | bool = False

    @property
    def holds(self) -> Bool[Array, "*batch"]:
        """Whether the energy identity holds to what the tolerance promises; not if its
        residual is not a number."""
        return jnp.asarray(self.energy_residual <= self.residual_limit)


class Ledger(eqx.Module):
    """The running measurements from which the certificate is drawn."""

    initial_energy: Scalar
    initial_risk: Scalar
    energy: Scalar
    risk: Scalar
    largest_rise: Scalar
    initial_invariants: PyTree[Array]
    initial_log_scale: Scalar
    # The drift so far over the largest ‖θ‖² so far, and that norm.
    drift: Scalar
    largest_log_norm: Scalar


def open_ledger(flow: AbstractFlow, position: Any) -> Ledger:
    """The measurements at the start."""
    invariants, log_scale = flow.invariants(position)
    energy, risk = flow.energy(position), flow.risk(position)
    zero = jnp.zeros_like(energy)
    return Ledger(
        initial_energy=energy,
        initial_risk=risk,
        energy=energy,
        risk=risk,
        largest_rise=zero,
        initial_invariants=invariants,
        initial_log_scale=log_scale,
        drift=zero,
        largest_log_norm=flow.log_norm(position),
    )


def update_ledger(
    ledger: Ledger, flow: AbstractFlow, position: Any, log_time: Scalar
) -> Ledger:
    """The measurements after an accepted step that ends at this position and time."""
    risk = flow.risk(position)
    largest = jnp.maximum(ledger.largest_log_norm, flow.log_norm(position))
    values, log_scale = flow.invariants(position)
    # Both sides relative to the largest ‖θ‖² met, which keeps them in range.
    now = jnp.exp(log_scale - 2 * largest)
    decay = flow.log_invariant_decay(log_time)
    then = jnp.exp(ledger.initial_log_scale - 2 * largest + decay)
    drifts = [
        jnp.max(jnp.abs(now * value - then * initial), initial=0.0)
        for value, initial in zip(
            jax.tree.leaves(values),
            jax.tree.leaves(ledger.initial_invariants),
            strict=True,
        )
    ]
    faded = ledger.drift * jnp.exp(2 * (ledger.largest_log_norm - largest))
    return Ledger(
        initial_energy=ledger.initial_energy,
        initial_risk=ledger.initial_risk,
        energy=flow.energy(position),
        risk=risk,
        largest_rise=jnp.maximum(ledger.largest_rise, _rise(ledger.risk, risk)),
        initial_invariants=ledger.initial_invariants,
        initial_log_scale=ledger.initial_log_scale,
        drift=jnp.max(jnp.stack([faded, *drifts])),
        largest_log_norm=largest,
    )


def _rise(before: Scalar, after: Scalar) -> Scalar:
    """How much the risk rose; 0 where it fell, or is beyond overflow before and after."""
    rose = after > before
    return jnp.where(rose, after - jnp.where(rose, before, 0.0), 0.0)


def close_ledger(
    ledger: Ledger,
    dissipated: Scalar,
    choices: Int[Array, ""] | None = None,
    tolerance: float | Scalar = 0.0,
    verified: bool = True,
) -> Certificate:
    """The certificate of a trajectory that dissipated this much energy, and met so many
    choices, integrated at a relative tolerance, 0 for a descent, which has none; and
    whether it went on from kinks in verified regimes, as a descent does by itself."""
    change = ledger.initial_energy - ledger.energy
    scale = jnp.maximum(jnp.abs(ledger.initial_energy), jnp.abs(ledger.energy))
    scale = jnp.where(scale > 0, scale, 1.0)
    limit = jnp.clip(_RESIDUAL_PER_TOLERANCE * tolerance, _STRICTEST, _LOOSEST)
    return Certificate(
        energy_residual=jnp.abs(change - dissipated) / scale,
        balance_drift=ledger.drift,
        risk_increase=ledger.largest_rise,
        choices=jnp.zeros((), jnp.int32) if choices is None else choices,
        residual_limit=limit.astype(scale.dtype),
        verified=jnp.asarray(verified),
    )
