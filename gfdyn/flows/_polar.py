"""Flows whose directions move on spheres, in a clock by the size of what moves."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._types import Scalar
from ..nets import AbstractNet
from ..problem import Problem
from ._base import AbstractFlow, Jumps


class AbstractPolarFlow(AbstractFlow):
    """A flow in polar coordinates, of θ as a whole or of parts of it."""

    problem: eqx.AbstractVar[Problem]

    @abc.abstractmethod
    def risk(self, position: Any) -> Scalar:
        """What falls along the flow: the risk, or its localization."""

    @property
    def clock_name(self) -> str:
        """τ, dt = r^(2−L) dτ."""
        return "tau"

    @property
    def comes_to_rest(self) -> bool:
        """As directions do, near critical points of the constrained risk."""
        return True

    @property
    def jumps_at(self) -> Jumps:
        """At kinks."""
        return "kinks"

    def gain(self, gradient: AbstractNet) -> Scalar:
        """1."""
        return jnp.ones((), self.problem.data.x.dtype)

    def energy(self, position: Any) -> Scalar:
        """The risk; for a localized flow −s = L₀(ρ), which falls on the sphere."""
        return self.risk(position)

    def log_invariant_decay(self, log_time: Scalar) -> Scalar:
        """0: there is no weight decay in these coordinates."""
        return jnp.zeros_like(log_time)
