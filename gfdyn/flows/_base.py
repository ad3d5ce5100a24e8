"""What a flow offers to solvers: a velocity in its clock τ, and the way back to θ and t.

A flow moves a *position* (a pytree, however it represents θ) by an autonomous ordinary
differential equation in its clock τ. Next to it runs the `dissipated` energy, so that
energy(0) − energy(τ) = dissipated(τ) certifies the integration.
"""

import abc
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._types import Scalar
from ..nets import AbstractNet
from ..problem import Problem


class State(eqx.Module):
    """What is integrated; its time derivative has the same form."""

    position: Any
    dissipated: Scalar


Jumps = Literal["kinks", "signs", "nowhere"]
Field = Callable[[Any], State]
"""Position to velocity; an equinox module where its arrays are to be arguments."""


class AbstractFlow(eqx.Module):
    """A gradient flow in some clock τ and some coordinates."""

    problem: eqx.AbstractVar[Problem]

    @property
    @abc.abstractmethod
    def clock_name(self) -> str:
        """The symbol of the clock: t for physical time, τ otherwise."""

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The flow and its clock, as a figure's caption has them."""

    @property
    @abc.abstractmethod
    def is_polar(self) -> bool:
        """Whether its position is `Polar`: a direction ρ and the logarithm of r."""

    @property
    @abc.abstractmethod
    def jumps_at(self) -> Jumps:
        """Where the velocity of its point jumps, and it may slide: at the kinks of a
        network, where partial derivatives change sign besides, or nowhere."""

    @property
    @abc.abstractmethod
    def comes_to_rest(self) -> bool:
        """Whether its point comes to rest on the way, on kinks all but parallel."""

    @abc.abstractmethod
    def check(self, net: AbstractNet) -> None:
        """Raise ValueError where this flow is not defined for the net."""

    @abc.abstractmethod
    def start(self, net: AbstractNet) -> Any:
        """The position of a net."""

    @abc.abstractmethod
    def net(self, position: Any) -> AbstractNet:
        """The net θ at a position."""

    @abc.abstractmethod
    def direction(self, position: Any) -> AbstractNet:
        """A net on the ray of θ at which scale-free quantities can be measured safely."""

    @abc.abstractmethod
    def log_norm(self, position: Any) -> Scalar:
        """log ‖θ‖."""

    def log_radius(self, position: Any) -> Scalar:
        """log r, r = ‖θ‖/√L (L = 1 for a net without a degree)."""
        degree = self.direction(position).degree or 1
        return self.log_norm(position) - 0.5 * math.log(degree)

    def velocity(self, position: Any) -> State:
        """d(position, dissipated)/dτ, with the net's own gates."""
        x = self.problem.data.x
        outputs, vjp = jax.vjp(lambda net: net(x), self.point(position))
        (gradient,) = vjp(self.cotangent(position, outputs))
        return self.assemble(position, outputs, gradient)

    @abc.abstractmethod
    def point(self, position: Any) -> AbstractNet:
        """The net at which the data are passed forward: θ or ρ, or the velocity of it."""

    @abc.abstractmethod
    def with_point(self, position: Any, net: AbstractNet) -> Any:
        """The position (or the velocity) with its `point` replaced."""

    @abc.abstractmethod
    def cotangent(
        self, position: Any, outputs: Float[Array, "samples outputs"]
    ) -> Float[Array, "samples outputs"]:
        """What is pulled back through the net from its outputs at `point`."""

    @abc.abstractmethod
    def assemble(
        self, position: Any, outputs: Float[Array, "samples outputs"], gradient: AbstractNet
    ) -> State:
        """The velocity, from J^T · cotangent at `point`."""

    @abc.abstractmethod
    def gain(self, gradient: AbstractNet) -> Scalar:
        """How fast `point` moves for each unit of gradient."""

    @abc.abstractmethod
    def coasting_time(
        self, position: Any, velocity: State, field: Field, tolerance: Scalar
    ) -> Scalar:
        """How long the direction of θ may be held where it is for an error of at most
        `tolerance` · ‖θ‖: long at a saddle that is left radially, 0 where it moves.

        `field` gives the velocity at other positions.
        """

    @abc.abstractmethod
    def held(self, velocity: State) -> State:
        """The velocity with the direction of θ held."""

    @abc.abstractmethod
    def retract(self, position: Any) -> Any:
        """The nearest position that meets the flow's constraint (|ρ|² = L)."""

    @abc.abstractmethod
    def energy(self, position: Any) -> Scalar:
        """The quantity that falls along the flow, at the rate of `dissipated`."""

    @abc.abstractmethod
    def risk(self, position: Any) -> Scalar:
        """What `risk` means for this flow: the objective, or its localization."""

    @abc.abstractmethod
    def log_time_rate(self, position: Any) -> Scalar:
        """log dt/dτ, t the physical time."""

    @abc.abstractmethod
    def invariants(self, position: Any) -> tuple[PyTree[Array], Scalar]:
        """Conserved quantities of θ as (values, log scale): values · exp(log scale)."""

    @abc.abstractmethod
    def log_invariant_decay(self, log_time: Scalar) -> Scalar:
        """log of the factor by which the conserved quantities have decayed at time t."""

    @abc.abstractmethod
    def error_blocks(self, error: Any, reference: Any) -> tuple[Array, Array]:
        """Each block of an error, and the scale to measure it by; both (blocks,)."""


def degree_of(net: AbstractNet) -> int:
    """L of a network that is known to be homogeneous."""
    assert net.degree is not None
    return net.degree


def rescale(factor: Scalar, net: AbstractNet) -> AbstractNet:
    """factor · net."""
    return jax.tree.map(lambda p: factor * p, net)


def root_mean_squares(net: AbstractNet) -> Float[Array, " leaves"]:
    """The root mean square of the entries of each leaf."""
    return jnp.stack([jnp.sqrt(jnp.mean(w**2)) for w in jax.tree.leaves(net)])
