"""Sweeps over scale, depth, width, seed and data: one spec, one folder, any machine."""

from ._axes import linear as linear, log as log, seeds as seeds
from ._collect import (
    Status as Status,
    collect as collect,
    outcomes as outcomes,
    status as status,
)
from ._first_escape import escapes as escapes
from ._page import report as report
from ._run import run as run
from ._settings import (
    DescentSettings as DescentSettings,
    EscapeSettings as EscapeSettings,
    FlowSettings as FlowSettings,
    NetSettings as NetSettings,
    ProblemSettings as ProblemSettings,
    SolverSettings as SolverSettings,
)
from ._spec import EngineSettings as EngineSettings, Spec as Spec
from ._toml import (
    format_spec as format_spec,
    parse_spec as parse_spec,
    read_spec as read_spec,
    write_spec as write_spec,
)
