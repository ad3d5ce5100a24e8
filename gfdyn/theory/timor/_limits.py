"""Limits of the flow of two neurons: Theorems 2 and 3, Lemmas 3 to 6 and 8.

`STATEMENT(problem, net, ...)`, where `net` stands for the limit; `jax.vmap` runs them over
an ensemble. The loss L is the paper's, a sum over the two points.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array

from ...nets import MLP
from ...problem import Problem
from .._check import Check, at_most, equal
from ._bounds import (
    dead_neuron_loss,
    far_angles,
    far_norms,
    far_radius,
    limit_angles,
    limit_norms,
    rank_two_radius,
)
from ._cones import point_coordinates
from ._setting import (
    TwoNeurons,
    angle_between,
    data_assumptions,
    inputs_angle,
    targets_angle,
    two_neurons,
)


def limit_has_rank_two(
    problem: Problem, net: MLP, initial: MLP, tolerance: float = 1e-10
) -> Check:
    r"""No limit of zero loss has a W of rank one: $\sigma_2(W)/\sigma_1(W) > 0$.

    Timor et al., Theorem 2, if |w_i(0)| is below `rank_two_radius` and |v_i(0)| below 1/2.
    Left is √tolerance, right the ratio. The theorem gives no gap.

    Args:
        initial: the net that the flow started from.
        tolerance: a loss up to it counts as 0, and a ratio up to √tolerance.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    end, start = two_neurons(problem, net), two_neurons(problem, initial)
    ratio = _singular_ratio(end.w)
    small = jnp.all(start.w_norm < rank_two_radius(_phi(problem)))
    return at_most(
        jnp.full_like(ratio, math.sqrt(tolerance)),
        ratio,
        assumptions={
            **data_assumptions(problem),
            "small W": small,
            "small V": jnp.all(start.v_norm < 0.5),
            "zero loss": end.loss <= tolerance,
        },
    )


def limit_is_far_from_rank_one(
    problem: Problem, net: MLP, initial: MLP, tolerance: float = 1e-10
) -> Check:
    r"""From a matched start with V = 0 the flow ends in the event of Theorem 3:

    $$L = 0, \qquad \pi-\phi \le \angle(w_1,w_2) \le \tfrac\pi2+\tfrac\phi2, \qquad
    \tfrac{\sqrt3}2 \le |w_i| \le \sqrt{\tfrac14+\tfrac4{3\sin^2\phi}}.$$

    Timor et al., Theorem 3, if |w_i(0)| is at most `far_radius`; they conclude that it has
    `far_probability` at least. Seven entries: L, then the lower and the upper bound of the
    angle, of |w_1|, of |w_2|.

    Args:
        initial: the net that the flow started from.
        tolerance: a loss up to it counts as 0; the bounds hold up to √tolerance.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    end, start = two_neurons(problem, net), two_neurons(problem, initial)
    phi = _phi(problem)
    lhs, rhs = _between(end, far_angles(phi), far_norms(phi))
    rounding = 1 + 100 * float(jnp.finfo(phi.dtype).eps)
    none = jnp.full_like(phi, tolerance)
    return at_most(
        jnp.concatenate([end.loss[None], lhs]),
        jnp.concatenate([none[None], rhs]),
        assumptions={
            **data_assumptions(problem),
            "small W": jnp.all(start.w_norm <= rounding * far_radius(phi)),
            "V = 0": jnp.all(start.v == 0),
            "matched start": start.is_matched,
        },
        slack=jnp.asarray([0.0] + 6 * [math.sqrt(tolerance)], phi.dtype),
    )


def low_rank_fit_is_opposed(problem: Problem, net: MLP, tolerance: float = 1e-10) -> Check:
    r"""If W has rank one at zero loss, then $w_2 = \alpha w_1$ with α < 0:
    $\cos\angle(w_1, w_2) = -1$ (Timor et al., Lemma 3).

    Args:
        tolerance: a loss up to it counts as 0; σ_2/σ_1 and an error do up to √tolerance.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    end = two_neurons(problem, net)
    return equal(
        jnp.cos(angle_between(end.w[0], end.w[1])),
        jnp.asarray(-1.0, end.w.dtype),
        assumptions={
            "A1": data_assumptions(problem)["A1"],
            "zero loss": end.loss <= tolerance,
            "rank one": _singular_ratio(end.w) <= math.sqrt(tolerance),
        },
        slack=math.sqrt(tolerance),
    )


def fit_has_no_dead_neuron(problem: Problem, net: MLP, tolerance: float = 1e-10) -> Check:
    """At zero loss no w_i is in D: 0 neurons are dead (Timor et al., Lemma 4).

    Args:
        tolerance: a loss up to it counts as 0.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    end = two_neurons(problem, net)
    dead = jnp.sum(_dead(end)).astype(end.w.dtype)
    return equal(
        dead,
        jnp.zeros_like(dead),
        assumptions={
            "A1": data_assumptions(problem)["A1"],
            "zero loss": end.loss <= tolerance,
        },
    )


def dead_neurons_are_frozen(problem: Problem, net: MLP, earlier: MLP) -> Check:
    r"""A neuron that is dead once stays as it is: $w_i$ and $v_i$ are those of `earlier`.
    Timor et al., Lemma 5. Entries (neuron, weight), the weights w_i1, w_i2, v_i1, v_i2.

    Args:
        earlier: the net at an earlier time, which says which neurons are dead.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    now, then = two_neurons(problem, net), two_neurons(problem, earlier)
    return equal(
        jnp.concatenate([now.w, now.v], axis=1),
        jnp.concatenate([then.w, then.v], axis=1),
        assumptions={"dead": _dead(then)},
    )


def dead_neurons_cost(problem: Problem, net: MLP, slack: float = 1e-8) -> Check:
    r"""With a dead neuron $L \ge (1 - \max\{\cos\psi, 0\})/2$, the `dead_neuron_loss`.
    The quantity behind Lemma 5 of Timor et al., which says L > 0.

    Args:
        slack: by how much L may fall short.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    end = two_neurons(problem, net)
    return at_most(
        dead_neuron_loss(targets_angle(problem)),
        end.loss,
        assumptions={
            "A1": data_assumptions(problem)["A1"],
            "dead": jnp.any(_dead(end)),
        },
        slack=slack,
    )


def matched_limit_bounds(
    problem: Problem, net: MLP, initial: MLP, tolerance: float = 1e-10
) -> Check:
    r"""A matched limit of zero loss is in the intervals of `limit_angles`, `limit_norms`.

    Timor et al., Lemma 6, if |w_i(0)|, |v_i(0)| < 1/2; neurons may be swapped on the way.
    Six entries: the lower and the upper bound of ∠(w_1, w_2), of |w_1|, of |w_2|.

    Args:
        initial, tolerance: see `limit_is_far_from_rank_one`.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    end, start = two_neurons(problem, net), two_neurons(problem, initial)
    phi = _phi(problem)
    small = jnp.minimum(start.w_norm, 0.5)
    angles, norms = limit_angles(phi, jnp.max(small)), limit_norms(phi, small)
    lhs, rhs = _between(end, angles, norms)
    return at_most(
        lhs,
        rhs,
        assumptions={
            **data_assumptions(problem),
            "small start": jnp.all((start.w_norm < 0.5) & (start.v_norm < 0.5)),
            "matched": end.is_matched,
            "zero loss": end.loss <= tolerance,
        },
        slack=math.sqrt(tolerance),
    )


def lone_neurons_are_reachable(
    problem: Problem, net: MLP, initial: MLP, slack: float = 1e-6
) -> Check:
    r"""A neuron that sees x_i alone has w in $A_i$, at any time: see `in_reachable_set`.

    Timor et al., proof of Lemma 6. Entries (neuron, 2): −r ≤ |w_i(0)|, r ≤ p tan(φ − π/2).

    Args:
        initial: the net that the flow started from.
        slack: of the solve; by how much an entry may exceed its bound.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    now, start = two_neurons(problem, net), two_neurons(problem, initial)
    alone, second = now.own_point
    coordinates = [point_coordinates(problem, now.w, point) for point in (0, 1)]
    p, r = (
        jnp.where(second, theirs, ours) for ours, theirs in zip(*coordinates, strict=True)
    )
    steepest = -1 / jnp.tan(_phi(problem))
    return at_most(
        jnp.stack([-r, r], axis=1),
        jnp.stack([start.w_norm, p * steepest], axis=1),
        assumptions={"A2": data_assumptions(problem)["A2"], "sees one point": alone},
        slack=slack,
    )


def fitted_neuron_norms(problem: Problem, net: MLP, tolerance: float = 1e-10) -> Check:
    r"""A matched net of zero loss has $y_i = (w_i\cdot x_i)\,v_i$, $|v_i||w_i| \ge 1$ and
    $\min(|w_i|, |v_i|) \ge \sqrt{1-|\epsilon_i|}$.

    Timor et al., Lemma 8. Entries (neuron, 3): |y_i − (w_i·x_i) v_i| ≤ 0, then both bounds.

    Args:
        tolerance: a loss up to it counts as 0; the bounds hold up to 2√tolerance.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    end = two_neurons(problem, net).neurons_by_point
    p = jnp.diagonal(end.z)
    unexplained = jnp.linalg.norm(end.y - p[:, None] * end.v, axis=1)
    floor = jnp.sqrt(jnp.maximum(1 - jnp.abs(end.imbalance), 0))
    smaller = jnp.minimum(end.w_norm, end.v_norm)
    return at_most(
        jnp.stack([unexplained, jnp.ones_like(p), floor], axis=1),
        jnp.stack([jnp.zeros_like(p), end.w_norm * end.v_norm, smaller], axis=1),
        assumptions={
            **data_assumptions(problem),
            "matched": end.is_matched,
            "zero loss": end.loss <= tolerance,
        },
        slack=2 * math.sqrt(tolerance),
    )


def _between(
    end: TwoNeurons, angles: tuple[Array, Array], norms: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Both sides of the six inequalities."""
    angle = angle_between(end.w[0], end.w[1])
    low, high = (jnp.broadcast_to(bound, (2,)) for bound in norms)
    first, second = end.w_norm
    lhs = [angles[0], angle, low[0], first, low[1], second]
    rhs = [angle, angles[1], first, high[0], second, high[1]]
    return jnp.stack(lhs), jnp.stack(rhs)


def _dead(neurons: TwoNeurons) -> Array:
    return ~jnp.any(neurons.z > 0, axis=1)


def _phi(problem: Problem) -> Array:
    """φ; where it is not obtuse the assumption A2 says so, and the bounds mean nothing."""
    phi = inputs_angle(problem)
    return jnp.clip(phi, jnp.pi / 2 * (1 + 1e-6), jnp.pi * (1 - 1e-6))


def _singular_ratio(w: Array) -> Array:
    singular = jnp.linalg.svd(w, compute_uv=False)
    return singular[1] / jnp.where(singular[0] > 0, singular[0], 1)
