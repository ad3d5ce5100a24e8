"""What a sweep computes: its settings, axes and points."""

from ._axes import linear as linear, log as log, seeds as seeds, short_names as short_names
from ._build import (
    batch_key as batch_key,
    draw_net as draw_net,
    has_doubles as has_doubles,
    load_dataset as load_dataset,
    make_net as make_net,
    make_problem as make_problem,
)
from ._fields import plain as plain
from ._memory import check_memory as check_memory, num_parameters as num_parameters
from ._plan import PointBatch as PointBatch, make_plan as make_plan, resolved as resolved
from ._settings import (
    NUM_SAMPLES as NUM_SAMPLES,
    DataName as DataName,
    DescentSettings as DescentSettings,
    EscapeSettings as EscapeSettings,
    FlowSettings as FlowSettings,
    LossName as LossName,
    NetSettings as NetSettings,
    Point as Point,
    ProblemSettings as ProblemSettings,
    Recipe as Recipe,
    SolverSettings as SolverSettings,
)
from ._spec import EngineSettings as EngineSettings, Spec as Spec
from ._toml import (
    as_table as as_table,
    format_spec as format_spec,
    parse_spec as parse_spec,
    read_spec as read_spec,
    write_spec as write_spec,
)
