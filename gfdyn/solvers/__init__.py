"""How a flow is integrated."""

from ._adaptive import Adaptive as Adaptive
from ._base import (
    AbstractSolver as AbstractSolver,
    Events as Events,
    GateChanges as GateChanges,
    Step as Step,
    no_events as no_events,
)
from ._exact_kinks import ExactKinks as ExactKinks
from ._sign_switches import SignSwitches as SignSwitches
from ._stabilised import Stabilised as Stabilised
