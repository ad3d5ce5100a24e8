"""Bantzis, Simon, Jacot: Saddle-to-saddle dynamics in deep ReLU networks.

Their statements with both sides computed: `STATEMENT(problem, net, ...) -> Check`. Samples
are rows here and columns there: X, G, Z_l are transposed. Where they are misprinted, the
docstring says so.
"""

from ._escape import (
    balance_law as balance_law,
    deepening_never_loses as deepening_never_loses,
    escape_direction_balance as escape_direction_balance,
    explosion_law as explosion_law,
    output_bound as output_bound,
)
from ._near_rank_one import (
    near_rank_one_gain as near_rank_one_gain,
    near_rank_one_input as near_rank_one_input,
    near_rank_one_speed as near_rank_one_speed,
)
from ._products import (
    product_inequality as product_inequality,
    rank_one_layer_count as rank_one_layer_count,
)
from ._rank_one import (
    non_vacuous_depth as non_vacuous_depth,
    nonnegative_singular_pair as nonnegative_singular_pair,
    optimal_speed_bounds as optimal_speed_bounds,
    rank_one_bound as rank_one_bound,
    rank_one_constant as rank_one_constant,
    rank_one_layers as rank_one_layers,
    singular_pair_is_nonnegative as singular_pair_is_nonnegative,
    speed_ratio as speed_ratio,
)
