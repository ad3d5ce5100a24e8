"""Step sizes by the error: what the controller remembers, and its verdict on a step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._types import Scalar
from ..flows import AbstractFlow, State


class Verdict(eqx.Module):
    """What the error of a step means for it and for the next one."""

    accepted: Bool[Array, ""]
    finite: Bool[Array, ""]
    next_size: Scalar
    controller: "ControllerState"


class ControllerState(eqx.Module):
    """Of the step size controller, and |E| where the solve began."""

    sizes: Any
    energy: Scalar


class AdaptiveState(eqx.Module):
    """What `Adaptive` carries from step to step."""

    method: Any
    controller: ControllerState


class Coasting(eqx.Module):
    """The flow's own field, its direction held while coasting."""

    flow: AbstractFlow
    coasting: Bool[Array, ""]

    def __call__(self, position: Any) -> State:
        return held_while(self.coasting, self.flow, self.flow.velocity(position))


def held_while(coasting: Bool[Array, ""], flow: AbstractFlow, velocity: State) -> State:
    """The velocity, with the direction of θ held while coasting."""
    held = flow.held(velocity)
    return jax.tree.map(lambda h, free: jnp.where(coasting, h, free), held, velocity)


def all_finite(state: State) -> Bool[Array, ""]:
    """Whether no number of the state is NaN or infinite."""
    leaves = jax.tree.leaves(state)
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
