"""Stop conditions: end a solve by what happened, not at a guessed time.

A plateau is not convergence: near a saddle the gradient is small too. The conditions are
scale-free, and the trajectory names the one that ended it.

A condition on where the flow is remembers nothing: the time at which it is met is located
within the step, to the solver's tolerance, and the solve ends there. A condition on the
course of the flow ends it with the step in which it is met. What holds from the start ends
it with the first step.

That time is not differentiable; solve to a fixed time, and take dt/dp = −(∂R/∂p)/(∂R/∂t)
of a risk that is reached.
"""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from ._numbers import check_number, is_fraction, is_positive
from ._types import Scalar
from .nets import AbstractNet
from .problem import Problem


_FRACTION = "must be a fraction, 0 or more and less than 1."


def _is_number(value: float) -> bool:
    return not math.isnan(value)


class Observation(eqx.Module):
    """What stop conditions see of a step, at its end or so far into it as one is sought.

    Attributes:
        problem: data and loss.
        net: θ; its arrays underflow where ‖θ‖ does.
        initial_risk: what `risk` was at the start.
        risk: as the flow has it: with its penalty, or localized.
        log_radius: log r, r = ‖θ‖/√L.
        size: the time since the step began, in the flow's clock.
        fall_rate: the mean of −d risk/dτ over that time.
        slope: sqrt(−dE/dτ), the mean over that time: the gradient norm in the flow's clock.
    """

    problem: Problem
    net: AbstractNet
    initial_risk: Scalar
    risk: Scalar
    log_radius: Scalar
    size: Scalar
    fall_rate: Scalar
    slope: Scalar


class AbstractStop(eqx.Module):
    """A condition on the course of a trajectory."""

    @abc.abstractmethod
    def init(self, dtype: Any) -> Any:
        """What the condition remembers, at the start; None if it never remembers anything,
        and is to be located within the step in which it is met."""

    @abc.abstractmethod
    def update(self, memory: Any, seen: Observation) -> tuple[Any, Bool[Array, ""]]:
        """What it remembers after this observation, and whether it is met."""


class RiskBelow(AbstractStop):
    """The risk has fallen to `value` or below."""

    value: Float[Array, ""] | float

    def __check_init__(self):
        check_number("value", self.value, _is_number, "must be a risk, such as 1e-3.")

    def init(self, dtype: Any) -> None:
        """Nothing to remember."""
        del dtype

    def update(self, memory: None, seen: Observation) -> tuple[None, Bool[Array, ""]]:
        """risk ≤ value."""
        return memory, seen.risk <= self.value


class RadiusAbove(AbstractStop):
    """The radius r = ‖θ‖/√L has grown to `value` or above."""

    value: Float[Array, ""] | float

    def __check_init__(self):
        check_number("value", self.value, is_positive, "must be positive and finite.")

    def init(self, dtype: Any) -> None:
        """Nothing to remember."""
        del dtype

    def update(self, memory: None, seen: Observation) -> tuple[None, Bool[Array, ""]]:
        """r ≥ value."""
        return memory, seen.log_radius >= jnp.log(self.value)


class When(AbstractStop):
    """What a function of one's own says of the problem and the net.

    Attributes:
        function: `function(problem, net)`, jittable. True, or a number of 0 or below, ends
            the solve. The same one each time, for another one compiles anew.
        name: for `traj.stopped_by`; that of the function if None.

    Example:
        `gf.stopping.When(lambda problem, net: 0.1 - gf.nets.norm(net.weights[0]))` ends
        once ‖W_1‖ has grown to 0.1.
    """

    function: Callable[[Problem, AbstractNet], ArrayLike] = eqx.field(static=True)
    name: str | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if not callable(self.function):
            raise TypeError(
                f"function must be callable, function(problem, net), got {self.function!r}."
            )

    def init(self, dtype: Any) -> None:
        """Nothing to remember."""
        del dtype

    def update(self, memory: None, seen: Observation) -> tuple[None, Bool[Array, ""]]:
        """What the function says.

        Raises:
            TypeError: unless that is a boolean or a number.
        """
        said = jnp.asarray(self.function(seen.problem, seen.net))
        if said.shape or not (said.dtype == bool or jnp.issubdtype(said.dtype, jnp.number)):
            raise TypeError(
                f"{name_of(self)} must return one boolean, or one number, 0 or below to "
                f"end the solve; it returned {said.dtype} of shape {said.shape}."
            )
        return memory, said if said.dtype == bool else said <= 0


def name_of(condition: AbstractStop) -> str:
    """What `traj.stopped_by` calls a condition: its kind, or what its user calls it.

    Args:
        condition: as `stop` of `gf.solve` takes it.
    """
    if isinstance(condition, When):
        return condition.name or getattr(condition.function, "__name__", "When")
    return type(condition).__name__


class GradientBelow(AbstractStop):
    """The gradient norm has fallen below `fraction` of its largest value so far.

    Met at the first plateau after an escape as well as at a minimum. From a small
    initialisation the gradient first grows, so the start does not meet it.
    """

    fraction: Float[Array, ""] | float

    def __check_init__(self):
        check_number("fraction", self.fraction, is_fraction, _FRACTION)

    def init(self, dtype: Any) -> Scalar:
        """The largest slope so far."""
        return jnp.zeros((), dtype)

    def update(self, memory: Scalar, seen: Observation) -> tuple[Scalar, Bool[Array, ""]]:
        """slope < fraction · largest slope."""
        largest = jnp.maximum(memory, seen.slope)
        return largest, seen.slope < self.fraction * largest


class NextPlateau(AbstractStop):
    """The risk has left its first plateau and settled on the next one.

    Left: the risk fell by the fraction `departure` of its initial value. Settled: since
    then its rate of fall, averaged over the last fifth of the time since the departure,
    has dropped below `fraction` of the largest such average.
    """

    fraction: Float[Array, ""] | float = 1e-3
    departure: Float[Array, ""] | float = 0.05

    def __check_init__(self):
        check_number("fraction", self.fraction, is_fraction, _FRACTION)
        check_number("departure", self.departure, is_fraction, _FRACTION)

    def init(self, dtype: Any) -> "_SinceDeparture":
        """Nothing has happened yet."""
        zero = jnp.zeros((), dtype)
        return _SinceDeparture(zero, zero, zero)

    def update(
        self, memory: "_SinceDeparture", seen: Observation
    ) -> tuple["_SinceDeparture", Bool[Array, ""]]:
        """risk < (1 − departure) · initial risk, and mean rate < fraction · largest."""
        left = seen.risk < (1 - self.departure) * seen.initial_risk
        elapsed = memory.elapsed + jnp.where(left, seen.size, 0.0)
        window = 0.2 * elapsed
        weight = -jnp.expm1(-seen.size / jnp.where(left, window, 1.0))
        rate = memory.rate + jnp.where(left, weight * (seen.fall_rate - memory.rate), 0.0)
        largest = jnp.maximum(memory.largest_rate, rate)
        settled = left & (rate < self.fraction * largest)
        return _SinceDeparture(elapsed, rate, largest), settled


class _SinceDeparture(eqx.Module):
    elapsed: Scalar
    rate: Scalar
    largest_rate: Scalar
