"""Along the flow of two neurons: Lemma 7, and Lemmas 9 to 13 on the matched block."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from ...nets import MLP, norm
from ...problem import Problem
from .._check import Check, at_most, equal
from .._neuron_balance import balances
from ._closed_forms import limit_of
from ._setting import data_assumptions, two_neurons


def lone_neurons_move_along_their_point(problem: Problem, net: MLP) -> Check:
    r"""While w_i sees x_j alone, $\dot w_i = c\,x_j$: what is orthogonal to x_j is 0.

    Timor et al., Lemma 7. Entries (neuron,), of the gradient, up to rounding of it.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    neurons = two_neurons(problem, net)
    alone, second = neurons.own_point
    gradient = jax.grad(problem.risk)(net).weights[0]
    x = jnp.where(second[:, None], neurons.x[1], neurons.x[0])
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    across = jnp.abs(gradient[:, 0] * x[:, 1] - gradient[:, 1] * x[:, 0])
    rounding = 100 * float(jnp.finfo(x.dtype).eps)
    return equal(
        across,
        jnp.zeros_like(across),
        assumptions={"sees one point": alone},
        slack=rounding * jnp.linalg.norm(gradient, axis=1),
    )


def neurons_stay_balanced(
    problem: Problem,
    net: MLP,
    initial: MLP,
    *,
    weight_decay: ArrayLike = 0.0,
    time: ArrayLike = 0.0,
    tolerance: float = 1e-6,
) -> Check:
    r"""$\|W_{l,i\cdot}\|^2 - \|W_{l+1,\cdot i}\|^2$ is conserved, and decays as
    $e^{-4\lambda t}$ under `GradientFlow(problem, weight_decay=λ)`.

    Timor et al., Lemma 9, for any depth and any differentiable loss; the decay is not in
    the paper. Entries (Σ n_l,), layer by layer: left its value at `net`, right what
    becomes of that of `initial` by then.

    Args:
        initial: the net that the flow started from.
        weight_decay: λ of the penalty λ‖θ‖² of that flow.
        time: from `initial` to `net`, in physical time; without decay it does not matter.
        tolerance: of the solve; what a value may err relative to the larger ‖θ‖².

    Raises:
        TypeError, ValueError: if a net is no MLP, does not fit the problem, or has no
            hidden layer; if the widths differ, or unless the tolerance is at least 0.
    """
    now, then, slack = balances(problem, net, initial, tolerance)
    decay = jnp.exp(
        -4 * jnp.asarray(weight_decay, now.dtype) * jnp.asarray(time, now.dtype)
    )
    return equal(-now, -decay * then, assumptions={}, slack=slack)


def matched_block_invariants(problem: Problem, nets: MLP, slack: float = 1e-10) -> Check:
    r"""From a matched net with V = 0, for both points, with $p_i = w_i\cdot x_i$ and
    $\varphi_i = p_i v_i - y_i$: the loss |φ_i|²/2 and −p_i do not grow, $v_i\cdot\varphi_i
    \le 0$, v_i is in span{y_i}, and w_i − w_i(0) in $\mathbb R_+ x_i$.

    Timor et al., Lemmas 10 to 12. Entries (T−1, 2, 5), from each save to the next: what
    the first two grow by, v_i·φ_i at its end, |v_i ∧ y_i| and |(w_i − w_i(0)) ∧ x_i|.
    Each is at most 0.

    Args:
        nets: `traj.net`, leading axis T, from the start on.
        slack: by how much each may exceed 0, for the error of the solve.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    first = two_neurons(problem, jax.tree.map(lambda leaf: leaf[0], nets))

    def look(net: MLP) -> tuple[Array, ...]:
        now = two_neurons(problem, net).neurons_by_point
        p = jnp.diagonal(now.z)
        misfit = p[:, None] * now.v - now.y
        moved = now.w - first.neurons_by_point.w
        return (
            now.is_matched,
            jnp.sum(misfit**2, axis=1) / 2,
            p,
            jnp.sum(now.v * misfit, axis=1),
            _area(now.v, now.y),
            _area(moved, now.x),
        )

    matched, loss, p, *others = jax.vmap(look)(nets)
    growths = (jnp.diff(loss, axis=0), -jnp.diff(p, axis=0))
    lhs = jnp.stack([*growths, *(each[1:] for each in others)], axis=2)
    started = jnp.all(first.v == 0) & matched[0]
    return at_most(
        lhs,
        jnp.zeros_like(lhs),
        assumptions={
            "from V = 0, matched": jnp.broadcast_to(started, matched[1:].shape),
            "matched": matched[1:],
        },
        slack=slack,
    )


def gradient_domination(problem: Problem, net: MLP, earlier: MLP) -> Check:
    r"""$L \le K\,|\nabla L|^2$ with $K = \tfrac12\sum_i (w_i(t')\cdot x_i)^{-2}$.

    Timor et al., Lemma 12, for matched nets from V = 0: so the loss decays at the rate 1/K
    at least. L is the paper's, a sum over the points.

    Args:
        earlier: the net at t', no later than `net` on the same flow.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    now = two_neurons(problem, net).neurons_by_point
    then = two_neurons(problem, earlier).neurons_by_point
    p = jnp.diagonal(then.z)
    constant = jnp.sum(1 / jnp.where(p > 0, p, 1) ** 2) / 2
    total = Problem(problem.data, problem.loss, reduction="sum")
    slope = norm(jax.grad(total.risk)(net))
    return at_most(
        now.loss,
        constant * slope**2,
        assumptions={
            **data_assumptions(problem),
            "matched": now.is_matched & then.is_matched,
        },
    )


def limit_is_the_closed_form(
    problem: Problem, net: MLP, initial: MLP, tolerance: float = 1e-6
) -> Check:
    r"""The limit from a matched start is the root of $p\sqrt{C+|w|^2} = 1$,
    $C = |v(0)|^2-|w(0)|^2$, and v = y/p: see `matched_limit`.

    Timor et al., Lemma 13, who show that there is one root. Nine entries: the
    weights W and V in rows, then the larger deviation of the two equations. It assumes that
    no neuron has left its cone on the way.

    Args:
        initial: the matched net that the flow started from, with any V.
        tolerance: of the solve; what each entry may err.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    start = two_neurons(problem, initial)
    expected = limit_of(start)
    end = two_neurons(problem, net).neurons_by_point
    ordered = start.neurons_by_point
    root = jnp.sqrt(jnp.maximum(end.w_norm**2 - ordered.imbalance, 0))
    equation = jnp.max(jnp.abs(jnp.diagonal(end.z) * root - 1))
    lhs = jnp.concatenate([*(w.ravel() for w in net.weights), equation[None]])
    rhs = jnp.concatenate(
        [*(w.ravel() for w in expected.weights), jnp.zeros_like(equation)[None]]
    )
    return equal(
        lhs,
        rhs,
        assumptions={**data_assumptions(problem), "matched start": start.is_matched},
        slack=tolerance,
    )


def _area(a: Array, b: Array) -> Array:
    """|a ∧ b| of the vectors in the last axis: 0 where they are parallel."""
    return jnp.abs(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])
