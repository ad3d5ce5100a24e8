"""The end of a step corrected for all crossings in it at once."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._by_layer import per_layer
from .._numerics import nonzero
from .._types import Mask, Scalar, Sites
from ..flows import AbstractFlow, State
from ..kinks import (
    FieldEvaluation,
    GateState,
    Linearisation,
    any_of,
    back_to_kinks,
    both,
    constant,
    drift,
    either,
    flipped,
    flips,
    linearise,
    masked,
    no_alternative,
    nowhere,
    preactivations,
    rounding_of,
    slack,
    standing,
    values_of,
    without,
)
from ..nets import AbstractNet, norm
from ._adaptive import Adaptive
from ._resolution import Proposal, Resolution
from ._trial_step import CREEP, Outcome, TrialStep


# The part of the tolerance that is for errors made at kinks.
_SHARE = 0.5
# What the size of the next step is held below, relative to what the error allows, and how
# fast it may change.
_SAFETY = 0.7
_SMALLEST, _LARGEST = 0.2, 1.3
# A gate may have been caught if its own flip drives z back by this part of the way.
_PUSH = 0.5


class Correction(eqx.Module):
    r"""The end of a step, moved by what the gates that flip on the way add to it.

    The flip of gate $a$ changes the gradient by $\pm c_a \nabla z_a$, so that one pull-back
    of $\pm\,(t - t_a)\,c_a$ gives the displacement for all of them. Where it leads back
    over the kink, the kink attracts from both sides: the gate is captured and slides.

    Second order in the step. The error is estimated by what the velocity after it differs
    from the velocity before it with all jumps added, times how long it has done so.
    """

    trial: TrialStep
    # The sites beyond their kinks at the end, and for how long each has been there
    last: Mask
    times: Sites
    # The net at the end, and what the flips add to the gradient there, along ∇z
    at: Linearisation
    turned: Sites
    proposal: Proposal

    def outcome(
        self, resolution: Resolution, tolerances: Adaptive, locating: bool
    ) -> Outcome:
        """What became of the step, resolved at the end that was moved.

        If `locating`, not where a kink along which it went repels at the end: to which side
        its gate went on the way is seen where that was.
        """
        trial, last, times = self.trial, self.last, self.times
        flow, gates, end, smooth = trial.flow, trial.gates, trial.smooth.end, trial.smooth
        net = flow.point(end.position)
        after, evaluation = resolution.gates, resolution.evaluation
        released = without(gates.sliding, after.sliding)

        # The gradient expected there: with the jumps, and the multipliers as they are now.
        change = per_layer(
            lambda let_go, old, new, turn, nu0, nu1: jnp.where(
                let_go, 0.0, jnp.where(old ^ new, turn, 0.0) + nu1 - nu0
            ),
            released,
            gates.on,
            after.on,
            self.turned,
            smooth.evaluation.nu,
            evaluation.nu,
        )
        jump, _ = self.at.pullback_of_sites(change)
        gradient = jax.tree.map(jnp.add, smooth.evaluation.gradient, jump)
        expected = flow.assemble(end.position, smooth.evaluation.outputs, gradient)
        rest = jax.tree.map(jnp.subtract, evaluation.velocity, expected)
        so_far, _ = self.at.pullback_of_sites(per_layer(jnp.multiply, times, change))
        spent = _displaced(flow, end, smooth.evaluation, so_far, jump)

        mean = _mean_time(last, times, trial.jumps)
        time_left = _time_wrong(trial, mean, self.turned, times, released)
        ratio = time_left * tolerances.error_ratio(
            flow, rest.position, trial.start.position, resolution.position
        )
        # Sites beside sliding ones have been taken back along with these.
        off = per_layer(drift, smooth.evaluation.z, gates.sliding)
        wrong = _wrong_sides(evaluation.z, after, trial.allowance.leeway, off)

        # The rest grows from 0 over that time: half of it has been missed.
        position = jax.tree.map(
            lambda y, r: y + 0.5 * mean * r, resolution.position, rest.position
        )
        allowed_error = tolerances.rtol * norm(constant(net))
        back = _put_back(
            trial,
            flow.retract(position),
            self.proposal.state.position,
            after,
            wrong,
            evaluation.z,
            off,
            _SHARE * allowed_error,
        )
        ratio = jnp.maximum(ratio, back.error / allowed_error) / _SHARE
        right = resolution.in_range & ~(locating & resolution.repels)
        ratio = jnp.where(jnp.isfinite(ratio) & right, ratio, 1e10)
        allowed = _SAFETY / jnp.sqrt(jnp.maximum(ratio, 1e-10))
        return Outcome(
            accepted=ratio <= 1,
            size=trial.size,
            factor=jnp.clip(allowed, _SMALLEST, _LARGEST),
            state=State(back.position, spent.dissipated),
            gates=after,
            shared=resolution.shared,
            evaluation=eqx.tree_at(lambda m: m.z, evaluation, back.z),
            time_left=constant(times),
            mean_time_left=mean,
            crossed=nowhere(after),
            on_wrong_side=back.on_wrong_side,
            # The linearisation, three ways back through it, a look at z
            cost=resolution.cost + 3,
            others=no_alternative(after),
        )


def correction_of(trial: TrialStep, last: Mask, times: Sites) -> Correction:
    """The correction for the sites beyond their kinks at the end of a step, where each has
    been for a time."""
    flow, gates, end, smooth = trial.flow, trial.gates, trial.smooth.end, trial.smooth
    net = flow.point(end.position)
    at = linearise(net, flow.problem.data.x, gates)
    last, times = _without_shadows(trial, last, times)
    turned = flips(net, gates, smooth.evaluation.signal)
    shift, _ = at.pullback_of_sites(per_layer(jnp.multiply, times, turned))
    moved = _displaced(flow, end, smooth.evaluation, shift)
    proposal = Proposal(
        moved,
        trial.size,
        flipped(gates, last),
        last,
        catchable=both(last, _holding(trial, turned, times)),
        whole=jnp.asarray(True),
    )
    return Correction(trial, last, times, at, turned, proposal)


def _holding(trial: TrialStep, turned: Sites, times: Sites) -> Mask:
    """The sites that their own flip drives back, by a good part of how far they are beyond
    their kinks; others return because of all flips together, and do not slide."""
    net, z = constant(
        (trial.flow.point(trial.smooth.end.position), trial.smooth.evaluation.z)
    )
    x = trial.flow.problem.data.x
    norms = net.gradient_norms(x, values_of(net, standing(trial.gates, z), x.dtype))

    def holds(
        on: Array, turn: Array, time: Array, jump: Array, n: Array, z: Array
    ) -> Array:
        attracts = jnp.where(on, -turn, turn) >= 0
        return attracts & (time * jump * n >= _PUSH * jnp.abs(z))

    return per_layer(holds, trial.gates.on, turned, times, trial.jumps, norms, z)


def _without_shadows(trial: TrialStep, last: Mask, times: Sites) -> tuple[Mask, Sites]:
    """The crossings but for those of a sample that dies on the way: where the last unit of
    a layer lets it go, z of all units above it would change sign, but stays at 0."""
    beyond = flipped(trial.gates, last)
    z = preactivations(trial.flow, trial.smooth.end.position, beyond)
    shadows = per_layer(lambda c, zl: c & (jnp.abs(zl) <= rounding_of(zl)), last, z)
    lit = per_layer(jnp.logical_not, shadows)
    return without(last, shadows), masked(lit, times)


def _displaced(
    flow: AbstractFlow, end: State, at_end: FieldEvaluation, shift: Any, jump: Any = None
) -> State:
    """The end of a step moved by the time integral of an addition to the gradient.

    If the addition at the end is given, with the mean of the derivatives before and after
    it: exact for the dissipated energy, which is quadratic in the gradient.
    """

    def moved(gradient: AbstractNet) -> State:
        def assembled(g: AbstractNet) -> State:
            return flow.assemble(end.position, at_end.outputs, g)

        return jax.jvp(assembled, (gradient,), (shift,))[1]

    before = moved(at_end.gradient)
    if jump is None:
        return jax.tree.map(jnp.add, end, before)
    after = moved(jax.tree.map(jnp.add, at_end.gradient, jump))
    return jax.tree.map(lambda y, a, b: y + 0.5 * (a + b), end, before, after)


def _mean_time(last: Mask, times: Sites, jumps: Sites) -> Scalar:
    """How long ago the crossings happened, weighted by the squares of their jumps."""
    weights = per_layer(lambda c, j: jnp.where(c, j**2, 0.0), last, jumps)
    total = jnp.sum(jnp.stack([jnp.sum(w) for w in weights]))
    products = per_layer(lambda w, t: jnp.sum(w * t), weights, times)
    return constant(jnp.sum(jnp.stack(products)) / jnp.where(total > 0, total, 1.0))


def _time_wrong(
    trial: TrialStep, mean: Scalar, turned: Sites, times: Sites, released: Mask
) -> Scalar:
    """For how long the velocity has been wrong by what it is wrong by at the end.

    After crossings it grows from 0 at once; after a release from when that was; while gates
    slide with given multipliers, like the square of time. The first gate that lets a dead
    sample through jumps by what is not known before.
    """
    unknown = per_layer(lambda f, t: jnp.max(jnp.where(f == 0, t, 0.0)), turned, times)
    times_wrong = [
        0.5 * mean,
        jnp.max(jnp.stack(unknown)),
        jnp.where(any_of(released), trial.size / 2, 0.0),
        jnp.where(any_of(trial.gates.sliding), trial.size / 3, 0.0),
    ]
    return jnp.max(jnp.stack(times_wrong))


def _wrong_sides(
    z: Sites, after: GateState, leeway: Scalar, off: Sites, part: float = 1.0
) -> Mask:
    """The sites that are beyond their kinks after all, by more than (a part of) what those
    that slide were off theirs before they were put back."""

    def beyond(watched: Array, on: Array, slides: Array, off: Array, now: Array) -> Array:
        allowed = slack(now, slides, leeway, off, part)
        return watched & (jnp.where(on, now, -now) < -allowed)

    watched = without(after.frozen, after.sliding)
    return per_layer(beyond, watched, after.on, after.sliding, off, z)


def _error_of(trial: TrialStep, wrong: Mask, z: Sites) -> Scalar:
    """The error from gates that have come to the wrong side: their jumps, for as long as
    they have been there."""

    def square(wrong: Array, before: Array, now: Array, jump: Array) -> Array:
        total = jnp.abs(now) + jnp.abs(before)
        part = jnp.abs(now) / nonzero(total)
        return jnp.sum(jnp.where(wrong, trial.size * part * jump, 0.0) ** 2)

    squares = per_layer(square, wrong, trial.first.z, z, trial.jumps)
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))


class _PutBack(eqx.Module):
    position: Any
    z: Sites
    error: Scalar
    on_wrong_side: Mask


def _put_back(
    trial: TrialStep,
    position: Any,
    before_way_back: Any,
    after: GateState,
    wrong: Mask,
    z: Sites,
    off: Sites,
    furthest: Scalar,
) -> _PutBack:
    """The position with the sites of the mask back on their kinks: left beyond them, they
    would count as an error again in every step until they return.

    How far that is counts as an error if this step has taken them there, and so does the
    time for which they were there. Neither does where no smaller step would help: if they
    were there at the start already, under the gates of the end, or within what they may
    creep on by in a step; or if it is only that sliding sites were put back on their kinks
    that has moved them along. Those are put back only if near.
    """
    flow, leeway = trial.flow, trial.allowance.leeway

    def moved() -> _PutBack:
        fixed = constant(position)
        first, unmoved = (
            preactivations(flow, constant(at), after)
            for at in (trial.start.position, before_way_back)
        )
        before = _wrong_sides(first, after, leeway, off, 1 / CREEP)
        taken_there = both(wrong, _wrong_sides(unmoved, after, leeway, off))
        fresh = without(taken_there, before)
        has_fresh = any_of(fresh)
        chosen = per_layer(lambda f, w: jnp.where(has_fresh, f, w), fresh, wrong)
        held = GateState(after.on, either(after.sliding, chosen), after.frozen)
        back, _ = back_to_kinks(
            flow, fixed, held, trial.shared, trial.allowance.position, nowhere(after)
        )
        way = jax.tree.map(jnp.subtract, constant(flow.retract(back)), fixed)
        distance = norm(flow.point(way))
        taken = has_fresh | (distance <= furthest)
        there = jax.tree.map(lambda p, w: p + jnp.where(taken, w, 0.0), position, way)
        missed = constant(_error_of(trial, fresh, z))
        error = jnp.maximum(missed, jnp.where(has_fresh, distance, 0.0))
        now = preactivations(flow, there, after)
        return _PutBack(there, now, error, _wrong_sides(now, after, leeway, off))

    def stays() -> _PutBack:
        return _PutBack(position, z, jnp.zeros_like(furthest), nowhere(after))

    return jax.lax.cond(any_of(wrong), moved, stays)
