"""Learning rates: functions of the step, or of the net."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ._numbers import check_count, check_number, is_positive
from ._tracing import is_concrete
from .nets import AbstractNet, norm


Scalar = Float[Array, ""]
Count = Int[Array, ""]


class NormScaledRate(eqx.Module):
    r"""The learning rate $c/\|\theta\|^{L-2}$: equal steps of the escape clock.

    Bantzis et al., Appendix B. One step is $\Delta\tau = c\,L^{1-L/2}$.
    """

    c: Float[Array, ""] | float

    def __check_init__(self):
        check_number("c", self.c, is_positive, "must be positive and finite.")

    def __call__(self, net: AbstractNet) -> Scalar:
        """The rate at this net.

        Raises:
            ValueError: for a net without a degree.
        """
        if net.degree is None:
            raise ValueError(
                f"net is a {type(net).__name__} without a degree L of homogeneity; "
                "c/‖θ‖^(L−2) is not defined."
            )
        return self.c / norm(net) ** (net.degree - 2)


class SteppedRate(eqx.Module):
    r"""The learning rate $\eta\,\gamma^{\#\{j\,:\,k \ge b_j\}}$ of step k, falling at b_j.

    Galanti & Poggio, §4.1, divide by ten at epochs 60, 100 and 200 of 500: at 12, 20 and
    40 % of the run. All fields are arrays, so that runs of other rates are one program.
    """

    rate: Scalar
    factor: Scalar
    drops: Int[Array, " drops"]

    def __init__(
        self,
        rate: ArrayLike,
        steps: int,
        at: Sequence[float] = (0.12, 0.2, 0.4),
        factor: ArrayLike = 0.1,
    ):
        """The rate η of a run of so many steps, × `factor` at each of the fractions `at`.

        Raises:
            ValueError: unless rate and factor are positive and the fractions lie in [0, 1].
        """
        for name, value in (("rate", rate), ("factor", factor)):
            check_number(name, value, is_positive, "must be positive and finite.")
        check_count("steps", steps, 1, "must be 1 or more: those of the whole run.")
        for fraction in at:
            if isinstance(fraction, str) or not 0 <= fraction <= 1:
                raise ValueError(f"at={tuple(at)} must be fractions of the run, in [0, 1].")
        self.rate = jnp.asarray(rate, float)
        self.factor = jnp.asarray(factor, float)
        self.drops = jnp.asarray(np.rint(np.asarray(at) * steps), jnp.int32)

    def __call__(self, step: Count) -> Scalar:
        """The rate of the step, counted from 0."""
        return self.rate * self.factor ** jnp.sum(step >= self.drops).astype(float)


LearningRate = ArrayLike | Callable[[Count], ArrayLike] | NormScaledRate


def rate_at(rate: LearningRate, step: Count, net: AbstractNet) -> Array:
    """The rate of a step from this net."""
    if isinstance(rate, NormScaledRate):
        return jnp.asarray(rate(net))
    return jnp.asarray(rate(step) if callable(rate) else rate)


def check_rate(rate: LearningRate) -> None:
    """Raise unless it is a positive number, a schedule or a `NormScaledRate`."""
    if callable(rate) or not is_concrete(rate):
        return
    value = np.asarray(rate)
    if not (value.ndim == 0 and value.dtype.kind in "iuf" and 0 < value < np.inf):
        raise ValueError(
            f"optimizer={rate!r} is no learning rate; give a positive number, a "
            "schedule, gf.NormScaledRate(c) or an optax optimizer."
        )
