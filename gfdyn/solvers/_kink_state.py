"""What `ExactKinks` remembers between steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._by_layer import per_layer
from .._types import Mask, Scalar, Sites
from ..kinks import FieldEvaluation, GateState, SharedKinks, both
from ._controller import ControllerState, Verdict
from ._stiffness import Stiffness
from ._trial_step import Outcome


# A step that is cut to this part of its length takes next to no time.
_INSTANT = 1e-5
# In networks with so few gates the multipliers of those that slide are solved for at each
# stage, and kinks located where correcting for them is not accurate enough.
_SMALL_NETWORK = 4096


class KinkState(eqx.Module):
    """What `ExactKinks` carries from step to step."""

    controller: ControllerState
    gates: GateState
    shared: SharedKinks
    # The field where the next step starts, and how fast its multipliers change
    evaluation: FieldEvaluation
    nu_rate: Sites
    # Over how long it is judged which gates matter
    horizon: Scalar
    # Whether the last attempt was rejected for its kinks
    rejected_at_kinks: Bool[Array, ""]
    # The sites decided on in steps of next to no length just now, and those that came up
    # there again: where kinks depend on each other, each may undo what another decides.
    # These stay live until time has passed.
    flipped_this_instant: Mask
    kept_live: Mask
    # The sites left beyond their kinks
    on_wrong_side: Mask
    # How far from its kink the last play has left each site; empty if regimes are not
    # verified
    left_at: Sites
    # None for methods other than Tsit5
    stiffness: Stiffness | None


def after_attempt(
    before: KinkState,
    gates: GateState,
    verdict: Verdict,
    outcome: Outcome,
    size: Scalar,
    horizon: Scalar,
    stiffness: Stiffness | None,
) -> KinkState:
    """The solver's state after an attempt."""

    def rate(slid: Array, slides: Array, nu0: Array, nu1: Array) -> Array:
        return jnp.where(slid & slides, (nu1 - nu0) / size, 0.0)

    rates = per_layer(
        rate,
        gates.sliding,
        outcome.gates.sliding,
        before.evaluation.nu,
        outcome.evaluation.nu,
    )
    rates = jax.lax.stop_gradient(rates)
    accepted = verdict.accepted & outcome.accepted
    kept, shared, evaluation, nu_rate, on_wrong_side, left_at = jax.lax.cond(
        accepted,
        lambda: (
            outcome.gates,
            outcome.shared,
            outcome.evaluation,
            rates,
            outcome.on_wrong_side,
            outcome.left_at,
        ),
        lambda: (
            before.gates,
            before.shared,
            before.evaluation,
            before.nu_rate,
            before.on_wrong_side,
            before.left_at,
        ),
    )
    instant = outcome.size <= _INSTANT * size

    def through_instant(now: Mask, old: Mask) -> Mask:
        return per_layer(lambda n, o: jnp.where(accepted, (n | o) & instant, o), now, old)

    again = both(outcome.crossed, before.flipped_this_instant)
    return KinkState(
        verdict.controller,
        kept,
        shared,
        evaluation,
        nu_rate,
        horizon,
        rejected_at_kinks=verdict.accepted & ~outcome.accepted,
        flipped_this_instant=through_instant(outcome.crossed, before.flipped_this_instant),
        kept_live=through_instant(again, before.kept_live),
        on_wrong_side=on_wrong_side,
        left_at=left_at,
        stiffness=stiffness,
    )


def num_sites(gates: GateState) -> int:
    """How many sites there are: units × samples."""
    return sum(on.size for on in gates.on)


def is_stacked(gates: GateState) -> bool:
    """Whether there are sites above others: of several layers."""
    return len(gates.on) > 1


def is_small(gates: GateState) -> bool:
    """Whether all sites at kinks of such a network can be looked at together."""
    return num_sites(gates) <= _SMALL_NETWORK
