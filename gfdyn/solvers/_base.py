"""What the integration loop asks of a solver: one attempted step."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._by_layer import per_layer
from .._types import Mask, Scalar, Sites
from ..flows import AbstractFlow, State
from ..kinks import NONE, GateState, States, any_of, count, states_of, without
from ..nets import AbstractNet


class Events(eqx.Module):
    """What happened at kinks: gates that flipped, began to slide, were released."""

    crossings: Int[Array, ""]
    slides: Int[Array, ""]
    releases: Int[Array, ""]


def no_events() -> Events:
    """None of them."""
    none = jnp.asarray(0, jnp.int32)
    return Events(none, none, none)


class GateChanges(eqx.Module):
    """What became of the gates in a step.

    Frozen gates only: a gate that is live follows the sign of its pre-activation unseen.
    """

    # What slid until the step, the gates during it, and after its events
    slid: Mask
    during: GateState
    after: GateState
    # How long before the end of the step each gate changed
    since: Sites
    # Where the flow is not unique, other states that would be as right
    others: States

    @property
    def crossed(self) -> Mask:
        """The gates that flipped."""

        def flipped(was: Array, on: Array, held: Array, *slides: Array) -> Array:
            return (was ^ on) & held & ~slides[0] & ~slides[1]

        during, after = self.during, self.after
        return per_layer(
            flipped, during.on, after.on, during.frozen, during.sliding, after.sliding
        )

    @property
    def caught(self) -> Mask:
        """The gates that began to slide."""
        return without(self.after.sliding, self.slid)

    @property
    def released(self) -> Mask:
        """The gates that slide no longer."""
        return without(self.slid, self.after.sliding)

    @property
    def chosen(self) -> Mask:
        """The gates that could have gone on otherwise."""
        return per_layer(lambda other: other != NONE, self.others)

    @property
    def states(self) -> States:
        """The states of the gates after the events."""
        return states_of(self.after.on, self.after.sliding)

    @property
    def events(self) -> Events:
        """How many of each there are."""
        return Events(count(self.crossed), count(self.caught), count(self.released))

    def gates_at(self, left: Scalar) -> GateState:
        """The gates when so much of the step is left."""
        happened = per_layer(lambda s: s >= left, self.since)
        during, after = self.during, self.after

        def choose(then: Mask, before: Mask) -> Mask:
            return per_layer(jnp.where, happened, then, before)

        return GateState(
            on=choose(after.on, during.on),
            sliding=choose(after.sliding, during.sliding),
            frozen=choose(after.frozen, during.frozen),
        )


class Step(eqx.Module):
    """The outcome of one attempt to step over [0, size], in relative time."""

    # How it went, and how far: a step may end before the size that was asked for
    accepted: Bool[Array, ""]
    finite: Bool[Array, ""]
    size: Scalar
    next_size: Scalar
    # Where it leads, if accepted
    state: State
    interpolation: Any
    # For the next attempt
    solver_state: Any
    num_field_evaluations: Int[Array, ""]
    # None where gates are not followed
    changes: GateChanges | None = None
    # Whether the multipliers of what slides were found to their tolerance
    converged: Bool[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(True))
    # Whether the regime from there on is known to be right
    verified: Bool[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(True))
    # Whether there were places for all sites at kinks; if not, it is not accepted
    fits: Bool[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(True))

    def gates_at(self, left: Scalar) -> GateState:
        """The gates when so much of the step is left."""
        assert self.changes is not None
        return self.changes.gates_at(left)

    @property
    def events(self) -> Events:
        """How many gates changed."""
        return no_events() if self.changes is None else self.changes.events

    @property
    def choices(self) -> Int[Array, ""]:
        """At how many points another regime was as right."""
        if self.changes is None:
            return jnp.asarray(0, jnp.int32)
        return any_of(self.changes.chosen).astype(jnp.int32)

    def at(self, time: Scalar) -> State:
        """The state `time` after the start of the step, by dense output."""
        return self.interpolation.evaluate(time)


class AbstractSolver(eqx.Module):
    """Advances a flow's state by one step at a time."""

    @property
    @abc.abstractmethod
    def tolerance(self) -> float | Scalar:
        """The relative tolerance per step, by which the certificate is judged."""

    @abc.abstractmethod
    def check(self, flow: AbstractFlow, net: AbstractNet) -> None:
        """Raise where it cannot integrate such a flow of such a network.

        Raises:
            ValueError: saying what can.
        """

    @abc.abstractmethod
    def init(self, flow: AbstractFlow, state: State, dt0: Scalar | None) -> tuple:
        """The solver's own state, and the size of the first step to try."""

    @abc.abstractmethod
    def with_scan_kind(self, kind: str) -> "AbstractSolver":
        """The same solver, whose inner loops can be differentiated in the mode that goes
        with this kind of loop: "lax" (forward) or "checkpointed" (reverse)."""

    @abc.abstractmethod
    def follows_kinks(self, net: AbstractNet) -> bool:
        """Whether it follows the gates of such a network."""

    @abc.abstractmethod
    def gates_of(self, solver_state: Any) -> GateState | None:
        """The gates as the solver's state has them; None if it does not follow them."""

    @abc.abstractmethod
    def verifies(self, solver_state: Any) -> bool:
        """Whether it goes on from kinks, on a network that has some, in regimes that are
        verified to be those of gradient descent."""

    @abc.abstractmethod
    def step(
        self, flow: AbstractFlow, state: State, size: Scalar, solver_state: Any
    ) -> Step:
        """Attempt a step of the given size."""
