"""One run of a flow: the loop in time, what is kept of it, and files."""

from ._begin import begin as begin
from ._certificate import (
    Certificate as Certificate,
    CertificateWarning as CertificateWarning,
    Ledger as Ledger,
    close_ledger as close_ledger,
    open_ledger as open_ledger,
    update_ledger as update_ledger,
)
from ._compiling import announced as announced, counted as counted, tracing as tracing
from ._continuation import concatenate as concatenate
from ._course import Course as Course
from ._descent_state import DescentState as DescentState
from ._distance import Distance as Distance, distance as distance
from ._integrate import advance as advance
from ._kink_log import Kinks as Kinks
from ._lanes import lane as lane
from ._load import load as load
from ._results import (
    RESULTS as RESULTS,
    SUCCESSES as SUCCESSES,
    choose as choose,
    is_ok as is_ok,
    name_of as name_of,
    reason_of as reason_of,
)
from ._saving import AcceptedSteps as AcceptedSteps
from ._serialise import decode as decode, encode as encode
from ._solve import make_task as make_task, solve as solve
from ._summary import solver_of as solver_of
from ._task import Progress as Progress, Task as Task
from ._to_trajectory import to_trajectory as to_trajectory
from ._trajectory import (
    Measure as Measure,
    SolveError as SolveError,
    Trajectory as Trajectory,
    checked_record as checked_record,
    hashable as hashable,
    measure as measure,
    raise_unless_ok as raise_unless_ok,
    with_compilations as with_compilations,
)
