"""Sweeps over scale, depth, width, seed and data: one spec, one folder, any machine."""

from .results import (
    Status as Status,
    collect as collect,
    escapes as escapes,
    outcomes as outcomes,
    report as report,
    status as status,
)
from .run import run as run
from .spec import (
    DescentSettings as DescentSettings,
    EngineSettings as EngineSettings,
    EscapeSettings as EscapeSettings,
    FlowSettings as FlowSettings,
    NetSettings as NetSettings,
    ProblemSettings as ProblemSettings,
    SolverSettings as SolverSettings,
    Spec as Spec,
    format_spec as format_spec,
    linear as linear,
    log as log,
    parse_spec as parse_spec,
    read_spec as read_spec,
    seeds as seeds,
    write_spec as write_spec,
)
