"""One linear program over all neurons of the plane, by column generation.

V = max_h gains·h − costs·σ(h) over h = Σ a_k σ(X w_k) with ‖w_k‖ = 1 and Σ|a_k| ≤ 1, and
its dual, V = min max_w |(gains − μ)·σ(X w)| over 0 ≤ μ ≤ costs.
"""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ._planar import Cones


# The gap between the two at which a program counts as solved, for data of size 1.
GAP = 1e-12
# New neurons are sought this often.
_ROUNDS = 60
# What the numbers are multiplied by for HiGHS, whose tolerances are absolute and at least
# 1e-10; the second where it finds no solution at the first.
_SCALES = (100.0, 1.0)
_TOLERANCES = {
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
}


class Unit(eqx.Module):
    """A unit h = Σ a_k σ(X w_k) of layer 2, and the value it attains."""

    w: Float[np.ndarray, "neurons 2"]
    a: Float[np.ndarray, " neurons"]
    h: Float[np.ndarray, " samples"]
    attained: float

    @classmethod
    def none(cls, cones: Cones) -> "Unit":
        """h = 0, which attains 0."""
        return cls(np.zeros((0, 2)), np.zeros(0), np.zeros(len(cones.x)), 0.0)


def solve_program(
    cones: Cones, gains: np.ndarray, costs: np.ndarray
) -> tuple[Unit, np.ndarray]:
    """V(S) from below, by a unit, and from above, by multipliers; column generation.

    The first neurons are those at kinks. Each round solves the program for the neurons at
    hand, and adds the two-layer optima of its multipliers, as long as one exceeds them.
    """
    w, best = cones.edges, Unit.none(cones)
    bound, proof = np.inf, np.zeros_like(costs)
    for _ in range(_ROUNDS):
        features = cones.features(w)
        relaxed = _relaxed(features, gains, costs)
        if relaxed is None:
            break
        value, a, multipliers = relaxed
        used = np.abs(a) > 1e-13
        h = a @ features
        attained = float(gains @ h - costs @ np.maximum(h, 0))
        if attained > best.attained:
            best = Unit(w[used], a[used], h, attained)
        trials, added = [multipliers], []
        if used.any() and not used[len(cones.edges) :].any():
            centred = _centred(cones, features, a * used, gains, costs, value)
            trials += [] if centred is None else [centred]
        for multipliers in trials:
            cotangent = (gains - multipliers)[:, None]
            proved = float(cones.largest(cotangent))
            if proved < bound:
                bound, proof = proved, multipliers
            peaks, inside = cones.peaks(cotangent)
            exceeds = np.abs(cones.features(peaks) @ cotangent)[:, 0] > value
            added.append(peaks[inside & exceeds])
        added = np.concatenate(added)
        if best.attained >= bound - GAP or not len(added):
            break
        w = np.concatenate([w, added])
    return best, proof


def _relaxed(
    features: np.ndarray, gains: np.ndarray, costs: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray] | None:
    """V(S) over the neurons of these features (K, N): the value, their a, multipliers.

    The dual, min V over 0 ≤ μ ≤ costs with |features (gains − μ)| ≤ V, has few variables;
    a are the multipliers of its rows.
    """
    priced = np.flatnonzero(costs)
    columns, target = features[:, priced], features @ gains
    one = np.ones((len(features), 1))
    found = _highs(
        np.append(np.zeros(len(priced)), 1.0),
        a_ub=np.block([[-columns, -one], [columns, -one]]),
        b_ub=np.concatenate([-target, target]),
        upper=np.append(costs[priced], np.inf),
    )
    if found is None:
        return None
    above, below = np.split(-found.marginals, 2)
    a = above - below
    total = np.sum(np.abs(a))
    a = a / (total if total > 0 else 1.0)
    return found.value, a, _boxed(found.x[:-1], costs)


def _centred(
    cones: Cones,
    features: np.ndarray,
    a: np.ndarray,
    gains: np.ndarray,
    costs: np.ndarray,
    value: float,
) -> np.ndarray | None:
    """Among multipliers of the same value those with most room, if a ≠ 0 at kinks only.

    A program's own multipliers are a corner: beside a neuron that is used, others then
    exceed it by ever less, and rounds halve the distance without end. Here neurons that
    are used keep their value and are local optima, falling to both sides, and the others
    stay below: each of these by as much as it may, up to a hundredth of the value.
    """
    priced, used = np.flatnonzero(costs), np.flatnonzero(a)
    signs = np.sign(a[used])[:, None]
    turned = cones.turns @ cones.x.T
    after = signs * (cones.open * turned)[used]
    before = signs * (np.roll(cones.open, 1, axis=0) * turned)[used]
    others = np.delete(features, used, axis=0)
    rows = np.concatenate([others, -others, after, -before])
    limits = np.append(np.full(2 * len(others), value), np.zeros(2 * len(used)))
    kept = signs * features[used]
    found = _highs(
        np.append(np.zeros(len(priced)), -np.ones(len(rows))),
        a_ub=np.concatenate([-rows[:, priced], np.eye(len(rows))], axis=1),
        b_ub=limits - rows @ gains,
        a_eq=np.concatenate([-kept[:, priced], np.zeros((len(used), len(rows)))], axis=1),
        b_eq=value - kept @ gains,
        upper=np.append(costs[priced], np.full(len(rows), 0.01 * value)),
    )
    if found is None:
        return None
    return _boxed(found.x[: len(priced)], costs)


def _boxed(mu: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Multipliers (N,) in their box, from those of samples with a cost."""
    multipliers = np.zeros_like(costs)
    multipliers[costs > 0] = np.clip(mu, 0, costs[costs > 0])
    return multipliers


class _Answer(NamedTuple):
    x: np.ndarray
    value: float
    marginals: np.ndarray


def _highs(
    objective: np.ndarray,
    upper: np.ndarray,
    a_ub: np.ndarray,
    b_ub: np.ndarray,
    a_eq: np.ndarray | None = None,
    b_eq: np.ndarray | None = None,
) -> _Answer | None:
    """The linear program with 0 ≤ x ≤ upper; None where HiGHS finds no solution."""
    # Takes a sixth of the time of importing gfdyn, and few come here.
    from scipy.optimize import linprog

    for scale in _SCALES:
        found = linprog(
            objective,
            a_ub,
            scale * b_ub,
            a_eq,
            None if b_eq is None else scale * b_eq,
            np.stack([np.zeros_like(upper), scale * upper], axis=1),
            method="highs-ds",
            options=_TOLERANCES,
        )
        if found.x is not None:
            value = float(found.fun) / scale
            return _Answer(found.x / scale, value, found.ineqlin.marginals)
    return None
