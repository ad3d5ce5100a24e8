"""Right-hand sides: gradient flow and its escape coordinates, each in a clock."""

from ._base import AbstractFlow as AbstractFlow, Field as Field, State as State
from ._branch import Branches as Branches, BranchFlow as BranchFlow
from ._escape import EscapeFlow as EscapeFlow, Polar as Polar
from ._gradient import GradientFlow as GradientFlow
from ._momentum import MomentumFlow as MomentumFlow, Moving as Moving
from ._sign import SignFlow as SignFlow
