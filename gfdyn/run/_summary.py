"""How a trajectory went, in words."""

from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..flows import GradientFlow
from ._lanes import lane
from ._results import RESULTS, is_ok


# Lanes that a summary names, of those whose certificate does not hold
_NAMED = 5
# A risk so close to that of the zero net, relative to it, is that of the saddle.
_STILL = 1e-6
_BY_SIDES = "decided by the two sides of each alone, not verified (docs/algorithm.md)"


def summary(traj: Any) -> str:
    """Some lines on a flow, a descent, or a batch of them."""
    if traj.batch_shape:
        return _of_batch(traj)
    lines = _of_descent(traj) if traj.is_descent else _of_flow(traj)
    notes = [doubt_of(traj), None if traj.is_descent else _waiting(traj)]
    lines += [f"  note             {note}" for note in notes if note]
    return "\n".join(lines)


def _of_flow(traj: Any) -> list[str]:
    clock = traj.flow.clock_name
    stats = {name: int(value) for name, value in traj.stats.items()}
    certificate = traj.certificate
    lines = [
        f"{type(traj.flow).__name__}: {_outcome(traj.result, traj.stopped_by)}",
        f"  clock            {clock} = {float(traj.final_time):.6g}",
        f"  physical time    {_physical_time(float(traj.final_log_time))}",
        f"  risk             {float(traj.initial_risk):.6g} → {float(traj.final_risk):.6g}",
        f"  solver           {solver_of(traj)}",
        f"  steps            {stats['num_steps']} accepted, {stats['num_rejected']} "
        f"rejected, {stats['num_field_evaluations']} field evaluations",
        f"  certificate      energy residual {float(certificate.energy_residual):.1e}, "
        f"balance drift {float(certificate.balance_drift):.1e}, "
        f"risk increase {float(certificate.risk_increase):.1e}",
    ]
    if stats["num_crossings"] or stats["num_slides"]:
        lines.append(
            f"  kinks            {stats['num_crossings']} crossings, "
            f"{stats['num_slides']} slides, {stats['num_releases']} releases"
        )
        if not certificate.verified:
            lines.append(f"                   {_BY_SIDES}")
    if choices := int(certificate.choices):
        lines.append(
            f"  choices          {choices}: left a kink where the flow is not unique "
            "(docs/algorithm.md); gradient descent may leave on another side, or later"
        )
    return lines


def solver_of(traj: Any) -> str:
    """The solver and its tolerance, if that is known."""
    rtol = float(np.max(traj.rtol))
    return f"{traj.solver}, rtol {rtol:g}" if rtol else traj.solver


def _of_descent(traj: Any) -> list[str]:
    """What a descent has: steps, and a risk that may rise in one."""
    ended = is_ok(traj.result)
    outcome = "took all its steps" if ended else _outcome(traj.result, None)
    rise = float(traj.certificate.risk_increase)
    kind = traj.flow.description.split(" flow")[0]
    return [
        f"{kind} descent: {outcome}",
        f"  steps            {int(traj.stats['num_steps'])}",
        f"  physical time    {_physical_time(float(traj.final_log_time))}",
        f"  risk             {float(traj.initial_risk):.6g} → {float(traj.final_risk):.6g}"
        f", largest rise {rise:.1e}",
    ]


def _of_batch(traj: Any) -> str:
    """What became of the lanes, and the worst of their certificates."""
    results = [lane(traj.result, index) for index in np.ndindex(*traj.batch_shape)]
    stops = np.ravel(traj.stop_index)
    names = [traj.stop_names[i] if i >= 0 else None for i in stops]
    flow = type(traj.flow).__name__
    kind = "descents" if traj.is_descent else f"trajectories of a {flow}"
    outcomes = Counter(map(_outcome, results, names))
    holds = np.ravel(traj.certificate.holds)
    certificate = traj.certificate
    lines = [
        f"{len(results)} {kind}",
        *(f"  {count:<16} {outcome}" for outcome, count in outcomes.most_common()),
        f"  clock            {traj.flow.clock_name} = {_range(traj.final_time)}",
        f"  risk             {_range(traj.initial_risk)} → {_range(traj.final_risk)}",
        f"  steps            {_range(traj.stats['num_steps'])}",
        f"  certificate      energy residual at most "
        f"{float(np.max(certificate.energy_residual)):.1e}, balance drift "
        f"{float(np.max(certificate.balance_drift)):.1e}, risk increase "
        f"{float(np.max(certificate.risk_increase)):.1e}",
    ]
    if choices := int(np.sum(certificate.choices)):
        lanes = int(np.sum(np.asarray(certificate.choices) > 0))
        lines.append(f"  choices          {choices} in {lanes} lanes")
    crossed = sum(int(np.sum(traj.stats[f"num_{n}"])) for n in ("crossings", "slides"))
    if crossed and not np.all(certificate.verified):
        lines.append(f"  kinks            {_BY_SIDES}")
    if not holds.all():
        wrong = np.argwhere(~np.asarray(certificate.holds))
        named = ", ".join(f"lane{tuple(map(int, i))}" for i in wrong[:_NAMED])
        more = ", …" if len(wrong) > _NAMED else ""
        lines.append(
            f"  note             the energy identity fails in {len(wrong)}: {named}{more}"
        )
    return "\n".join(lines)


def _range(values: Any) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


def doubt_of(traj: Any) -> str | None:
    """Why the trajectory is not to be trusted, and what helps; None if its certificate
    holds."""
    if traj.certificate.holds:
        return None
    residual, limit = traj.certificate.energy_residual, traj.certificate.residual_limit
    if traj.is_descent:
        return (
            f"far from a flow, whose energy identity fails by {float(residual):.1e}: for "
            "one lower the learning rate"
        )
    chattering = traj.final.has_kinks and not (
        traj.stats["num_crossings"] or traj.stats["num_slides"]
    )
    remedy = "lower rtol"
    if chattering:
        remedy = (
            "lower rtol; or, if it was gf.solvers.Adaptive, which chatters where neurons "
            "slide along kinks, use gf.solvers.ExactKinks()"
        )
    return (
        f"the energy identity fails (residual {float(residual):.1e}, at most "
        f"{float(limit):.0e} is trusted): {remedy}"
    )


def _waiting(traj: Any) -> str | None:
    """That a gradient flow has not left the saddle at 0, and what does."""
    degree = traj.final.degree
    if not isinstance(traj.flow, GradientFlow) or (degree is not None and degree < 2):
        return None
    problem = traj.problem
    at_zero = float(problem.cost(jnp.zeros_like(problem.data.y)))
    risks = np.asarray([traj.initial_risk, traj.final_risk])
    if np.any(np.abs(risks - at_zero) > _STILL * abs(at_zero)):
        return None
    if degree is None:
        return (
            "it has hardly moved from where all outputs are 0; if that is a saddle, it "
            "takes the longer to leave the smaller the initialisation is: start larger, or "
            "integrate for longer"
        )
    return (
        "it has hardly moved from the saddle at 0, which takes the longer to leave the "
        "smaller the initialisation is: gf.EscapeFlow(problem) escapes at every scale"
    )


def _outcome(result: Any, stopped_by: str | None) -> str:
    if stopped_by is not None:
        return f"stopped by {stopped_by}"
    if is_ok(result):
        return "reached its final time"
    return RESULTS[result]


def _physical_time(log_t: float) -> str:
    if np.abs(log_t) < 200 or log_t == -np.inf:
        return f"t = {np.exp(log_t):.6g} (log t = {log_t:.6g})"
    return f"log t = {log_t:.6g}"
