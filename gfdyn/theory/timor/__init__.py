"""Timor, Vardi, Shamir: Implicit regularization towards rank minimization in ReLU networks.

Their statements with both sides computed, their networks and sets, and closed forms of
what is exact. Samples are rows here and columns there: X and Y are transposed.

Section 3 is about two points of the plane at an angle φ (`gf.data.two_points`) and two
hidden neurons, w_i = `net.weights[0][i]` and v_i = `net.weights[1][:, i]`. Its loss is a
sum over the points: `gf.Problem(data, gf.losses.squared, reduction="sum")`.
"""

from ._along_the_flow import (
    gradient_domination as gradient_domination,
    limit_is_the_closed_form as limit_is_the_closed_form,
    lone_neurons_move_along_their_point as lone_neurons_move_along_their_point,
    matched_block_invariants as matched_block_invariants,
    neurons_stay_balanced as neurons_stay_balanced,
)
from ._bounds import (
    dead_neuron_loss as dead_neuron_loss,
    far_angles as far_angles,
    far_norms as far_norms,
    far_probability as far_probability,
    far_radius as far_radius,
    far_singular_ratio as far_singular_ratio,
    far_stable_rank as far_stable_rank,
    limit_angles as limit_angles,
    limit_norms as limit_norms,
    rank_two_radius as rank_two_radius,
)
from ._certificates import (
    norm_ratio_floor as norm_ratio_floor,
    ratio_certificate as ratio_certificate,
)
from ._closed_forms import (
    escape_time as escape_time,
    matched_growth as matched_growth,
    matched_limit as matched_limit,
    matched_limit_growth as matched_limit_growth,
    matched_trajectory as matched_trajectory,
    overlapping_limit as overlapping_limit,
    singular_ratio_of_rows as singular_ratio_of_rows,
    stable_rank_of_rows as stable_rank_of_rows,
)
from ._cone_log import ConeLog as ConeLog, cone_log as cone_log
from ._cones import (
    CONES as CONES,
    cone_openings as cone_openings,
    cones as cones,
    in_limit_set as in_limit_set,
    in_reachable_set as in_reachable_set,
    is_matched as is_matched,
    point_coordinates as point_coordinates,
)
from ._constructions import (
    interpolating_net as interpolating_net,
    rank_one_net as rank_one_net,
    rank_one_net_fits as rank_one_net_fits,
)
from ._deep import (
    equal_layer_norms as equal_layer_norms,
    maximum_margin_bound as maximum_margin_bound,
    maximum_margin_ratios as maximum_margin_ratios,
    minimum_norm_bound as minimum_norm_bound,
    minimum_norm_ratios as minimum_norm_ratios,
    optimal_layer_norms as optimal_layer_norms,
)
from ._ensemble import (
    Ends as Ends,
    descent_ends as descent_ends,
    flow_ends as flow_ends,
    random_pairs as random_pairs,
)
from ._kkt import KKT as KKT, kkt as kkt
from ._limits import (
    dead_neurons_are_frozen as dead_neurons_are_frozen,
    dead_neurons_cost as dead_neurons_cost,
    fit_has_no_dead_neuron as fit_has_no_dead_neuron,
    fitted_neuron_norms as fitted_neuron_norms,
    limit_has_rank_two as limit_has_rank_two,
    limit_is_far_from_rank_one as limit_is_far_from_rank_one,
    lone_neurons_are_reachable as lone_neurons_are_reachable,
    low_rank_fit_is_opposed as low_rank_fit_is_opposed,
    matched_limit_bounds as matched_limit_bounds,
)
from ._minimum_norm import (
    Optimum as Optimum,
    maximum_margin as maximum_margin,
    minimum_norm as minimum_norm,
)
from ._setting import (
    data_assumptions as data_assumptions,
    inputs_angle as inputs_angle,
    targets_angle as targets_angle,
)
from ._type_probabilities import (
    heuristic_fit_probability as heuristic_fit_probability,
    heuristic_neuron_probabilities as heuristic_neuron_probabilities,
    heuristic_type_probabilities as heuristic_type_probabilities,
)
from ._witness import (
    equal_layers as equal_layers,
    maximum_margin_witness as maximum_margin_witness,
    minimum_norm_witness as minimum_norm_witness,
)
