"""Architectures, and what each conserves."""

import jax
import jax.numpy as jnp
import pytest


SLOPES = ["relu", "leaky_relu(0.1)", "identity"]
activations = pytest.mark.parametrize("sigma", SLOPES)


def rate_of(problem, net, quantity):
    """d/dt of a quadratic quantity of θ along gradient flow, and its largest part."""
    velocity = jax.tree.map(jnp.negative, jax.grad(problem.risk)(net))
    return jax.jvp(quantity, (net,), (velocity,))[1]
