"""Figures: one style, functions `(ax, dataset) -> None` on `Trajectory.to_xarray()`, and
`plot`, which draws all of a trajectory in one call.

The functions draw on the axes they are given and leave figures, sizes and files to the
caller. matplotlib is loaded when something is drawn, pyplot never.
"""

from ._caption import caption as caption
from ._labels import label_ends as label_ends
from ._overview import plot as plot
from ._style import (
    ONE_COLUMN as ONE_COLUMN,
    PALETTE as PALETTE,
    TWO_COLUMNS as TWO_COLUMNS,
    shades as shades,
    style as style,
)
from ._trajectory import (
    balance_drift as balance_drift,
    episodes as episodes,
    escape_speed as escape_speed,
    log_risk as log_risk,
    loss as loss,
    radius as radius,
    singular_values as singular_values,
    stable_rank as stable_rank,
    zoom_on_change as zoom_on_change,
)
