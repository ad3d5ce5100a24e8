r"""Gradient descent keeps what the flow conserves up to sums of squares of its steps.

Appendix F of the first version of Le & Jegelka, which the corrected one leaves out. The
steps are $\theta_{t+1} = \theta_t - \eta_t \nabla R(\theta_t)$, of all samples, without
momentum or decay: the nets of `gf.descend(problem, net, rate, steps, save_every=1)`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ...nets import AbstractNet, norm
from ...problem import Problem, check_fit
from .._check import Check, at_most, equal
from ._version import Version, check_version


# In units of the precision, for each step: what rounding may move.
_ROUNDING = 10.0
# Gradients at a time.
_CHUNK = 1024


class _Descent(eqx.Module):
    """The nets of a descent, its rates, and the gradient at each but the last."""

    problem: Problem
    nets: AbstractNet
    rates: Float[Array, " steps"]
    gradients: AbstractNet

    @property
    def start(self) -> AbstractNet:
        return jax.tree.map(lambda leaf: leaf[0], self.nets)

    @property
    def initial_risk(self) -> Float[Array, ""]:
        return self.problem.risk(self.start)

    @property
    def steps(self) -> int:
        return len(self.rates)

    @property
    def flat(self) -> Float[Array, "steps parameters"]:
        """The gradients as vectors."""
        return jnp.concatenate(
            [leaf.reshape(self.steps, -1) for leaf in jax.tree.leaves(self.gradients)],
            axis=1,
        )

    @property
    def assumptions(self) -> dict[str, Array]:
        """What the bounds ask for."""
        fallen = jnp.sum(self.rates * jnp.sum(self.flat**2, axis=1))
        return {
            "rates of at most 1": jnp.all((self.rates > 0) & (self.rates <= 1)),
            "risk falls by half of the rate": fallen <= 2 * self.initial_risk,
        }

    def moved(self, version: Version) -> list[Float[Array, "steps entries"]]:
        """M(t) − M(0) after each step, of each invariant."""
        values = jax.vmap(lambda net: _claimed(net, version))(self.nets)
        return [(m[1:] - m[:1]).reshape(self.steps, -1) for m in values]

    def slack(self, version: Version) -> list[Float[Array, "steps entries"]]:
        """The sum over all steps so far of η² (G_2ᵀG_2 − G_1 G_1ᵀ), of each invariant."""
        values = jax.vmap(lambda net: _claimed(net, version))(self.gradients)
        squares = self.rates[:, None] ** 2
        return [jnp.cumsum(squares * m.reshape(self.steps, -1), axis=0) for m in values]


def slack_identity(
    problem: Problem,
    nets: AbstractNet,
    rates: ArrayLike,
    version: Version = "corrected",
) -> Check:
    r"""Steps move $M = W_2^\top W_2 - W_1 W_1^\top$ by their second order alone:

    $$M(t) - M(0) = \sum_{\tau<t} \eta_\tau^2\, (G_2^\top G_2 - G_1 G_1^\top)(\tau), \qquad
    G = \nabla_W R,$$

    of what `gf.diagnostics.invariants` lists: all of M, its diagonal, or norms. Le &
    Jegelka, first version, App. F, eqs. (80) to (85), which sum over IN where it is OUT,
    and have a factor 2 too much.

    Sides: the largest gap of each over the largest ‖θ‖², and 0. Entries (invariants,).

    Args:
        nets: stacked, where each step starts, and where the last one ends.
        rates: η, of each step or of all.
        version: `"first"` has all of M for ReLU units too, which is false.

    Raises:
        TypeError, ValueError: if the nets do not fit the problem or the rates; on another
            version.
    """
    descent = _descent(problem, nets, rates, version)
    pairs = zip(descent.moved(version), descent.slack(version), strict=True)
    gaps = jnp.stack([jnp.max(jnp.abs(moved - slack)) for moved, slack in pairs])
    lhs = gaps / jnp.max(jax.vmap(norm)(nets)) ** 2
    slack = _ROUNDING * float(jnp.finfo(lhs.dtype).eps) * (descent.steps + 10)
    return equal(lhs, jnp.zeros_like(lhs), assumptions={}, slack=slack)


def slack_bound(
    problem: Problem,
    nets: AbstractNet,
    rates: ArrayLike,
    version: Version = "corrected",
) -> Check:
    r"""$\|M(t) - M(0)\|_F \le 2R(\theta_0)$ at all times, for rates of at most 1 with which
    the risk falls as it should: $\sum_\tau \eta_\tau \|\nabla R(\theta_\tau)\|^2 \le
    2R(\theta_0)$.

    Le & Jegelka, first version, App. F. They take η ≤ 1/β, β the smoothness of R on a ball,
    from which that follows; with ReLUs there is no such β, so the sum itself is looked at.
    Entries (invariants,), the largest over the steps.

    Args:
        nets, rates, version: see `slack_identity`.

    Raises:
        TypeError, ValueError: as `slack_identity`.
    """
    descent = _descent(problem, nets, rates, version)
    moved = descent.moved(version)
    lhs = jnp.stack([jnp.sqrt(jnp.max(jnp.sum(m**2, axis=1))) for m in moved])
    return at_most(
        lhs,
        jnp.full_like(lhs, 2 * descent.initial_risk),
        assumptions=descent.assumptions,
    )


def product_bound(problem: Problem, nets: AbstractNet, rates: ArrayLike) -> Check:
    r"""$\big|\sum_\tau \eta_\tau^2\, \partial_e R\, \partial_f R\big| \le R(\theta_0)$ for
    parameters e ≠ f, and $2R(\theta_0)$ for e = f. Entries (parameters, parameters).

    Le & Jegelka, first version, eq. (90), which has $R(\theta_0)$ for all. Assumptions
    as `slack_bound`.

    Args:
        nets, rates: see `slack_identity`.

    Raises:
        TypeError, ValueError: as `slack_identity`.
    """
    descent = _descent(problem, nets, rates, "corrected")
    flat = descent.flat
    lhs = jnp.abs((descent.rates[:, None] ** 2 * flat).T @ flat)
    rhs = descent.initial_risk * (1 + jnp.eye(len(lhs), dtype=lhs.dtype))
    return at_most(lhs, rhs, assumptions=descent.assumptions)


def _descent(
    problem: Problem, nets: AbstractNet, rates: ArrayLike, version: Version
) -> _Descent:
    """Check the arguments, and compute the gradients."""
    check_version(version)
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(nets)}
    steps = min(counts) - 1
    if len(counts) > 1 or steps < 1:
        raise ValueError(
            f"nets has leading axes {sorted(counts)}; give one stack of two nets or more, "
            "such as traj.net of gf.descend(..., save_every=1)."
        )
    eta = jnp.asarray(rates, problem.data.x.dtype)
    if eta.shape not in ((), (steps,)):
        raise ValueError(
            f"rates has shape {eta.shape}, but {steps + 1} nets have {steps} steps "
            "between them; give one rate for each, or one for all."
        )
    start = jax.tree.map(lambda leaf: leaf[0], nets)
    check_fit(problem, start)
    before = jax.tree.map(lambda leaf: leaf[:-1], nets)
    gradients = jax.lax.map(jax.grad(problem.risk), before, batch_size=_CHUNK)
    return _Descent(problem, nets, jnp.broadcast_to(eta, (steps,)), gradients)


def _claimed(net: AbstractNet, version: Version) -> list[Array]:
    """What a version says to be conserved, of each invariant."""
    return [
        m.matrix if version == "first" and m.form == "blocks" else m.value
        for m in net.conserved()
    ]
