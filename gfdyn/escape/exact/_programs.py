r"""Three layers, two inputs, one output: the largest escape speed, certified.

The upper layers of a fastest net are of rank one (Bantzis et al., Prop. 3.2), and what is
left is convex but for the choice of samples that one unit lets through:

$$s^*(3) = \max_h \Big| \sum_i g_i\, \sigma(h_i) \Big|, \qquad
h = \sum_k a_k\, \sigma(X w_k), \quad \|w_k\| = 1, \quad \sum_k |a_k| \le 1.$$

For each sign of W_3 and each set S of samples on which the risk then falls, let
$V(S) = \max_h \sum_S |g_i| h_i - \sum_{\text{rises}} |g_i|\, \sigma(h_i)$, a linear program
over infinitely many neurons w; s*(3) is the largest V(S). Its dual is

$$V(S) = \min_{0 \le \mu_i \le |g_i|} \; \max_{\|w\|=1} \Big| \sum_S |g_i|\, \sigma(w \cdot
x_i) - \sum_{\text{rises}} \mu_i\, \sigma(w \cdot x_i) \Big|,$$

and the maximum inside is the exact two-layer problem of `planar_optimum`. So every μ proves
an upper bound, whatever a numerical solver thinks of it, as every net proves a lower one.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...nets import MLP
from ...problem import Problem
from ._column_generation import GAP, Unit, solve_program
from ._planar import Cones, concrete_arrays


class DepthThreeOptimum(eqx.Module):
    """The fastest net of three layers found, and the proof that none is faster.

    `speed` ≤ s*(3) ≤ `bound`. For each of the m pairs of a sign of W_3 (`signs`) and a set
    S of samples (`active`): `attained` ≤ V(S) ≤ `bounds`. The `multipliers` μ prove the
    bound: it is s*(2), the `planar_optimum`, of the cost gradient |g| on S and −μ
    elsewhere. `attained` is 0 where a bound was enough to leave the set out.
    """

    net: MLP
    speed: Float[Array, ""]
    bound: Float[Array, ""]
    signs: Float[Array, " sets"]
    active: Bool[Array, "sets samples"]
    attained: Float[Array, " sets"]
    bounds: Float[Array, " sets"]
    multipliers: Float[Array, "sets samples"]


def depth_three_optimum(
    problem: Problem, every_set: bool = False, max_sets: int = 4096
) -> DepthThreeOptimum:
    """The largest escape speed of three-layer ReLU nets with two inputs and one output.

    With a certificate: the linear programs of the module's docstring, by column generation,
    each new neuron found exactly. The sets S with the largest bounds are solved first, and
    the multipliers of one bound the others, few of which remain to be solved.

    The multipliers of the best set, over |g|, are Clarke gates of the net's second layer at
    samples on its kink. The net has the speed to the gap between `speed` and `bound`, about
    1e-12 in float64; a neuron that stands at no kink has its angle to the root of that.

    Args:
        every_set: solve for all sets, not only those that may be the best.
        max_sets: how many sets to consider at most.

    Raises:
        ValueError: on other than two inputs and one output, data that are traced, more sets
            than `max_sets`, or if no net has a positive speed.
    """
    x, g = concrete_arrays(problem)
    if g.shape[1] != 1:
        raise ValueError(
            f"data.y has {g.shape[1]} outputs: certificates are for one. "
            "gf.escape.speed_bounds takes any number."
        )
    largest_x, largest_g = np.max(np.linalg.norm(x, axis=1)), np.max(np.abs(g))
    if not largest_x * largest_g > 0:
        raise ValueError("data.x or cost_gradient_at_zero is 0: no net has a speed.")
    g = g[:, 0] / largest_g
    signs, active = _sets(g, max_sets)
    gains = np.where(active, np.abs(g), 0)
    costs = np.where(signs[:, None] * g > 0, np.abs(g), 0)
    cones = Cones(x / largest_x)
    found = _solve_all(cones, signs, gains, costs, every_set)
    unit = found.unit
    speed = -found.sign * g @ np.maximum(unit.h, 0)
    if not speed > 1e-14:
        raise ValueError(
            "no net of three layers lowers the risk to first order: all speeds are 0."
        )
    scale, dtype = largest_x * largest_g, problem.data.x.dtype
    return DepthThreeOptimum(
        net=_net(unit, found.sign, dtype),
        speed=jnp.asarray(scale * speed, dtype),
        bound=jnp.asarray(scale * np.max(found.bounds), dtype),
        signs=jnp.asarray(signs, dtype),
        active=jnp.asarray(active),
        attained=jnp.asarray(scale * found.attained, dtype),
        bounds=jnp.asarray(scale * found.bounds, dtype),
        multipliers=jnp.asarray(largest_g * found.multipliers, dtype),
    )


class _Solution(eqx.Module):
    """The fastest unit and its sign of W_3, and what is known of each set."""

    unit: Unit
    sign: float
    attained: Float[np.ndarray, " sets"]
    bounds: Float[np.ndarray, " sets"]
    multipliers: Float[np.ndarray, "sets samples"]


def _sets(g: np.ndarray, max_sets: int) -> tuple[np.ndarray, np.ndarray]:
    """The signs of W_3, (m,), and the sets S, (m, N): all that are not empty."""
    falling = [np.flatnonzero(sign * g < 0) for sign in (-1, 1)]
    count = sum(2 ** len(samples) - 1 for samples in falling)
    if count > max_sets:
        sizes = " and ".join(str(len(samples)) for samples in falling)
        raise ValueError(
            f"cost_gradient_at_zero has {sizes} entries of either sign, whose subsets are "
            f"{count} linear programs: above max_sets={max_sets}, raise it or take fewer "
            "samples."
        )
    signs, active = [], []
    for sign, samples in zip((-1, 1), falling, strict=True):
        num_sets = 2 ** len(samples) - 1
        bits = (np.arange(1, num_sets + 1)[:, None] >> np.arange(len(samples))) & 1
        member = np.zeros((num_sets, len(g)), bool)
        member[:, samples] = bits == 1
        signs.append(np.full(num_sets, float(sign)))
        active.append(member)
    return np.concatenate(signs), np.concatenate(active)


def _net(unit: Unit, sign: float, dtype: Any) -> MLP:
    """f = sign · σ(Σ a_k σ(w_k·x)), both factors of each term of size √|a_k|."""
    size = np.sqrt(np.abs(unit.a))
    weights = (size[:, None] * unit.w, (np.sign(unit.a) * size)[None, :], [[sign]])
    return MLP.from_weights([jnp.asarray(w, dtype) for w in weights])


def _solve_all(
    cones: Cones, signs: np.ndarray, gains: np.ndarray, costs: np.ndarray, every_set: bool
) -> _Solution:
    """The sets of largest bound first, until none (or none that matters) is left."""
    attained, multipliers = np.zeros(len(signs)), np.zeros_like(gains)
    bounds = cones.largest(gains[:, :, None])  # by μ = 0
    waiting, fastest, best = np.ones(len(signs), bool), 0, Unit.none(cones)
    while waiting.any():
        j = int(np.argmax(np.where(waiting, bounds, -1)))
        if not every_set and bounds[j] <= best.attained + GAP:
            break
        unit, mu = solve_program(cones, gains[j], costs[j])
        waiting[j], attained[j] = False, unit.attained
        if unit.attained > best.attained:
            fastest, best = j, unit
        alike = np.flatnonzero(signs == signs[j])
        proved = cones.largest((gains[alike] - mu)[:, :, None])
        better = proved < bounds[alike]
        bounds[alike[better]], multipliers[alike[better]] = proved[better], mu
    return _Solution(best, float(signs[fastest]), attained, bounds, multipliers)
