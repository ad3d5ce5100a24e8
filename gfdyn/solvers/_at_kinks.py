"""What becomes of a step that meets kinks."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._by_layer import per_layer
from ..kinks import any_of, constant, count, without
from ._adaptive import Adaptive
from ._correction import correction_of
from ._localisation import cut, first_event, outcome_of_cut
from ._located import step_without_events
from ._resolution import Proposal, resolve_gates
from ._trial_step import Outcome, TrialStep


# So few events are taken one by one rather than to try a smaller step.
_FEW = 8


def at_kinks(
    trial: TrialStep,
    accepted: Bool[Array, ""],
    tolerances: Adaptive,
    rejected_at_kinks: Bool[Array, ""],
    locating: bool,
    loop_kind: str,
) -> Outcome:
    """What becomes of a step at the kinks that it meets, if its smooth part is `accepted`.

    All are corrected for at once. If `locating`, the step is cut at the first event where
    that is not accurate enough, and gets further than a smaller step would; or where events
    are few, or the attempt before was rejected for its kinks, too (`pressed`).
    """
    margin_samples = trial.margin_samples()
    last, times = trial.beyond(margin_samples)
    met = any_of(per_layer(lambda t: t > 0, times)) | any_of(trial.gates.sliding)
    untouched = step_without_events(trial)

    def kinked() -> Outcome:
        correction = correction_of(trial, last, times)

        def whole(_: Outcome) -> tuple[Array, Proposal]:
            return jnp.asarray(True), correction.proposal

        def located(corrected: Outcome) -> tuple[Array, Proposal]:
            time, gates = first_event(constant(trial), constant(margin_samples))
            further = time >= 0.5 * corrected.factor * trial.size
            released = without(trial.gates.sliding, corrected.gates.sliding)
            number = count(last) + count(released)
            few = (number > 0) & (number <= _FEW)
            worthwhile = (time < trial.size) & (further | few | rejected_at_kinks)
            return worthwhile, cut(trial, time, gates)

        def tried(before: Outcome, cutting: Bool[Array, ""]) -> tuple[Outcome, None]:
            """One place that resolves gates for both, as it is most of what is compiled."""

            def attempt() -> Outcome:
                worthwhile, proposal = jax.lax.cond(cutting, located, whole, before)

                def arrived() -> Outcome:
                    resolution = resolve_gates(trial, proposal, loop_kind)
                    after = jax.lax.cond(
                        cutting,
                        lambda: outcome_of_cut(trial, proposal, resolution),
                        lambda: correction.outcome(resolution, tolerances, locating),
                    )
                    return eqx.tree_at(lambda o: o.cost, after, before.cost + after.cost)

                return jax.lax.cond(worthwhile, arrived, lambda: before)

            done = cutting & before.accepted
            return jax.lax.cond(done, lambda: before, attempt), None

        trials = jnp.asarray([False, True] if locating else [False])
        return jax.lax.scan(tried, untouched, trials)[0]

    outcome = jax.lax.cond(accepted & met, kinked, lambda: untouched)
    # The looks for kinks are forward passes.
    return eqx.tree_at(lambda o: o.cost, outcome, outcome.cost + 1)
