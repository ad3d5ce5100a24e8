"""SGD in continuous time: the gradient flow of one batch after the other."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

from ...descent import on_batch
from ...flows import GradientFlow
from ...nets import AbstractNet
from ...problem import Problem
from ...run import solve
from ...solvers import AbstractSolver
from .._check import Check, at_most
from ._quantities import check_matrices, check_mean, excess


def switched_flow(
    problem: Problem,
    net: AbstractNet,
    batches: Int[Array, "windows size"],
    duration: ArrayLike,
    *,
    weight_decay: ArrayLike = 0.0,
    solver: AbstractSolver | None = None,
) -> AbstractNet:
    r"""The nets after each window of $\dot\theta = -\nabla (R_{\tilde S_k} +
    \lambda\|\theta\|^2)$, $t \in [k\eta, (k+1)\eta]$, with a leading axis (windows,).

    A step of SGD is one Euler step over a window. Not in the paper.

    Args:
        batches: samples, that of each window a row.
        duration: η.
        weight_decay: λ.
        solver: of each window; `gf.solvers.ExactKinks()` if None.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, or the risk is no mean.
    """
    check_mean(problem, net)
    end = jnp.asarray(duration, problem.data.x.dtype)

    def window(net: AbstractNet, rows: Array) -> tuple[AbstractNet, AbstractNet]:
        flow = GradientFlow(on_batch(problem, rows), weight_decay)
        after = solve(flow, net, ts=end[None], solver=solver).final
        return after, after

    return jax.lax.scan(window, net, batches)[1]


def low_rank_window(
    before: AbstractNet,
    after: AbstractNet,
    batch_size: int,
    survival: ArrayLike,
    tolerance: float,
) -> Check:
    r"""A window of `switched_flow` adds to the faded first layer a matrix of rank B:

    $$\operatorname{rank}\big(W_1(t+\eta) - e^{-2\lambda\eta}\,W_1(t)\big) \le B.$$

    The other layers keep no such rank, as what enters them moves within the window: their
    entries are there to see, and no claim. Entries (L,): σ_{B+1}/σ_1, and 0; vacuous where
    no matrix has a higher rank.

    Args:
        before, after: the nets at the start and at the end of the window.
        batch_size: B.
        survival: $e^{-2\lambda\eta}$.
        tolerance: up to which σ_{B+1}/σ_1 counts as 0: that of the solve over the size of
            what the window adds.

    Raises:
        TypeError, ValueError: on weights that are no matrices.
    """
    check_matrices(before)
    pairs = list(zip(before.weights, after.weights, strict=True))
    factor = jnp.asarray(survival, pairs[0][0].dtype)
    lhs = jnp.stack([excess(new - factor * old, batch_size) for old, new in pairs])
    return at_most(
        lhs,
        jnp.zeros_like(lhs),
        assumptions={"first_layer": jnp.arange(len(pairs)) == 0},
        vacuous=jnp.asarray([batch_size >= min(w.shape) for w in after.weights]),
        slack=tolerance,
    )
