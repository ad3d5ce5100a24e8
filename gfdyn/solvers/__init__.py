"""How a flow is integrated."""

from ._adaptive import Adaptive as Adaptive
from ._base import AbstractSolver as AbstractSolver, Step as Step
