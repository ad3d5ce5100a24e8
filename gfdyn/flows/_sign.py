"""Steepest descent in the maximum norm: every parameter moves at unit speed."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._trees import dot
from .._types import Scalar
from ..nets import AbstractNet
from ..problem import Problem, check_fit, check_problem
from ._base import Jumps, State
from ._parameters import AbstractParameterFlow


class SignFlow(AbstractParameterFlow):
    r"""The sign flow $d\theta/dt = -\operatorname{sign}(\nabla R(\theta))$, the limit of
    sign descent: steepest descent in the maximum norm.

    With losses of exponential tail a linear predictor goes to the direction of largest
    margin among those with $\|w\|_\infty \le 1$ (Gunasekar et al., 2018); by gradient flow
    it is among those with $\|w\|_2 \le 1$.
    Where a partial derivative reaches 0 and is driven back from both sides, its parameter
    *slides*: it moves just so fast as keeps the derivative at 0, as the mean of small steps
    of sign descent does. `gf.solvers.SignSwitches` follows that. The risk falls at the
    rate $\|\nabla R\|_1$.
    """

    problem: Problem

    def __check_init__(self):
        check_problem(self.problem)

    @property
    def clock_name(self) -> str:
        """t."""
        return "t"

    @property
    def description(self) -> str:
        """By name."""
        return "Sign flow"

    @property
    def jumps_at(self) -> Jumps:
        """Where partial derivatives change sign, at kinks among them."""
        return "signs"

    def check(self, net: AbstractNet) -> None:
        """Raise unless the net fits the problem.

        Raises:
            TypeError: if `net` is no gfdyn network.
            ValueError: on sizes or dtypes that do not agree.
        """
        check_fit(self.problem, net)

    def cotangent(
        self, position: AbstractNet, outputs: Float[Array, "samples outputs"]
    ) -> Float[Array, "samples outputs"]:
        """∇C."""
        return self.problem.cost_gradient(outputs)

    def assemble(
        self,
        position: AbstractNet,
        outputs: Float[Array, "samples outputs"],
        gradient: AbstractNet,
    ) -> State:
        """−sign ∇R, and ‖∇R‖₁; where a parameter slides, its solver says how fast."""
        velocity = jax.tree.map(lambda g: -jnp.sign(g), gradient)
        return State(velocity, -dot(velocity, gradient))

    def gain(self, gradient: AbstractNet) -> Scalar:
        """1."""
        return jnp.ones((), self.problem.data.x.dtype)

    def energy(self, position: AbstractNet) -> Scalar:
        """R."""
        return self.risk(position)

    def risk(self, position: AbstractNet) -> Scalar:
        """R."""
        return self.problem.risk(position)

    def log_time_rate(self, position: AbstractNet) -> Scalar:
        """0: the clock is physical time."""
        return jnp.zeros((), self.problem.data.x.dtype)

    def invariants(self, position: AbstractNet) -> tuple[PyTree[Array], Scalar]:
        """None."""
        return (), jnp.zeros((), self.problem.data.x.dtype)

    def log_invariant_decay(self, log_time: Scalar) -> Scalar:
        """0."""
        return jnp.zeros_like(log_time)
