"""What the integration loop asks of a solver: one attempted step."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..flows import AbstractFlow, State


Scalar = Float[Array, ""]


class Events(eqx.Module):
    """What happened at kinks: gates that flipped, began to slide, were released."""

    crossings: Int[Array, ""]
    slides: Int[Array, ""]
    releases: Int[Array, ""]


def no_events() -> Events:
    """None of them."""
    none = jnp.asarray(0, jnp.int32)
    return Events(none, none, none)


class Step(eqx.Module):
    """The outcome of one attempt to step over [0, size], in relative time."""

    # How it went, and how far: a step may end before the size that was asked for
    accepted: Bool[Array, ""]
    finite: Bool[Array, ""]
    converged: Bool[Array, ""]
    size: Scalar
    next_size: Scalar
    events: Events
    # Where it leads, if accepted
    state: State
    interpolation: Any
    # For the next attempt
    solver_state: Any
    num_field_evaluations: Int[Array, ""]

    def at(self, time: Scalar) -> State:
        """The state `time` after the start of the step, by dense output."""
        return self.interpolation.evaluate(time)


class AbstractSolver(eqx.Module):
    """Advances a flow's state by one step at a time."""

    @abc.abstractmethod
    def init(self, flow: AbstractFlow, state: State, dt0: Scalar | None) -> tuple:
        """The solver's own state, and the size of the first step to try."""

    @abc.abstractmethod
    def with_scan_kind(self, kind: str) -> "AbstractSolver":
        """The same solver, whose inner loops can be differentiated in the mode that goes
        with this kind of loop: "lax" (forward) or "checkpointed" (reverse)."""

    @abc.abstractmethod
    def step(
        self, flow: AbstractFlow, state: State, size: Scalar, solver_state: Any
    ) -> Step:
        """Attempt a step of the given size."""
