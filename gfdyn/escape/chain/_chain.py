"""From saddle to saddle: waits and escapes in turn, until all branches rest."""

import math
import warnings

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ..._numbers import check_count, check_number, is_fraction
from ..._types import Branch
from ...flows import BranchFlow
from ...nets import AbstractNet, branch_dot
from ...problem import Problem
from ...run import CertificateWarning
from ...solvers import AbstractSolver, Stabilised
from ..exact import linear_map
from ._legs import ChainSettings, Leg, log_time_grown, next_leg
from ._result import Chain, Passage, Saddle
from ._stops import forces, log_radii, shares, speeds, still_at_rest


_INCOMPLETE = (
    "the chain ends at a saddle: branches have come to share a direction, and what would "
    "make one of them turn to what is left to learn is below rounding. Start larger, or, "
    "where the inputs are white, from gf.escape.spectral."
)


def chain(
    problem: Problem,
    net: AbstractNet,
    *,
    rtol: float = 1e-8,
    rest: float = 1e-7,
    release: float = 1e-5,
    solver: AbstractSolver | None = None,
    max_steps: int = 10_000,
    saves: int = 512,
) -> Chain:
    r"""The gradient flow of a sum of linear branches through all its saddles, to the fit.

    Branches leave the origin one by one. What has learned comes to rest, and waits, while
    the others, as yet at e^-100, say, grow. A branch counts as at rest while the force on
    it is below `rest` of what moves branches at the origin. It is held then, and the flow
    goes on in the clock of those that grow (`gf.flows.BranchFlow`), so that a wait of e^100
    takes no more steps than one of e^10, and no stability of what rests limits them. It is
    released when they come to move it with a force of `release`. Nothing rests with a loss
    that has no minimum, such as the logistic one.

    Args:
        problem: R.
        net: a sum of linear branches, such as `gf.escape.spectral` builds, small enough
            that they leave one by one.
        rtol: of the flow, for each branch relative to itself.
        rest: the force, as a part of that at the origin, at which a branch rests.
        release: the force at which it is released.
        solver: `gf.solvers.Stabilised(rtol)` if None.
        max_steps: most attempted steps between two changes of what rests.
        saves: how many of them are kept, even.

    Returns:
        A `Chain`: its saddles, the passages between them, and what was saved on the way.

    Warns:
        CertificateWarning: if the chain ends at a saddle, as branches have come to share a
            direction, and what tells them apart is below rounding.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: on a net that is no sum of linear branches, or fractions out of range.
        SolveError: if the flow fails, or takes more than `max_steps`.

    Example:
        `gf.escape.chain(problem, gf.escape.spectral(problem, 3, 1e-40)).summary()`
    """
    for name, value in (("rest", rest), ("release", release)):
        check_number(name, value, is_fraction, "must be a fraction, such as 1e-6.")
    if not rest < release:
        raise ValueError(
            f"rest={rest} must be below release={release}: what rests is held until it is "
            "moved with more force."
        )
    check_count("max_steps", max_steps, 1, "must be 1 or more.")
    BranchFlow(problem).check(net)
    if net.has_kinks:
        raise ValueError(
            "net has kinks, and a chain is of linear networks; integrate "
            "gf.flows.BranchFlow(problem), which passes all saddles of two-layer networks."
        )
    chosen = Stabilised(rtol) if solver is None else solver
    dtype = problem.data.x.dtype
    at_rest, moved = (jnp.asarray(value, dtype) for value in (rest, release))
    settings = ChainSettings(problem, chosen, at_rest, moved, max_steps, saves)
    resting = jnp.zeros(branch_dot(net, net).shape, bool)
    log_time = -np.inf
    legs: list[Leg] = []
    saddles = [_saddle(settings, net, log_time, resting, forces(problem, net))]
    ends = [0]
    lost = False
    while not (bool(resting.all()) or lost):
        leg = next_leg(settings, net, resting, log_time)
        legs.append(leg)
        net, log_time = leg.trajectory.final, leg.log_end
        force = forces(problem, net)
        resting = still_at_rest(force, resting, settings.rest, settings.release)
        if leg.settled:
            saddles.append(_saddle(settings, net, log_time, resting, force))
            ends.append(len(legs))
            lost = _any_lost(settings, saddles[-2], saddles[-1])
    complete = not _left(settings, net) or (
        not lost and _rank(settings, net) == len(resting)
    )
    if not complete:
        warnings.warn(_INCOMPLETE, CertificateWarning, stacklevel=2)
    passages = [
        _passage(settings, legs[ends[k] : ends[k + 1]], saddles[k], saddles[k + 1])
        for k in range(len(saddles) - 1)
    ]
    return Chain(tuple(saddles), tuple(passages), tuple(legs), complete)


def _left(settings: ChainSettings, net: AbstractNet) -> bool:
    """Whether anything is left to learn: linear nets come to rest at saddles besides, where
    branches share a direction, and one of them would turn in time."""
    problem = settings.problem
    left = problem.cost_gradient(problem.outputs(net)).T @ problem.data.x
    whole = jnp.linalg.norm(linear_map(problem), 2)
    return bool(jnp.linalg.norm(left, 2) > settings.release * whole)


def _any_lost(settings: ChainSettings, before: Saddle, after: Saddle) -> bool:
    """Whether a branch has lost what moved it and has not learned: others learned what it
    was turned to, and what is left turns it from below the flow's tolerance."""
    moved = before.forces > float(settings.release)
    still = after.forces <= float(settings.release)
    return bool((moved & still & ~after.learned).any()) and _left(settings, after.net)


def _rank(settings: ChainSettings, net: AbstractNet) -> int:
    """The rank of the linear map that the net is."""
    found = jnp.linalg.svd(net(jnp.eye(net.in_size)), compute_uv=False)
    return int((found > settings.release * found[0]).sum())


def _saddle(
    settings: ChainSettings,
    net: AbstractNet,
    log_time: float,
    resting: Bool[Array, " branches"],
    force: Branch,
) -> Saddle:
    problem = settings.problem
    learned = resting & (shares(net) > settings.negligible)
    leaving = jnp.where(resting, -jnp.inf, speeds(problem, net))
    return Saddle(
        log_time=log_time,
        risk=float(problem.risk(net)),
        learned=np.asarray(learned),
        forces=np.asarray(force),
        speed=float(leaving.max()),
        net=net,
    )


def _passage(
    settings: ChainSettings, legs: list[Leg], before: Saddle, after: Saddle
) -> Passage:
    """When each branch that has learned in between had half of its outputs."""
    branches = np.flatnonzero(after.learned & ~before.learned)
    halves = np.asarray(log_radii(after.net)) - math.log(2) / len(after.net.weights)
    times = []
    for branch in branches:
        half = float(halves[branch])
        leg = next(leg for leg in legs if leg.log_radii[:, branch].max() >= half)
        times.append(log_time_grown(settings, leg, int(branch), half))
    return Passage(
        branches=branches,
        log_times=np.array(times),
        fall=before.risk - after.risk,
        steps=sum(int(leg.trajectory.stats["num_steps"]) for leg in legs),
    )
