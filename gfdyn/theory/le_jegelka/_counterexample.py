r"""Two opposed neurons: where the first version is false, in closed form.

Not in the paper.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ... import losses
from ...data import Dataset
from ...nets import MLP
from ...problem import Problem


def counterexample(
    angle: float = 2 * math.pi / 3, square: float = 0.25
) -> tuple[Problem, MLP]:
    r"""Two points at an obtuse angle, labels ±1, and a neuron on each: $W_1 = \sqrt{q}\,
    (x_1, x_2)^\top$, $W_2 = \sqrt{q}\,(1, -1)$, with the logistic loss.

    Separable, right from the start, signs and gates stable for ever, no zero in the limit
    direction; $R = \log(1 + e^{-q})$, below ℓ(0)/2 from q = 0.89 on. All that the first
    version assumes holds. The flow is `counterexample_square`, and along it, θ the angle,

    $$\frac{\|W_1\|_2^2}{\|W_1\|_F^2} = \frac{1 + |\cos\theta|}{2}, \quad
    \text{tail} = q\,(1 - |\cos\theta|), \quad
    (W_2^\top W_2 - W_1 W_1^\top)_{12} = -q\,(1 + \cos\theta).$$

    Args:
        angle: θ in radians, above π/2 and below π.
        square: q > 0.

    Returns:
        The problem, and the net.

    Raises:
        ValueError: on another angle or q.
    """
    if not math.pi / 2 < angle < math.pi:
        raise ValueError(f"angle={angle} must lie in (π/2, π): no neuron sees both points.")
    if not square > 0:
        raise ValueError(f"square={square} must be positive.")
    first = np.asarray([2.0, 1.0]) / math.sqrt(5)
    turn = np.asarray([first, [-first[1], first[0]]])
    x = np.stack([first, np.asarray([math.cos(angle), math.sin(angle)]) @ turn])
    problem = Problem(Dataset(jnp.asarray(x), [[1.0], [-1.0]]), losses.logistic)
    root = math.sqrt(square)
    return problem, MLP.from_weights([root * x, root * np.asarray([[1.0, -1.0]])])


def counterexample_square(
    ts: Float[ArrayLike, " times"], square: float = 0.25
) -> Float[Array, " times"]:
    r"""q at the times ts: $\dot q = q/(1 + e^q)$, so that $\log q + \mathrm{Ei}(q) = t +
    \log q_0 + \mathrm{Ei}(q_0)$. Not under jit.

    Args:
        ts: times from the start, 0 or more.
        square: q_0 > 0, the q of `counterexample`.

    Raises:
        ValueError: unless q_0 > 0 and all times are 0 or more.
    """
    # Slow to import.
    from scipy.optimize import brentq
    from scipy.special import expi

    times = np.asarray(ts, float)
    if not square > 0 or not np.all(times >= 0):
        raise ValueError(f"square={square} must be positive, and the times ts 0 or more.")
    start = math.log(square) + expi(square)

    def gap(q: float, t: float) -> float:
        return math.log(q) + expi(q) - start - t

    # It grows by less than 2 + 2 log(1 + t), as q e^{−q} < 2/(1 + t) there.
    most = square + 2 + 2 * np.log1p(times)
    pairs = zip(times.tolist(), most.tolist(), strict=True)
    return jnp.asarray([brentq(gap, square, q, args=(t,), xtol=1e-14) for t, q in pairs])
