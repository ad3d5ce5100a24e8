"""The regions of the plane that a hidden weight can be in (Def. 1), and its two sets."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ..._numbers import check_number
from ...nets import MLP
from ...problem import Problem
from ._setting import check_obtuse, inputs_angle, two_neurons


CONES = ("N", "1", "2", "B")
"""The cones, by the code Σ_j 2^(j−1) 1[w·x_j > 0]: which points the neuron sees."""


def cones(problem: Problem, net: MLP) -> Int[Array, "2"]:
    r"""The cone of each w_i as an index into `CONES`, $\sum_j 2^{j-1} 1[w_i\cdot x_j>0]$.

    N is the paper's D (dead: $w\cdot x_1, w\cdot x_2 \le 0$), 1 its S_1 (the neuron sees
    x_1 alone), 2 its S_2 and B its S (both); Def. 1 of Timor et al. Round the circle they
    follow as D, S_1, S, S_2.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    on = two_neurons(problem, net).z > 0
    return jnp.sum(jnp.where(on, jnp.asarray([1, 2], jnp.int32), 0), axis=1)


def cone_openings(problem: Problem) -> Float[Array, "4"]:
    """The opening angles π − φ, φ, φ, π − φ of the four cones, in the order of `CONES`.

    A direction drawn at random is in each of them with these probabilities over 2π.

    Raises:
        ValueError: unless the data are two points and two targets in the plane.
    """
    phi = inputs_angle(problem)
    return jnp.stack([jnp.pi - phi, phi, phi, jnp.pi - phi])


def is_matched(problem: Problem, net: MLP) -> Bool[Array, ""]:
    """Whether the net is of type (1,2) or (2,1): each neuron sees a point of its own.

    Raises:
        TypeError, ValueError: see `two_neurons`.
    """
    return two_neurons(problem, net).is_matched


def point_coordinates(
    problem: Problem, w: Float[Array, "*batch 2"], point: int
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    r"""(p, r) of $w = p\,x_i + r\,n_i$, with $n_i \perp x_i$ a unit vector on the side of
    the other point.

    Args:
        w: vectors of the plane, in the last axis.
        point: i, 0 or 1; x_i must be a unit vector (A2).

    Raises:
        TypeError, ValueError: unless the data are two points and two targets in the plane,
            and `point` is 0 or 1.
    """
    phi = inputs_angle(problem)
    check_number("point", point, lambda i: i in (0, 1), "must be 0 or 1: x_1 or x_2.")
    own, other = problem.data.x[point], problem.data.x[1 - point]
    normal = (other - jnp.cos(phi) * own) / jnp.sin(phi)
    return w @ own, w @ normal


def in_reachable_set(
    p: Float[Array, "*shape"],
    r: Float[Array, "*shape"],
    *,
    phi: ArrayLike,
    radius: ArrayLike,
    slack: float = 0.0,
) -> Bool[Array, "*shape"]:
    r"""Whether (p, r) is in $A_i = \{p>0,\ -|w_i(0)| < r \le p\tan(\phi-\pi/2)\}$.

    What w_i can reach in S_i: it moves along x_i (Lemma 7), from the ball of its start or
    from the border of S_i that is not dead. Timor et al. (Lemma 6, Fig. 3) write A_i as
    $\{w+\lambda x_i:\ w\in E_i,\ \lambda\ge0\}$; the inequalities are ours.

    Args:
        p, r: see `point_coordinates`.
        phi: φ, the angle of the two points, in radians.
        radius: |w_i(0)|.
        slack: by how much r may be outside.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    check_obtuse(phi)
    phi, radius = jnp.asarray(phi, p.dtype), jnp.asarray(radius, p.dtype)
    steepest = -1 / jnp.tan(phi)
    return (p > 0) & (r + radius > -slack) & (r <= p * steepest + slack)


def in_limit_set(
    p: Float[Array, "*shape"],
    r: Float[Array, "*shape"],
    *,
    phi: ArrayLike,
    radius: ArrayLike,
    imbalance: ArrayLike = 0.0,
    slack: float = 0.0,
) -> Bool[Array, "*shape"]:
    r"""Whether (p, r) is in $F_i = A_i \cap \{|w|^2 \ge 1-|\epsilon_i|\}$.

    Where w_i ends in S_i if the loss goes to zero; Timor et al., Lemma 6 and Fig. 3, who
    write the root of both sides.

    Args:
        p, r, phi, radius: see `in_reachable_set`.
        imbalance: ε_i = |w_i(0)|² − |v_i(0)|²; F_i is all of A_i from |ε_i| = 1 on.
        slack: by how much r may be outside, and |w| too small.

    Raises:
        ValueError: unless φ is in (π/2, π).
    """
    floor = jnp.sqrt(jnp.maximum(1 - jnp.abs(jnp.asarray(imbalance, p.dtype)), 0))
    inside = in_reachable_set(p, r, phi=phi, radius=radius, slack=slack)
    return inside & (jnp.hypot(p, r) >= floor - slack)
