"""How the Gram matrices of a ReLU layer do move: Lemma 4 and Remark 1, corrected."""

import jax
import jax.numpy as jnp

from ..._numerics import VELOCITY_ROUNDING
from ..._site_motion import at_units, motion
from ..._types import Gates
from ...diagnostics import GramVelocity, gram_velocities
from ...nets import AbstractNet, Invariant
from ...problem import Problem, check_fit
from .._check import Check, at_most, equal


def noninvariance(problem: Problem, net: AbstractNet, gates: Gates | None = None) -> Check:
    r"""Of a neuron u active and a neuron v off on every example, the two Gram matrices move
    by different sums, z the pre-activations and $g = \partial R/\partial a$:

    $$\frac{d}{dt} \sum_b w_{ub} w_{vb} = -\sum_i g_{iv} z_{iu}, \qquad
    \frac{d}{dt} \sum_a w_{au} w_{av} = -\sum_i g_{iu} z_{iv}.$$

    Le & Jegelka, Lemma 4, eqs. 65 and 67. For any gates D, of which this is D_u = 1,
    D_v = 0 (not in the paper): $-\sum_i (D_{iu} g_{iv} z_{iu} + D_{iv} g_{iu} z_{iv})$ and
    $-\sum_i (D_{iv} g_{iv} z_{iu} + D_{iu} g_{iu} z_{iv})$.

    Entries (2, values): the outgoing matrix and the incoming, (u, v) row by row, invariant
    after invariant. The assumption `on, off` is not met by other pairs, of which only the
    general sums are compared. Equal up to rounding of the largest velocity in a matrix.

    Args:
        gates: D, (N, n_l) for each hidden layer; if None, the activations' own.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, or has no such neurons.
    """
    matrices = _matrices(problem, net)
    velocities = gram_velocities(problem, net, gates)
    here = motion(problem, net, gates)
    lhs, rhs, pairs, slack = [], [], [], []
    for m in matrices:
        zm, gm, d = (at_units(m, sites) for sites in (here.z, here.signal, here.gates))
        on, off = jnp.all(d == 1, axis=0), jnp.all(d == 0, axis=0)
        pairs.append(jnp.ravel(on[:, None] & off[None, :]))
        open_, passed = (d * zm).T @ gm, zm.T @ (d * gm)
        rhs.append(-jnp.stack([jnp.ravel(s + s.T) for s in (open_, passed)]))
        v = velocities[m.name]
        lhs.append(jnp.stack([jnp.ravel(v.outgoing), jnp.ravel(v.incoming)]))
        eps = float(jnp.finfo(zm.dtype).eps)
        slack.append(
            jnp.full_like(lhs[-1], VELOCITY_ROUNDING * eps) * jnp.max(jnp.abs(lhs[-1]))
        )
    met = jnp.concatenate(pairs)
    return equal(
        jnp.concatenate(lhs, axis=1),
        jnp.concatenate(rhs, axis=1),
        assumptions={"on, off": jnp.stack([met, met])},
        slack=jnp.concatenate(slack, axis=1),
    )


def gram_velocity_ranks(
    problem: Problem,
    net: AbstractNet,
    gates: Gates | None = None,
    threshold: float = 1e-10,
) -> Check:
    r"""None of the Gram matrices around a layer moves by more than rank 2N: 2 for a single
    example, N counting samples and positions.

    Le & Jegelka, Remark 1, have N = 1 and $W^\top W$ alone; any N is not in the paper.
    Entries (4, invariants): the ranks of the velocities of $W_1 W_1^\top$, $W_2^\top W_2$,
    $W_1^\top W_1$, $W_2 W_2^\top$, and the bound. Vacuous where no rank could be larger.

    Args:
        gates: see `noninvariance`.
        threshold: the rank counts singular values above this part of the largest.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, or has no such neurons.
    """
    velocities = gram_velocities(problem, net, gates)
    x = problem.data.x
    shapes = jax.eval_shape(net.preactivations, x)
    ranks, bounds, sizes = [], [], []
    for m in _matrices(problem, net):
        velocity: GramVelocity = velocities[m.name]
        ranks.append(velocity.ranks(threshold))
        units = shapes[m.layer - 1].shape[1] if m.units is None else len(m.units)
        bounds.append(2 * len(x) * (units // len(m.incoming)))
        sizes.append([*m.incoming.shape[:1] * 2, m.incoming.shape[1], m.outgoing.shape[0]])
    rhs = jnp.asarray(bounds, x.dtype)[None, :]
    return at_most(
        jnp.stack(ranks, axis=1).astype(x.dtype),
        rhs,
        assumptions={},
        vacuous=jnp.asarray(sizes, x.dtype).T <= rhs,
    )


def _matrices(problem: Problem, net: AbstractNet) -> list[Invariant]:
    check_fit(problem, net)
    matrices = [m for m in net.conserved() if m.form in ("full", "blocks")]
    if not matrices:
        raise ValueError("net has no hidden neurons whose weights are all trained.")
    return matrices
