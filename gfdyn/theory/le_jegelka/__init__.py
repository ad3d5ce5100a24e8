"""Le & Jegelka: training invariances and the low-rank phenomenon, as corrected.

Their statements with both sides computed: `version="corrected"`, the default, and where it
differs `version="first"`, which is false for ReLU layers.
"""

from ._counterexample import (
    counterexample as counterexample,
    counterexample_square as counterexample_square,
)
from ._decomposition import (
    Decomposition as Decomposition,
    decompose as decompose,
    path_decomposition as path_decomposition,
)
from ._descent_slack import (
    product_bound as product_bound,
    slack_bound as slack_bound,
    slack_identity as slack_identity,
)
from ._drifts import (
    matrix_wise_drift as matrix_wise_drift,
    vertex_wise_drift as vertex_wise_drift,
)
from ._edges import (
    edge_wise as edge_wise,
    edge_wise_drift as edge_wise_drift,
    is_printed_layer as is_printed_layer,
)
from ._flattenings import (
    flattening_inequality as flattening_inequality,
    free_block_inequality as free_block_inequality,
)
from ._graph import path_count as path_count
from ._invariances import (
    matrix_wise as matrix_wise,
    pairwise as pairwise,
    vertex_wise as vertex_wise,
)
from ._jagged import (
    JaggedPaths as JaggedPaths,
    jagged_path_sums as jagged_path_sums,
    jagged_paths as jagged_paths,
)
from ._low_rank import (
    TailConstants as TailConstants,
    alignment_bound as alignment_bound,
    ratio_bound as ratio_bound,
    step_inequality as step_inequality,
    tail_bound as tail_bound,
    tail_constants as tail_constants,
    telescoped_inequality as telescoped_inequality,
)
from ._noninvariance import (
    gram_velocity_ranks as gram_velocity_ranks,
    noninvariance as noninvariance,
)
from ._path_tree import PathTree as PathTree
from ._patterns import same_patterns as same_patterns
from ._regimes import (
    Regime as Regime,
    near_the_limit_signs_agree as near_the_limit_signs_agree,
    regime as regime,
    rescaling_keeps_patterns as rescaling_keeps_patterns,
    small_risk_separates as small_risk_separates,
)
from ._singular_values import neighbouring_singular_values as neighbouring_singular_values
from ._subdifferentials import (
    equal_path_subdifferentials as equal_path_subdifferentials,
    path_subdifferentials as path_subdifferentials,
)
from ._tail import (
    Member as Member,
    TailSpectra as TailSpectra,
    alignment as alignment,
    linear_tail as linear_tail,
    tail_spectra as tail_spectra,
)
