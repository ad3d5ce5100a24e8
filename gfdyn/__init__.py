"""gfdyn: the exact gradient flow of ReLU networks.

A problem is data and a loss. A flow of it, integrated from a net, is a trajectory, with
what was recorded along it and a certificate that says whether to trust it:

>>> import jax
>>> import gfdyn as gf
>>> problem = gf.Problem(gf.data.xor(), gf.losses.squared)
>>> net = gf.nets.MLP([2, 8, 1], key=jax.random.key(0), scale=0.1)
>>> flow = gf.GradientFlow(problem)   # gf.EscapeFlow: exact from any scale, however small
>>> traj = gf.solve(flow, net, t1=5.0, record={"risk": gf.diagnostics.risk})
>>> traj.result                       # print(traj.summary()) for more
gfdyn.RESULTS<successful>
>>> bool(traj.certificate.holds)
True
>>> traj.ts.shape, traj.records["risk"].shape
((101,), (101,))

Beside `gf.solve` there are `gf.descend`, gradient descent and SGD on the time axis of the
flow; `gf.plot`; `traj.save` and `gf.load`; `traj.to_xarray`; `gf.solve(flow, traj, t1)`
and `gf.concatenate`, which go on; and `gf.enable_cache`, which keeps compiled programs on
disk, and `gf.program_limit`, which says how many stay in memory. JAX computes in float32
unless it is told otherwise first: `jax.config.update("jax_enable_x64", True)`.

What to put in, and what to ask, is in rooms; `help(gf.nets)` lists all of one:

    data         Dataset, digits, mnist, gaussian, teacher, circle, xor, two_points
    losses       squared, logistic, exponential, cross_entropy, from_function, weighted
    nets         MLP, sequential, dense, conv, architecture, wrap, from_torch
    flows        GradientFlow, EscapeFlow, BranchFlow, MomentumFlow, SignFlow
    solvers      ExactKinks, Stabilised, Adaptive, SignSwitches
    stopping     RiskBelow, RadiusAbove, GradientBelow, NextPlateau, When
    diagnostics  risk, stable_rank, singular_values, escape_speed, layer_norms
    escape       search, projected_descent, speed_bounds, episodes
    theory       bantzis, galanti, le_jegelka, timor
    sweeps       Spec, run, status, collect, report

The command `gfdyn` does the usual runs, with figures: `gfdyn --help`.
"""

from importlib.metadata import version as _version

from . import (
    data as data,
    diagnostics as diagnostics,
    escape as escape,
    flows as flows,
    losses as losses,
    nets as nets,
    plotting as plotting,
    solvers as solvers,
    stopping as stopping,
    sweeps as sweeps,
    theory as theory,
)
from ._cache import enable_cache as enable_cache
from ._program_limit import program_limit as program_limit
from .data import Dataset as Dataset
from .descent import (
    NormScaledRate as NormScaledRate,
    SteppedRate as SteppedRate,
    descend as descend,
)
from .flows import EscapeFlow as EscapeFlow, GradientFlow as GradientFlow
from .plotting import plot as plot
from .problem import Problem as Problem
from .run import (
    RESULTS as RESULTS,
    AcceptedSteps as AcceptedSteps,
    Certificate as Certificate,
    CertificateWarning as CertificateWarning,
    Course as Course,
    DescentState as DescentState,
    Distance as Distance,
    Kinks as Kinks,
    SolveError as SolveError,
    Trajectory as Trajectory,
    concatenate as concatenate,
    distance as distance,
    load as load,
    solve as solve,
)


__version__ = _version("gfdyn")
