"""What the theory speaks of: `NAME(problem, net) -> arrays`, jit-able.

One entry a layer where that is meant. Pass any of them in `record=` of `gf.solve`, or to
`Trajectory.measure`; options go through `functools.partial`.
"""

from ._balance import (
    balance as balance,
    layer_norms as layer_norms,
    neuron_balance as neuron_balance,
)
from ._clarke import (
    Subgradient as Subgradient,
    minimum_norm_subgradient as minimum_norm_subgradient,
    subgradient_norm as subgradient_norm,
)
from ._classification import margin as margin, normalised_margin as normalised_margin
from ._energy import (
    gradient_norm as gradient_norm,
    hessian_eigenvalues as hessian_eigenvalues,
    log_risk as log_risk,
    risk as risk,
    sharpness as sharpness,
)
from ._escape import direction as direction, escape_speed as escape_speed
from ._features import (
    alignment as alignment,
    kink_count as kink_count,
    nonlinearity as nonlinearity,
)
from ._invariants import (
    GramVelocity as GramVelocity,
    edge_balance as edge_balance,
    gram_drift as gram_drift,
    gram_velocities as gram_velocities,
    invariant_rates as invariant_rates,
    invariants as invariants,
    is_layer as is_layer,
    signatures as signatures,
)
from ._norm_ratio import mean_norm_ratio as mean_norm_ratio, norm_ratio as norm_ratio
from ._ranks import average_rank as average_rank, layer_ranks as layer_ranks
from ._smoothed_margin import smoothed_margin as smoothed_margin
from ._spectra import (
    effective_rank as effective_rank,
    numerical_rank as numerical_rank,
    singular_values as singular_values,
    stable_rank as stable_rank,
    tail as tail,
)
from ._tangent_kernel import (
    ntk as ntk,
    ntk_alignment as ntk_alignment,
    ntk_change as ntk_change,
)
from ._training import accuracy as accuracy, epoch_distance as epoch_distance
