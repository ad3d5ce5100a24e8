"""gfdyn: the exact gradient flow of ReLU networks."""

from importlib.metadata import version as _version

from . import (
    data as data,
    diagnostics as diagnostics,
    escape as escape,
    flows as flows,
    losses as losses,
    nets as nets,
    solvers as solvers,
    stopping as stopping,
    sweeps as sweeps,
    theory as theory,
)
from ._cache import enable_cache as enable_cache
from ._certificate import (
    Certificate as Certificate,
    CertificateWarning as CertificateWarning,
)
from ._continuation import concatenate as concatenate
from ._descent import DescentState as DescentState, descend as descend
from ._distance import Distance as Distance, distance as distance
from ._kinks import Kinks as Kinks
from ._problem import Problem as Problem
from ._rates import NormScaledRate as NormScaledRate, SteppedRate as SteppedRate
from ._results import RESULTS as RESULTS
from ._saving import AcceptedSteps as AcceptedSteps
from ._solve import solve as solve
from ._trajectory import (
    SolveError as SolveError,
    Trajectory as Trajectory,
    load as load,
)
from .data import Dataset as Dataset
from .flows import EscapeFlow as EscapeFlow, GradientFlow as GradientFlow


__version__ = _version("gfdyn")
