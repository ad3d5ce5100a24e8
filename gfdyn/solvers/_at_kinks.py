"""What becomes of a step that meets kinks."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..kinks import any_of, constant, count, without
from ..nets import per_layer
from ._adaptive import Adaptive
from ._correction import correction_of
from ._localisation import cut, first_event, outcome_of_cut
from ._located import step_without_events
from ._settle import Arrival, settle
from ._span import Outcome, Span


# So few events are taken one by one rather than to try a smaller step.
_FEW = 8


def at_kinks(
    span: Span,
    accepted: Bool[Array, ""],
    tolerances: Adaptive,
    pressed: Bool[Array, ""],
    locating: bool,
    loop_kind: str,
) -> Outcome:
    """What becomes of a step at the kinks that it meets, if its smooth part is `accepted`.

    All are corrected for at once. If `locating`, the step is cut at the first event where
    that is not accurate enough, and gets further than a smaller step would; or where events
    are few, or the attempt before was rejected for its kinks, too (`pressed`).
    """
    looks = span.looks()
    last, times = span.beyond(looks)
    met = any_of(per_layer(lambda t: t > 0, times)) | any_of(span.gates.sliding)
    smooth = step_without_events(span)

    def kinked() -> Outcome:
        correction = correction_of(span, last, times)

        def whole(_: Outcome) -> tuple[Array, Arrival]:
            return jnp.asarray(True), correction.arrival

        def located(corrected: Outcome) -> tuple[Array, Arrival]:
            time, gates = first_event(constant(span), constant(looks))
            further = time >= 0.5 * corrected.factor * span.size
            released = without(span.gates.sliding, corrected.gates.sliding)
            number = count(last) + count(released)
            few = (number > 0) & (number <= _FEW)
            worthwhile = (time < span.size) & (further | few | pressed)
            return worthwhile, cut(span, time, gates)

        def trial(before: Outcome, cutting: Bool[Array, ""]) -> tuple[Outcome, None]:
            """One place that settles for both, as it is most of what is compiled."""

            def attempt() -> Outcome:
                worthwhile, arrival = jax.lax.cond(cutting, located, whole, before)

                def arrived() -> Outcome:
                    settled = settle(span, arrival, loop_kind)
                    after = jax.lax.cond(
                        cutting,
                        lambda: outcome_of_cut(span, arrival, settled),
                        lambda: correction.outcome(settled, tolerances),
                    )
                    return eqx.tree_at(lambda o: o.cost, after, before.cost + after.cost)

                return jax.lax.cond(worthwhile, arrived, lambda: before)

            done = cutting & before.accepted
            return jax.lax.cond(done, lambda: before, attempt), None

        trials = jnp.asarray([False, True] if locating else [False])
        return jax.lax.scan(trial, smooth, trials)[0]

    outcome = jax.lax.cond(accepted & met, kinked, lambda: smooth)
    # The looks for kinks are forward passes.
    return eqx.tree_at(lambda o: o.cost, outcome, outcome.cost + 1)
