"""ReLU nets on data without interaction: the fastest escape directions, exactly.

Inputs on one ray, or orthogonal to each other: then a single path of neurons is best at
every depth, and its speed does not depend on the depth.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._numerics import nonzero
from ..._tracing import is_concrete
from ...problem import Problem
from ._direction import EscapeDirection, check_depth, check_width, single_path


# Up to how many samples all their subsets are tried.
_MOST_SAMPLES = 14
# How nearly data must be of their kind, in units of the precision.
_EXACTNESS = 1e3


def rank_one_optimum(problem: Problem, depth: int, width: int = 1) -> EscapeDirection:
    r"""The fastest escape direction of ReLU nets with inputs $x_i = v_i u$, $v_i \ge 0$:

    $$s^* = \|G^\top v\| \, \|u\| \quad \text{for all } L \ge 2, \qquad
    W_1 = e_1 u^\top/\|u\|, \quad W_l = e_1 e_1^\top, \quad
    W_L = -\frac{G^\top v}{\|G^\top v\|} e_1^\top.$$

    Bantzis et al., Prop. 3.3 with ε = 0. Every gate is open: the net is linear there.

    Args:
        depth: L ≥ 2, the number of weight matrices.
        width: of every hidden layer; its further neurons are zero.

    Raises:
        ValueError: unless `depth` is at least 2 and `width` at least 1; if the inputs are
            not on one ray, or Gᵀv = 0 (neither shows in traced data).
    """
    check_depth(depth)
    check_width(width)
    x, g = problem.data.x, problem.cost_gradient_at_zero
    total = jnp.sum(x, axis=0)
    ray = total / nonzero(jnp.linalg.norm(total))
    if is_concrete(x):
        _check_ray(np.asarray(x), np.asarray(ray))
    return _best_path(x, g, ray, depth, width)


def rank_one_speed(problem: Problem) -> Float[Array, ""]:
    r"""$s^* = \|G^\top v\| \, \|u\|$ for inputs $x_i = v_i u$, $v_i \ge 0$: the largest
    escape speed of ReLU nets of every depth L ≥ 2. See `rank_one_optimum`.

    Raises:
        ValueError: if the inputs are not on one ray, or Gᵀv = 0.
    """
    return rank_one_optimum(problem, depth=2).speed


def orthogonal_optimum(problem: Problem, depth: int, width: int = 1) -> EscapeDirection:
    r"""The fastest escape direction of ReLU nets with orthogonal inputs $x_i = \lambda_i
    q_i$, the $q_i$ orthonormal:

    $$s^* = \max_{\|u\|=1} \|\sigma(-\Lambda G u)\| \quad \text{for all } L \ge 2, \qquad
    W_1 = e_1 \sum_i h_i q_i^\top, \quad W_l = e_1 e_1^\top, \quad W_L = u e_1^\top,$$

    $h = \sigma(-\Lambda G u)/s^*$. For one output it is $\max(\|(\lambda g)_+\|,
    \|(\lambda g)_-\|)$. Derived, not in the paper: outputs on the q_i of any net with
    ‖W_l‖_F = 1 have, up to the last layer, norm 1 at most, and are not negative.

    For more outputs $s^{*2} = \max h^\top \Lambda G G^\top \Lambda\, h$ over h ≥ 0 of norm
    1. It is attained at the leading eigenvector of the block of a subset of the samples
    where that eigenvalue is simple (else one can move in its eigenspace until an entry of h
    vanishes), so that all subsets are tried, and what comes out is exact.

    Args:
        depth: L ≥ 2, the number of weight matrices.
        width: of every hidden layer; its further neurons are zero.

    Raises:
        ValueError: unless `depth` is at least 2 and `width` at least 1; with several
            outputs on more than 14 samples; if the inputs are not orthogonal, or G = 0 on
            all of them (neither shows in traced data).
    """
    check_depth(depth)
    check_width(width)
    x, g = problem.data.x, problem.cost_gradient_at_zero
    lengths = jnp.linalg.norm(x, axis=1, keepdims=True)
    q = x / nonzero(lengths)
    if is_concrete(x):
        _check_orthogonal(np.asarray(q))
    b = lengths * g
    h = _scalar_pattern(b[:, 0]) if b.shape[1] == 1 else _pattern(b)
    first = h @ q
    return _best_path(x, g, first / nonzero(jnp.linalg.norm(first)), depth, width)


def orthogonal_speed(problem: Problem) -> Float[Array, ""]:
    r"""$s^* = \max_{\|u\|=1} \|\sigma(-\Lambda G u)\|$ for orthogonal inputs of lengths λ:
    the largest escape speed of ReLU nets of every depth L ≥ 2. See `orthogonal_optimum`.

    Raises:
        ValueError: with several outputs on more than 14 samples, if the inputs are not
            orthogonal, or G = 0 on all of them.
    """
    return orthogonal_optimum(problem, depth=2).speed


def _best_path(x: Array, g: Array, first: Array, depth: int, width: int) -> EscapeDirection:
    """The net with one path, with this unit w and the last layer that suits it best."""
    slope = g.T @ jnp.maximum(x @ first, 0)
    speed = jnp.linalg.norm(slope)
    if is_concrete(speed) and not speed > 0:
        raise ValueError(
            "cost_gradient_at_zero is 0, or cancels out over the data: risk does not fall "
            "to first order in any direction, and no speed is positive."
        )
    net = single_path(first, -slope / nonzero(speed), depth, width)
    return EscapeDirection(net, speed)


def _scalar_pattern(b: Array) -> Array:
    """h ≥ 0 up to scale of largest |b·h|/‖h‖: the positive or the negative part of b."""
    up, down = jnp.maximum(b, 0), jnp.maximum(-b, 0)
    return jnp.where(jnp.linalg.norm(up) > jnp.linalg.norm(down), up, down)


def _pattern(b: Array) -> Array:
    """h ≥ 0 up to scale of largest ‖bᵀh‖/‖h‖, (N,)."""
    num_samples = len(b)
    if num_samples > _MOST_SAMPLES:
        raise ValueError(
            f"data have {num_samples} samples and {b.shape[1]} outputs: the closed form "
            f"tries all subsets of at most {_MOST_SAMPLES} samples, or takes one output."
        )
    subsets = (np.arange(1, 2**num_samples)[:, None] >> np.arange(num_samples)) & 1
    masks = jnp.asarray(subsets, b.dtype)
    blocks = masks[:, :, None] * (b @ b.T)[None] * masks[:, None, :]
    leading = jnp.linalg.eigh(blocks)[1][:, :, -1] * masks
    leading = leading * jnp.where(jnp.sum(leading, axis=1, keepdims=True) < 0, -1.0, 1.0)
    # Where it is not of one sign the subset is none of those looked for, and what is left
    # of it some h ≥ 0 like others.
    h = jnp.maximum(leading, 0)
    ratios = jnp.linalg.norm(h @ b, axis=1) / nonzero(jnp.linalg.norm(h, axis=1))
    return h[jnp.argmax(ratios)]


def _check_ray(x: np.ndarray, ray: np.ndarray) -> None:
    along = x @ ray
    size = np.linalg.norm(x)
    off = np.linalg.norm(x - np.outer(along, ray), axis=1) + np.maximum(-along, 0)
    if not size > 0 or off.max() > _EXACTNESS * np.finfo(x.dtype).eps * size:
        i = int(np.argmax(off))
        raise ValueError(
            "data.x is not on one ray x_i = v_i u, v_i >= 0 (and not all 0): sample "
            f"{i} is {off[i]:.3g} away from it; see gf.data.parallel, or gf.escape."
            "planar_optimum and gf.escape.depth_three_optimum for two inputs."
        )


def _check_orthogonal(q: np.ndarray) -> None:
    overlap = np.abs(q @ q.T - np.diag(np.sum(q**2, axis=1)))
    if overlap.max() > _EXACTNESS * np.finfo(q.dtype).eps:
        i, j = np.unravel_index(int(np.argmax(overlap)), overlap.shape)
        raise ValueError(
            f"data.x is not orthogonal: the cosine of samples {i} and {j} is "
            f"{overlap[i, j]:.3g}; see gf.data.orthogonal."
        )
