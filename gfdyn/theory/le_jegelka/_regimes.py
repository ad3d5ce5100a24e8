"""Assumptions 1 to 3 along a trajectory, and Claims 1 and 2."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ..._types import Scalar
from ...diagnostics import margin
from ...nets import AbstractNet
from ...problem import Problem, check_fit
from .._check import Check, at_most, equal
from ._version import Version


Times = Float[Array, " times"]


class Regime(eqx.Module):
    r"""What Le & Jegelka assume of a trajectory, as far as its saves show.

    Signs are −1 and +1, that of 0 is +1.

    Attributes:
        sign_changes: of how many parameters the sign differs from the save before, (T,).
        gate_changes: how many gates do, (T,).
        stable_signs_from: Assumption 1: the save time from which no sign changes; the last
            one if they change up to the end.
        stable_gates_from: the same of the gates.
        distance: Assumption 2: $\|\theta/\|\theta\| - \bar\theta\|$, (T,).
        smallest_limit: $\min_e |\bar\theta_e|$, which Assumption 2 wants above 0. It is 0
            for every dead neuron.
        near_from: the save time from which the distance stays below half of that, by
            Claim 1 the start of a stable sign regime; ∞ if it never does.
        norms: ‖θ‖, (T,), which has to diverge for the limits of Theorem 2.
    """

    sign_changes: Int[Array, " times"]
    gate_changes: Int[Array, " times"]
    stable_signs_from: Scalar
    stable_gates_from: Scalar
    distance: Times
    smallest_limit: Scalar
    near_from: Scalar
    norms: Times


def regime(
    problem: Problem, ts: Times, nets: AbstractNet, limit: AbstractNet | None = None
) -> Regime:
    r"""Sign stability, stability of the gates, and directional convergence.

    Args:
        ts: `traj.ts`, (T,).
        nets: `traj.net`, leading axis T.
        limit: a net in the limit direction $\bar\theta$; the last one if None, with which
            the distance vanishes at the end whatever happens.

    Raises:
        ValueError: unless ts has one entry for each net.
    """
    rows = jax.vmap(lambda net: ravel_pytree(net)[0])(nets)
    if ts.shape != rows.shape[:1]:
        raise ValueError(
            f"ts has shape {ts.shape} for {len(rows)} nets; give the times of the saves."
        )
    signs, gates = rows < 0, jax.vmap(lambda net: _gates(problem, net))(nets)
    distance, smallest = _from_limit(rows, limit)
    near = jnp.flip(jnp.cumprod(jnp.flip(distance < smallest / 2), dtype=jnp.int32)) > 0
    return Regime(
        sign_changes=_changes(signs),
        gate_changes=_changes(gates),
        stable_signs_from=_last_change(ts, _changes(signs)),
        stable_gates_from=_last_change(ts, _changes(gates)),
        distance=distance,
        smallest_limit=smallest,
        near_from=jnp.min(jnp.where(near, ts, jnp.inf)),
        norms=jnp.linalg.norm(rows, axis=1),
    )


def near_the_limit_signs_agree(
    nets: AbstractNet, limit: AbstractNet | None = None
) -> Check:
    r"""Within half the smallest entry of the limit direction, no sign differs from its.

    Le & Jegelka, Claim 1 (the ball is one of θ/‖θ‖; they write θ): Assumption 2 implies a
    stable sign regime. Entries (T,): the number of signs that differ, and 0.

    Args:
        nets, limit: see `regime`.
    """
    rows = jax.vmap(lambda net: ravel_pytree(net)[0])(nets)
    last = rows[-1] if limit is None else ravel_pytree(limit)[0]
    distance, smallest = _from_limit(rows, limit)
    apart = jnp.sum((rows < 0) != (last < 0)[None, :], axis=1).astype(rows.dtype)
    return equal(
        apart, jnp.zeros_like(apart), assumptions={"near": distance < smallest / 2}
    )


def rescaling_keeps_patterns(problem: Problem, net: AbstractNet, ts: ArrayLike) -> Check:
    r"""Along $|t \sin t|\,\theta$ a net without biases has one activation pattern.

    So this curve, by which Le & Jegelka show that directional convergence does not make
    activations stable (Claim 2), shows that of nets with biases alone: homogeneous ones
    have the same gates on all of a ray. No version corrects it. One entry: how often some
    gate changes between times next to each other, and 0.

    Args:
        ts: times, not multiples of π, (T,).

    Raises:
        TypeError, ValueError: if the net does not fit the problem.
    """
    check_fit(problem, net)
    times = jnp.asarray(ts, problem.data.x.dtype)

    def at(t: Array) -> Bool[Array, " gates"]:
        return _gates(problem, jax.tree.map(lambda w: jnp.abs(t * jnp.sin(t)) * w, net))

    switches = jnp.sum(_changes(jax.vmap(at)(times)) > 0).astype(times.dtype)
    return equal(
        switches,
        jnp.zeros_like(switches),
        assumptions={"homogeneous": jnp.asarray(net.degree is not None)},
    )


def small_risk_separates(
    problem: Problem, net: AbstractNet, version: Version = "corrected"
) -> Check:
    r"""$R(\theta) < \ell(0)/N$ implies that all margins are positive, there and, as R
    falls, ever after: what Corollary 1 needs for the weights to diverge.

    Both versions ask for $R < \ell(0)$ of a mean over N samples, which is too weak. Sides:
    minus the smallest margin, and 0.

    Args:
        version: `"first"` asks for R < ℓ(0) alone, as both versions of the paper do.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, or its loss has no
            margins.
    """
    check_fit(problem, net)
    data, loss = problem.data, problem.loss
    risk = jnp.mean(loss.values(problem.outputs(net), data.y))
    bound = jnp.min(loss.values(jnp.zeros_like(data.y), data.y))
    if version == "corrected":
        bound = bound / len(data.x)
    lhs = -margin(problem, net)
    return at_most(
        lhs, jnp.zeros_like(lhs), assumptions={"small risk": risk < bound}, slack=0.0
    )


def _gates(problem: Problem, net: AbstractNet) -> Bool[Array, " gates"]:
    z = net.preactivations(problem.data.x)
    return jnp.concatenate([jnp.zeros(0, bool), *(jnp.ravel(a > 0) for a in z)])


def _changes(states: Bool[Array, "times _"]) -> Int[Array, " times"]:
    changed = jnp.sum(states[1:] != states[:-1], axis=1, dtype=jnp.int32)
    return jnp.concatenate([jnp.zeros(1, jnp.int32), changed])


def _last_change(ts: Times, changes: Int[Array, " times"]) -> Scalar:
    """The first save since which there was none, which is the one after the last change."""
    return jnp.max(jnp.where(changes > 0, ts, ts[0]))


def _from_limit(
    rows: Float[Array, "times parameters"], limit: AbstractNet | None
) -> tuple[Times, Scalar]:
    """The distances of directions from the limit's, and its smallest entry."""

    def unit(row: Array) -> Array:
        size = jnp.linalg.norm(row)
        return row / jnp.where(size > 0, size, 1)

    end = unit(rows[-1] if limit is None else ravel_pytree(limit)[0])
    distances = jnp.linalg.norm(jax.vmap(unit)(rows) - end[None, :], axis=1)
    return distances, jnp.min(jnp.abs(end))
