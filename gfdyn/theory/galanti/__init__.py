"""Galanti & Poggio: SGD noise and implicit low-rank bias in deep neural networks.

Their statements with both sides computed, and what goes with them: the laws that decay
makes exact, and the continuous time that the paper does not have. λ is that of the penalty
λ‖W‖², whose gradient is 2λW: half of what torch calls weight decay.
"""

from ._batches import all_batches as all_batches, sampled_batches as sampled_batches
from ._collinear import collinear_convergence_point as collinear_convergence_point
from ._jacobians import (
    Factors as Factors,
    jacobian_factors as jacobian_factors,
    low_rank_batch_gradients as low_rank_batch_gradients,
    low_rank_batch_jacobians as low_rank_batch_jacobians,
    low_rank_jacobians as low_rank_jacobians,
    scale_invariance as scale_invariance,
)
from ._laws import (
    balance_decay as balance_decay,
    balance_step as balance_step,
    collapse_threshold as collapse_threshold,
    column_sum_law as column_sum_law,
    null_space_law as null_space_law,
    survival as survival,
)
from ._low_rank import (
    batch_gradient_norms as batch_gradient_norms,
    low_rank_distance as low_rank_distance,
)
from ._memory import (
    companion as companion,
    forgetting_exponent as forgetting_exponent,
    low_rank_unrolled as low_rank_unrolled,
    memory_bound as memory_bound,
    memory_span as memory_span,
)
from ._normalised import (
    Normalised as Normalised,
    normalised as normalised,
    normalised_descent as normalised_descent,
    normalised_flow as normalised_flow,
    normalised_rank as normalised_rank,
    on_spheres as on_spheres,
    projection_identity as projection_identity,
)
from ._quantities import distance_to_rank as distance_to_rank
from ._sample_bound import sample_bound as sample_bound
from ._sde import (
    gradient_noise as gradient_noise,
    sgd_diffusion as sgd_diffusion,
    subset_variance as subset_variance,
)
from ._stationarity import (
    Stationarity as Stationarity,
    collinearity as collinearity,
    fitted_or_zero as fitted_or_zero,
    jacobian_collinearity as jacobian_collinearity,
    stationarity as stationarity,
    zero_or_collinear as zero_or_collinear,
)
from ._switched import low_rank_window as low_rank_window, switched_flow as switched_flow
