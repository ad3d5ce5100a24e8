r"""SGD as a stochastic differential equation, its noise that of batches of a finite set.

$$dW = -\nabla(R + \lambda\|W\|^2)\,dt + \sqrt{\eta}\;C(W)^{1/2}\,dB_t, \qquad
C = \frac{m-B}{B(m-1)}\,\frac1m\sum_i (g_i - \bar g)(g_i - \bar g)^\top.$$

Not in the paper. The increments are Gaussian, of rank up to m in a layer, and not of rank B
as those of SGD: a model of how much noise there is, not of its ranks.
"""

from typing import TYPE_CHECKING, Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._types import Scalar
from ...flows import GradientFlow
from ...nets import AbstractNet, LayeredNet
from ...problem import Problem
from ._quantities import check_mean


if TYPE_CHECKING:
    import lineax as lx


def subset_variance(samples: int, size: int) -> float:
    r"""$\frac{m-B}{B(m-1)}$: the variance of the mean of a uniform B-subset, over that of a
    single one of the m samples; 0 for B = m.

    Args:
        samples: m.
        size: B.

    Raises:
        ValueError: unless 1 ≤ B ≤ m.
    """
    if not 1 <= size <= samples:
        raise ValueError(f"size={size} must lie between 1 and the {samples} samples.")
    return (samples - size) / (size * (samples - 1)) if size < samples else 0.0


def gradient_noise(
    problem: Problem, net: AbstractNet, batch_size: int
) -> "lx.FunctionLinearOperator":
    r"""The square root of the covariance of a batch's gradient, as an operator:

    $$\xi \mapsto \sqrt{\frac{m-B}{B(m-1)\,m}}\;\sum_i \xi_i\,(g_i - \bar g), \qquad
    \xi \in \mathbb R^m.$$

    One pass back, not m of them: $\sum_i \xi_i (g_i - \bar g) = \sum_i (\xi_i - \bar\xi)
    g_i$. A lineax operator A from (m,) to nets, with $A A^\top = C$.

    Args:
        batch_size: B.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, the risk is no mean,
            or unless 1 ≤ B ≤ m; on batch normalisation.
    """
    import lineax as lx

    check_mean(problem, net)
    if isinstance(net, LayeredNet) and net.is_normalised:
        raise ValueError(
            "net has batch normalisation, with which a batch's gradient is no mean over "
            "its samples; fix the statistics: gf.nets.normalised_by(net, x)."
        )
    x, y = problem.data.x, problem.data.y
    m = x.shape[0]
    scale = (subset_variance(m, batch_size) / m) ** 0.5
    _, vjp = jax.vjp(lambda net: problem.loss.values(net(x), y), net)

    def apply(xi: Float[Array, " samples"]) -> AbstractNet:
        return vjp(scale * (xi - jnp.mean(xi)))[0]

    return lx.FunctionLinearOperator(apply, jax.ShapeDtypeStruct((m,), x.dtype))


def sgd_diffusion(
    problem: Problem,
    net: AbstractNet,
    rate: ArrayLike,
    t1: ArrayLike,
    *,
    batch_size: int,
    steps: int,
    key: PRNGKeyArray,
    weight_decay: ArrayLike = 0.0,
    saves: int = 1,
) -> tuple[Float[Array, " saves"], AbstractNet]:
    r"""A path of the equation from a net, by Euler and Maruyama: (times, nets).

    Args:
        rate: η, which scales the noise; `rate=0` is the flow.
        t1: until when; a step of SGD is t = η.
        batch_size: B.
        steps: of equal length t1/steps.
        key: seeds the Brownian motion.
        weight_decay: λ of the penalty λ‖W‖².
        saves: how many, at equal times, the last at t1.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, the risk is no mean,
            B is no batch size, or the counts make no sense.
    """
    check_mean(problem, net)
    subset_variance(problem.data.x.shape[0], batch_size)
    if not 1 <= saves <= steps:
        raise ValueError(f"saves={saves} must lie between 1 and steps={steps}.")
    dtype = problem.data.x.dtype
    flow = GradientFlow(problem, weight_decay)
    rate, t1 = jnp.asarray(rate, dtype), jnp.asarray(t1, dtype)
    return _path(flow, net, rate, t1, key, batch_size, steps, saves)


@eqx.filter_jit
def _path(
    flow: GradientFlow,
    net: AbstractNet,
    rate: Scalar,
    t1: Scalar,
    key: PRNGKeyArray,
    batch_size: int,
    steps: int,
    saves: int,
) -> tuple[Float[Array, " saves"], AbstractNet]:
    x = flow.problem.data.x
    dt = t1 / steps
    start = jnp.zeros_like(t1)

    def drift(t: Any, net: AbstractNet, args: Any) -> AbstractNet:
        return flow.velocity(net).position

    def diffusion(t: Any, net: AbstractNet, args: Any) -> "lx.AbstractLinearOperator":
        noise = gradient_noise(flow.problem, net, batch_size)
        return jnp.sqrt(rate) * noise

    shape = jax.ShapeDtypeStruct((x.shape[0],), x.dtype)
    brownian = dfx.VirtualBrownianTree(start, t1, tol=dt / 2, shape=shape, key=key)
    terms = dfx.MultiTerm(
        dfx.ODETerm(drift),  # pyright: ignore[reportArgumentType]
        dfx.ControlTerm(diffusion, brownian),
    )
    found = dfx.diffeqsolve(
        terms,
        dfx.Euler(),
        start,
        t1,
        dt,
        net,
        saveat=dfx.SaveAt(ts=t1 * jnp.arange(1, saves + 1, dtype=x.dtype) / saves),
        max_steps=steps + 2,
    )
    assert found.ts is not None and found.ys is not None
    return found.ts, found.ys
