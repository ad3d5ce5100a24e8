"""Escape directions and speeds in closed form, or certified."""

from ._bounds import SpeedBounds as SpeedBounds, speed_bounds as speed_bounds
from ._closed_forms import (
    orthogonal_optimum as orthogonal_optimum,
    orthogonal_speed as orthogonal_speed,
    rank_one_optimum as rank_one_optimum,
    rank_one_speed as rank_one_speed,
)
from ._direction import EscapeDirection as EscapeDirection
from ._examples import (
    circle_depth_four as circle_depth_four,
    circle_rank_one as circle_rank_one,
    circle_rank_two as circle_rank_two,
    rank_one_speed_at as rank_one_speed_at,
)
from ._growth import (
    blow_up_time as blow_up_time,
    escape_time as escape_time,
    explosion_radius as explosion_radius,
    log_blow_up_time as log_blow_up_time,
    log_escape_time as log_escape_time,
    log_explosion_radius as log_explosion_radius,
    tau_of_unit_sphere_time as tau_of_unit_sphere_time,
    unit_sphere_speed as unit_sphere_speed,
    unit_sphere_time as unit_sphere_time,
)
from ._linear import (
    linear_critical_point as linear_critical_point,
    linear_hessian_spectrum as linear_hessian_spectrum,
    linear_map as linear_map,
    linear_optimum as linear_optimum,
    linear_speed as linear_speed,
)
from ._planar import PlanarOptima as PlanarOptima, planar_optimum as planar_optimum
from ._programs import (
    DepthThreeOptimum as DepthThreeOptimum,
    depth_three_optimum as depth_three_optimum,
)
