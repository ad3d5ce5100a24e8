"""Where pre-activations are 0: sites, regimes, and the velocity along kinks."""

from ._decision import (
    Decision as Decision,
    FirstProposal as FirstProposal,
    decide as decide,
)
from ._masks import (
    any_of as any_of,
    both as both,
    count as count,
    either as either,
    masked as masked,
    samples_of as samples_of,
    smallest as smallest,
    without as without,
)
from ._near_kinks import (
    drift as drift,
    kink_sizes as kink_sizes,
    near_kinks as near_kinks,
    rounding_of as rounding_of,
    slack as slack,
    sliding_along as sliding_along,
)
from ._openness import Openness as Openness
from ._play import offset_of as offset_of
from ._regime import KinkRegime as KinkRegime, regime as regime
from ._shared import SharedKinks as SharedKinks, shared_kinks as shared_kinks
from ._sites import (
    GateState as GateState,
    Linearisation as Linearisation,
    awaiting as awaiting,
    captured as captured,
    constant as constant,
    flipped as flipped,
    flips as flips,
    linearise as linearise,
    live_gates as live_gates,
    nowhere as nowhere,
    preactivations as preactivations,
    returning as returning,
    standing as standing,
    through_gates as through_gates,
    values_of as values_of,
    z_rates as z_rates,
    zeros_at as zeros_at,
)
from ._sliding import (
    FieldEvaluation as FieldEvaluation,
    back_along as back_along,
    back_to_kinks as back_to_kinks,
    evaluate_along as evaluate_along,
    evaluate_field as evaluate_field,
    gate_values as gate_values,
)
from ._slots import (
    NONE as NONE,
    OFF as OFF,
    ON as ON,
    SLIDING as SLIDING,
    Slots as Slots,
    States as States,
    no_alternative as no_alternative,
    places_among as places_among,
    slots_of as slots_of,
    states_of as states_of,
)
from ._tangent import TangentNetwork as TangentNetwork, tangent_network as tangent_network
