r"""What decay forgets: the last k steps of SGD are a matrix of rank kB, the rest fades.

$$W_T = q^k\,W_{T-k} - \eta \sum_{j<k} q^{k-1-j}\,G_{T-k+j}, \qquad q = 1 - 2\eta\lambda.$$
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._tracing import is_concrete
from ..._types import Scalar
from ...descent import LearningRate, NormScaledRate
from ...nets import AbstractNet
from .._check import Check, at_most
from ._quantities import ROUNDING, check_matrices, distance_to_rank, excess


def companion(
    rate: ArrayLike, weight_decay: ArrayLike, momentum: ArrayLike = 0.0
) -> Float[Array, "2 2"]:
    r"""$A = \begin{pmatrix} 1-2\eta\lambda & -\eta\beta \\ 2\lambda & \beta \end{pmatrix}$:
    SGD without its gradients, on (W, v).

    A step with the heavy ball is $(W, v) \mapsto A\,(W, v) + (-\eta, 1)\,G$. The larger
    eigenvalue is nearly $1 - 2\eta\lambda/(1-\beta)$. Not in the paper.

    Args:
        rate: η.
        weight_decay: λ of the penalty λ‖W‖².
        momentum: β.
    """
    eta, decay, beta = (jnp.asarray(a, float) for a in (rate, weight_decay, momentum))
    rows = [[1 - 2 * eta * decay, -eta * beta], [2 * decay, beta]]
    return jnp.stack([jnp.stack(row) for row in rows])


def low_rank_unrolled(
    before: AbstractNet,
    after: AbstractNet,
    steps: int,
    batch_size: int,
    *,
    rate: ArrayLike,
    weight_decay: ArrayLike,
    momentum: ArrayLike = 0.0,
    velocity: AbstractNet | None = None,
    uses: int = 1,
) -> Check:
    r"""What k steps of SGD have added to the faded weights has rank kB at most:

    $$W_T - (A^k)_{11} W_{T-k} - (A^k)_{12} v_{T-k}.$$

    From the later paper by Galanti et al. (arXiv 2206.05794), here with the heavy ball.
    Entries (L,): $\sigma_{kB+1}$ over ‖W_T‖_F + ‖W_{T−k}‖_F, and 0; vacuous where no matrix
    has a higher rank.

    Args:
        before, after: the nets k steps apart.
        steps: k, at a constant rate.
        batch_size: B.
        rate, weight_decay, momentum: see `companion`.
        velocity: v at the first, as in the `checkpoint` of a descent; 0 if None.
        uses: how often a matrix acts on one sample (patches of a convolution).

    Raises:
        ValueError: unless `steps` and `batch_size` are 1 or more.
    """
    faded = _faded(before, velocity, steps, batch_size, rate, weight_decay, momentum)
    rank = uses * steps * batch_size
    ratios = []
    for w, f, old in zip(after.weights, faded, before.weights, strict=True):
        size = jnp.linalg.norm(w) + jnp.linalg.norm(old)
        added = w - f
        largest = jnp.linalg.norm(added, 2)
        ratios.append(excess(added, rank) * largest / jnp.where(size > 0, size, 1))
    lhs = jnp.stack(ratios)
    return at_most(
        lhs,
        jnp.zeros_like(lhs),
        assumptions={},
        vacuous=jnp.asarray([rank >= min(w.shape) for w in after.weights]),
        slack=ROUNDING * float(jnp.finfo(lhs.dtype).eps),
    )


def memory_bound(
    before: AbstractNet,
    after: AbstractNet,
    steps: int,
    batch_size: int,
    *,
    rate: ArrayLike,
    weight_decay: ArrayLike,
    momentum: ArrayLike = 0.0,
    velocity: AbstractNet | None = None,
    uses: int = 1,
) -> Check:
    r"""After k steps the weights are as near to rank kB as the older ones have faded:

    $$\min_{\operatorname{rank} V \le kB} \Big\|\frac{W_T}{\|W_T\|_F} - V\Big\|_F \le
    \frac{\|(A^k)_{11} W_{T-k} + (A^k)_{12} v_{T-k}\|_F}{\|W_T\|_F}.$$

    From the later paper by Galanti et al. (arXiv 2206.05794), where $A_{11}^k = q^k$
    without momentum. Entries (L,); vacuous where the bound is 1 or more, or no matrix has a
    higher rank than kB: at the paper's settings always. See `forgetting_exponent` for what
    is left of it.

    Args:
        before, after, steps, batch_size, velocity, uses: see `low_rank_unrolled`.
        rate, weight_decay, momentum: see `companion`.

    Raises:
        ValueError: unless `steps` and `batch_size` are 1 or more.
    """
    faded = _faded(before, velocity, steps, batch_size, rate, weight_decay, momentum)
    rank = uses * steps * batch_size
    sizes = [jnp.linalg.norm(w) for w in after.weights]
    safe = [jnp.where(size > 0, size, 1) for size in sizes]
    pairs = zip(after.weights, safe, strict=True)
    lhs = jnp.stack([distance_to_rank(w / size, rank) for w, size in pairs])
    pairs = zip(faded, safe, strict=True)
    rhs = jnp.stack([jnp.linalg.norm(f) / size for f, size in pairs])
    full = jnp.asarray([rank >= min(w.shape) for w in after.weights])
    return at_most(
        lhs,
        rhs,
        assumptions={},
        vacuous=(rhs >= 1) | full,
        slack=ROUNDING * float(jnp.finfo(rhs.dtype).eps) * (1 + rhs),
    )


def memory_span(
    accuracy: float, rate: float, weight_decay: float, batch_size: int
) -> tuple[int, int]:
    r"""(k, kB) with $k = \lceil \log(2/\epsilon)/2\eta\lambda \rceil$: how many steps back
    weights of steady norm remember to an accuracy ε, and the rank that this leaves them.

    Args:
        accuracy: ε > 0, relative to the norm.
        rate: η; with momentum, η/(1 − β).
        weight_decay: λ of the penalty λ‖W‖².
        batch_size: B.

    Raises:
        ValueError: unless all are positive.
    """
    given = {"accuracy": accuracy, "rate": rate, "weight_decay": weight_decay}
    for name, value in (given | {"batch_size": batch_size}).items():
        if not value > 0:
            raise ValueError(f"{name}={value} must be positive.")
    steps = max(0, math.ceil(math.log(2 / accuracy) / (2 * rate * weight_decay)))
    return steps, steps * batch_size


def forgetting_exponent(
    rate: LearningRate, steps: int, weight_decay: ArrayLike, momentum: ArrayLike = 0.0
) -> Scalar:
    r"""$\Lambda = \sum_t 2\eta_t\lambda/(1-\beta)$: of the initial weights about
    $e^{-\Lambda}$ is left.

    A numerical rank at the threshold ε can fall below full only for Λ > log 1/ε or so,
    9.2 for 1e-4. Along a trajectory of `gf.descend` it is $2\lambda t$. Not in the paper,
    whose trends follow it.

    Args:
        rate: a number or a schedule `step -> rate`, such as `gf.SteppedRate`.
        steps: how many, from step 0 on.
        weight_decay: λ of the penalty λ‖W‖², half of what torch calls so.
        momentum: β of the heavy ball.

    Raises:
        ValueError: if the rate depends on the net, or there are no steps, or unless
            0 ≤ β < 1.
    """
    if isinstance(rate, NormScaledRate):
        raise ValueError("rate depends on the net; take 2λt of its trajectory.")
    if steps < 1:
        raise ValueError(f"steps={steps} must be 1 or more.")
    if is_concrete(momentum) and not 0 <= np.asarray(momentum) < 1:
        raise ValueError(f"momentum={momentum} must lie in [0, 1).")
    if callable(rate):
        each = jax.vmap(lambda k: jnp.asarray(rate(k), float))
        total = jnp.sum(each(jnp.arange(steps, dtype=jnp.int32)))
    else:
        total = jnp.asarray(rate, float) * steps
    return 2 * jnp.asarray(weight_decay, float) * total / (1 - jnp.asarray(momentum, float))


def _faded(
    before: AbstractNet,
    velocity: AbstractNet | None,
    steps: int,
    batch_size: int,
    rate: ArrayLike,
    weight_decay: ArrayLike,
    momentum: ArrayLike,
) -> list[Float[Array, "_ _"]]:
    """(A^k)_11 W + (A^k)_12 v, of each layer."""
    if steps < 1 or batch_size < 1:
        raise ValueError(
            f"steps={steps} and batch_size={batch_size} must both be 1 or more."
        )
    check_matrices(before)
    power = jnp.linalg.matrix_power(companion(rate, weight_decay, momentum), steps)
    own, other = (power[0, i].astype(before.weights[0].dtype) for i in (0, 1))
    if velocity is None:
        return [own * w for w in before.weights]
    pairs = zip(before.weights, velocity.weights, strict=True)
    return [own * w + other * v for w, v in pairs]
