r"""The explicit escape directions of Bantzis, Simon & Jacot, Example 1.

Its problem is `gf.Problem(gf.data.circle(8), gf.losses.squared, reduction="sum")`, with
$x_j = (\sin(2\pi j/8), \cos(2\pi j/8))$ and $G_j = (-1)^j$: a linear net sees nothing of
it, $\sum_j G_j x_j = 0$. With the mean over samples all speeds are an eighth.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Float

from ...nets import MLP


def rank_one_speed_at(angle: ArrayLike) -> Float[Array, "*shape"]:
    r"""The speed of `circle_rank_one`, with $\xi = \varphi \bmod \pi/4$ (eq. 6):

    $$s = |\cos(\xi + \tfrac\pi4) - \cos\xi + \cos(\xi - \tfrac\pi4)
    - \cos(\xi - \tfrac\pi2)| = |(\sqrt2 - 1)\cos\xi - \sin\xi|.$$

    The largest is √2 − 1, at cusps φ = kπ/4, which are escape directions; 0 midway.

    Args:
        angle: φ, in radians, in any shape.
    """
    angle = jnp.asarray(angle, jnp.result_type(float, angle))
    xi = jnp.mod(angle, math.pi / 4)
    return jnp.abs((math.sqrt(2) - 1) * jnp.cos(xi) - jnp.sin(xi))


def circle_rank_one(angle: ArrayLike, dtype: DTypeLike | None = None) -> MLP:
    r"""$W_1 = [\cos\varphi, \sin\varphi]$, $W_2 = [1]$, $W_3 = [\pm1]$ of Example 1, with
    the sign that has $\mathcal L_0 \le 0$; its speed is `rank_one_speed_at(angle)`.

    Args:
        angle: φ, one number, in radians.
        dtype: of the weights; jax's default float if None.
    """
    dtype = jnp.zeros((), dtype).dtype
    angle = jnp.asarray(angle, dtype)
    j = np.arange(1, 9)
    z = jnp.sin(jnp.asarray(2 * np.pi * j / 8, dtype) + angle)
    total = jnp.sum(jnp.asarray((-1.0) ** j, dtype) * jnp.maximum(z, 0))
    one = jnp.ones((1, 1), dtype)
    first = jnp.stack([jnp.cos(angle), jnp.sin(angle)])[None, :]
    return MLP.from_weights([first, one, jnp.where(total > 0, -one, one)])


def circle_rank_two(dtype: DTypeLike | None = None) -> MLP:
    r"""The fastest direction of Example 1 at L = 3, s = 1/2, of ranks (2, 1, 1) (eq. 2):

    $$W_1 = \tfrac12 \begin{pmatrix} 1&0\\0&1\\-1&0\\0&-1 \end{pmatrix}, \quad
    W_2 = \tfrac12 (1, -1, 1, -1), \quad W_3 = (-1),$$

    so that $f(x) = -\sigma(|x_1| - |x_2|)/4$. The paper prints $W_3 = (1)$, for which
    $\mathcal L_0 = +1/2$, and speaks of two matrices of rank 2. The four samples with
    $|x_1| = |x_2|$ are on the kink of layer 2: ∇L₀ = −sρ holds for gates √2/4 there.

    Args:
        dtype: of the weights; jax's default float if None.
    """
    first = 0.5 * np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    second = 0.5 * np.array([[1.0, -1.0, 1.0, -1.0]])
    return _net([first, second, -np.ones((1, 1))], dtype)


def circle_depth_four(dtype: DTypeLike | None = None) -> MLP:
    r"""Another direction of Example 1, at L = 4: s = √2/3, of ranks (2, 2, 1, 1).

    $$W_1 = \tfrac1{\sqrt8} \begin{pmatrix} 1&1\\1&-1\\-1&-1\\-1&1 \end{pmatrix}, \quad
    W_2 = \tfrac1{\sqrt{12}} \begin{pmatrix} 1&1&1&1\\1&-1&1&-1\\-1&1&-1&1 \end{pmatrix},
    \quad W_3 = \tfrac1{\sqrt3} (1, -1, -1), \quad W_4 = (-1),$$

    so that f is a negative multiple of $\min(|x_1 + x_2|, |x_1 - x_2|)$. Slower than 1/2,
    yet it attracts many starts. Not in the paper.

    Args:
        dtype: of the weights; jax's default float if None.
    """
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])
    second = np.array([[1.0, 1, 1, 1], [1, -1, 1, -1], [-1, 1, -1, 1]]) / math.sqrt(12)
    third = np.array([[1.0, -1.0, -1.0]]) / math.sqrt(3)
    return _net([corners / math.sqrt(8), second, third, -np.ones((1, 1))], dtype)


def _net(weights: list[np.ndarray], dtype: DTypeLike | None) -> MLP:
    dtype = jnp.zeros((), dtype).dtype
    return MLP.from_weights([jnp.asarray(w, dtype) for w in weights])
