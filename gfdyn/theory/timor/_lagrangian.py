"""Least norm under constraints by an augmented Lagrangian, on a ReLU of rounded kink.

Optimal nets stand on kinks, where line searches stall. Rounded off over 0 < z < w, ReLU is
differentiable, and units at a kink come to rest at the z where its slope is their gate.
The width w falls from round to round, and with it what it costs, which is of order w.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..._types import Outputs, Scalar, Vector
from ...nets import MLP
from ...problem import Problem
from ._programs import asks_for_margin, gaps


# From the first round to the last
_KINKS = 3e-2, 1e-5
_PENALTIES = 1e2, 1e3
_MEMORY = 10
_MOST_HALVINGS = 20


class RoundedReLU(eqx.Module):
    """z − w/2 for z > w, z²/(2w) for 0 < z ≤ w, 0 otherwise."""

    width: Scalar

    def __call__(self, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Elementwise."""
        rounded = jnp.clip(z, 0, self.width)
        return jnp.maximum(z - self.width, 0) + rounded**2 / (2 * self.width)


def rounded_outputs(problem: Problem, net: MLP, width: Scalar) -> Outputs:
    """The outputs on the data under rounded ReLUs."""
    return net.forward(problem.data.x, [RoundedReLU(width)] * len(net.activations))[0]


@eqx.filter_jit
def augmented_lagrangian(
    problem: Problem, starts: MLP, rounds: int, steps: int
) -> tuple[MLP, Scalar]:
    r"""Where min ½‖θ‖² under the constraints of the problem's program leads from each of a
    stack of starts, and the width of the kink in the end.

    `rounds` times L-BFGS with `steps` steps on
    $\frac12\|\theta\|^2 + \frac1{2\rho}\|\nu + \rho\,c(\theta)\|^2$, and ν ← ν + ρ c(θ),
    where c are the gaps; of (P6) their sum with ν/ρ, as far as it is positive. The data are
    to be of size 1.
    """
    import optax

    dtype = problem.data.x.dtype
    kinks = jnp.geomspace(*_KINKS, rounds, dtype=dtype)
    penalties = jnp.geomspace(*_PENALTIES, rounds, dtype=dtype)
    search = optax.scale_by_backtracking_linesearch(_MOST_HALVINGS, store_grad=True)
    optimiser = optax.lbfgs(memory_size=_MEMORY, linesearch=search)
    active = (lambda t: jnp.maximum(t, 0)) if asks_for_margin(problem) else (lambda t: t)

    def descend(start: MLP) -> MLP:
        flat, unravel = ravel_pytree(start)

        def pull(theta: Vector, nu: Outputs, kink: Scalar, penalty: Scalar) -> Outputs:
            gap = gaps(problem, rounded_outputs(problem, unravel(theta), kink))
            return active(nu + penalty * gap)

        def one_round(carry: Any, schedule: Any) -> Any:
            theta, nu = carry
            kink, penalty = schedule

            def lagrangian(theta: Vector) -> Scalar:
                pulls = pull(theta, nu, kink, penalty)
                return 0.5 * jnp.sum(theta**2) + 0.5 * jnp.sum(pulls**2) / penalty

            value_and_gradient = optax.value_and_grad_from_state(lagrangian)

            def step(carry: Any, _: None) -> Any:
                theta, state = carry
                value, gradient = value_and_gradient(theta, state=state)
                change, state = optimiser.update(
                    gradient,
                    state,
                    theta,
                    value=value,
                    grad=gradient,
                    value_fn=lagrangian,
                )
                return (optax.apply_updates(theta, change), state), None

            begin = theta, optimiser.init(theta)
            (theta, _), _ = jax.lax.scan(step, begin, length=steps)
            return (theta, pull(theta, nu, kink, penalty)), None

        begin = flat, jnp.zeros_like(problem.data.y)
        (theta, _), _ = jax.lax.scan(one_round, begin, (kinks, penalties))
        return unravel(theta)

    return jax.vmap(descend)(starts), kinks[-1]
