"""What a trajectory knows of itself, as the caption of a figure."""

import math
from collections import Counter

import jax
import numpy as np
from jaxtyping import Array

from ..nets import AbstractNet
from ..run import Trajectory, is_ok, lane, name_of, solver_of


def caption(traj: Trajectory) -> str:
    """The flow and its clock, net, data, initial norm, solver, end, steps and certificate.

    Args:
        traj: what `gf.solve`, `gf.descend` or `gf.load` gave; of a batch the flow, net and
            data are those of its first lane.
    """
    parts = lanes(traj)
    first = parts[0]
    setting = [
        _flow(first),
        _net(first.final_direction, first.problem.data.x),
        _data(first),
        f"‖θ(0)‖ = {_initial_norms(parts)}",
        str(first.problem.data.x.dtype),
    ]
    if not traj.is_descent:
        setting.append(solver_of(traj))
    if len(parts) > 1:
        numbers = Counter(map(_end, parts)).most_common()
        ends = ", ".join(f"{number} {end}" for end, number in numbers)
        end = f"{len(parts)} lanes: {ends}"
    else:
        clock = {"tau": "τ"}.get(first.flow.clock_name, first.flow.clock_name)
        end = f"{_end(first)} at {clock} = {float(first.final_time):.4g}"
    return f"{', '.join(setting)}. {end[0].upper()}{end[1:]}; {_certificate(parts)}."


def lanes(traj: Trajectory) -> list[Trajectory]:
    """The trajectories of a batch, one after the other; of one trajectory it alone."""
    if not traj.batch_shape:
        return [traj]
    return [lane(traj, index) for index in np.ndindex(*traj.batch_shape)]


def _initial_norms(parts: list[Trajectory]) -> str:
    """The norm at the start, or from which to which it is."""
    starts = [float(part.flow.log_norm(lane(part.positions, 0))) for part in parts]
    ends = (power_of_ten(end(starts) / math.log(10)) for end in (min, max))
    return " to ".join(dict.fromkeys(ends))


def power_of_ten(exponent: float) -> str:
    """10^exponent to three digits, also beyond overflow: 0.0123, 1.5e-06, 1e-87."""
    if -300 < exponent < 300:
        return f"{10**exponent:.3g}"
    whole = math.floor(exponent)
    return f"{10 ** (exponent - whole):.3g}e{whole:+d}"


def _flow(traj: Trajectory) -> str:
    described = traj.flow.description
    return described.replace("flow", "descent", 1) if traj.is_descent else described


def _net(net: AbstractNet, x: Array) -> str:
    """Its activations, kind and widths; without hidden layers its number of parameters."""
    kind = type(net).__name__
    if not net.activations:
        number = sum(leaf.size for leaf in jax.tree.leaves(net))
        return f"{kind} of {number} parameters"
    hidden = jax.eval_shape(net.preactivations, x)
    widths = [net.in_size, *(z.shape[1] for z in hidden), net.out_size]
    slopes = sorted({sigma.slope for sigma in net.activations})
    names = {0.0: "ReLU", 1.0: "linear"}
    bends = "/".join(names.get(slope, f"leaky {slope:g}") for slope in slopes)
    return f"{bends} {kind} {'–'.join(map(str, widths))}"


def _data(traj: Trajectory) -> str:
    x, loss = traj.problem.data.x, traj.problem.loss
    name = getattr(loss, "name", type(loss).__name__)
    return f"{x.shape[-2]} samples, {name.lower()} loss ({traj.problem.reduction})"


def _end(traj: Trajectory) -> str:
    if traj.stopped_by is not None:
        return f"stopped by {traj.stopped_by}"
    if is_ok(traj.result):
        return "reached the final time"
    return f"failed ({name_of(traj.result).replace('_', ' ')})"


def _certificate(parts: list[Trajectory]) -> str:
    """Counts of all lanes, and the worst of their certificates."""

    def total(name: str) -> int:
        return sum(int(part.stats[name]) for part in parts)

    residual = max(float(part.certificate.energy_residual) for part in parts)
    choices = sum(int(part.certificate.choices) for part in parts)
    holds = all(bool(part.certificate.holds) for part in parts)
    counts = [f"{total('num_steps')} steps"]
    counts += [
        f"{total(f'num_{name}')} {name}"
        for name in ("crossings", "slides")
        if total(f"num_{name}")
    ]
    identity = f"energy residual {residual:.1e}"
    if not holds:
        identity += ", at which the certificate does not hold"
    verified = all(bool(part.certificate.verified) for part in parts)
    decided = f"{choices} choices" if verified else "kinks not verified"
    return f"{', '.join(counts)}; {identity}; {decided}"
