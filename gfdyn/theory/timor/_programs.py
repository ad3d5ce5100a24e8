"""The two programs of least norm: to interpolate (P2), and to have margin 1 (P6).

Which of the two is meant, the loss says: squared, or one of signs.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..._types import Outputs, Scalar
from ...losses import Exponential, Logistic, Squared
from ...nets import MLP
from ...problem import Problem


def asks_for_margin(problem: Problem) -> bool:
    """Whether it is (P6), y f ≥ 1, rather than (P2), f = y.

    Raises:
        ValueError: for another loss than squared, exponential and logistic.
    """
    if isinstance(problem.loss, Exponential | Logistic):
        return True
    if isinstance(problem.loss, Squared):
        return False
    raise ValueError(
        f"problem has the loss {type(problem.loss).__name__}; give it gf.losses.squared "
        "for nets that interpolate, exponential or logistic for nets with a margin."
    )


def check_program(problem: Problem, margin: bool) -> None:
    """Raise unless the problem's program is the one meant.

    Raises:
        ValueError: if not.
    """
    if asks_for_margin(problem) == margin:
        return
    need = "exponential or gf.losses.logistic" if margin else "squared"
    wish = "a margin" if margin else "interpolation"
    raise ValueError(
        f"problem has the loss {type(problem.loss).__name__}; this is about {wish}: "
        f"give it gf.losses.{need}."
    )


def gaps(problem: Problem, outputs: Outputs) -> Outputs:
    """1 − y f, feasible where at most 0, or y − f, where 0; (N, k)."""
    y = problem.data.y
    return 1 - y * outputs if asks_for_margin(problem) else y - outputs


def violation(problem: Problem, outputs: Outputs) -> Scalar:
    """The largest gap that is not feasible, relative to the largest |y|."""
    gap = gaps(problem, outputs)
    gap = jnp.maximum(gap, 0) if asks_for_margin(problem) else jnp.abs(gap)
    largest = jnp.max(jnp.abs(problem.data.y))
    return jnp.max(gap) / jnp.where(largest > 0, largest, 1)


def is_feasible(problem: Problem, net: MLP, tolerance: float) -> Bool[Array, ""]:
    """Whether the net interpolates, or has margin 1, up to the tolerance."""
    return violation(problem, problem.outputs(net)) <= tolerance


def at_margin_one(problem: Problem, net: MLP) -> MLP:
    """The net on the same ray with margin 1; the net itself if it has no positive one, or
    none is asked for."""
    if not asks_for_margin(problem):
        return net
    margin = jnp.min(problem.data.y * problem.outputs(net))
    log_factor = -jnp.log(jnp.where(margin > 0, margin, 1)) / net.degree
    return jax.tree.map(lambda w: w * jnp.exp(log_factor), net)
