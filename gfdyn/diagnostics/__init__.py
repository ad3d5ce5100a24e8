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
from ._spectra import (
    effective_rank as effective_rank,
    numerical_rank as numerical_rank,
    singular_values as singular_values,
    stable_rank as stable_rank,
    tail as tail,
)
