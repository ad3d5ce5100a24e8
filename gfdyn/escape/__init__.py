"""Escape directions of saddles: the search for them, closed forms, certificates."""

from ._rewrite import deepen as deepen, rebalance as rebalance
from .chain import (
    Chain as Chain,
    Passage as Passage,
    Saddle as Saddle,
    chain as chain,
    spectral as spectral,
)
from .episodes import (
    Episodes as Episodes,
    Escapes as Escapes,
    Plateaus as Plateaus,
    aligned as aligned,
    episodes as episodes,
)
from .exact import (
    DepthThreeOptimum as DepthThreeOptimum,
    EscapeDirection as EscapeDirection,
    PlanarOptima as PlanarOptima,
    SpeedBounds as SpeedBounds,
    blow_up_time as blow_up_time,
    circle_depth_four as circle_depth_four,
    circle_rank_one as circle_rank_one,
    circle_rank_two as circle_rank_two,
    depth_three_optimum as depth_three_optimum,
    escape_time as escape_time,
    explosion_radius as explosion_radius,
    linear_critical_point as linear_critical_point,
    linear_hessian_spectrum as linear_hessian_spectrum,
    linear_map as linear_map,
    linear_optimum as linear_optimum,
    linear_speed as linear_speed,
    log_blow_up_time as log_blow_up_time,
    log_escape_time as log_escape_time,
    log_explosion_radius as log_explosion_radius,
    orthogonal_optimum as orthogonal_optimum,
    orthogonal_speed as orthogonal_speed,
    planar_optimum as planar_optimum,
    rank_one_optimum as rank_one_optimum,
    rank_one_speed as rank_one_speed,
    rank_one_speed_at as rank_one_speed_at,
    speed_bounds as speed_bounds,
    tau_of_unit_sphere_time as tau_of_unit_sphere_time,
    unit_sphere_speed as unit_sphere_speed,
    unit_sphere_time as unit_sphere_time,
)
from .search import (
    Descent as Descent,
    Directions as Directions,
    FallingRate as FallingRate,
    SphereHessian as SphereHessian,
    clarke_residual as clarke_residual,
    projected_descent as projected_descent,
    search as search,
    sphere_hessian as sphere_hessian,
)
