"""Tangent networks, and what is decided on them, in one program for all."""

import jax
import jax.numpy as jnp
import numpy as np

from gfdyn.kinks import OFF, FirstProposal, TangentNetwork, decide, regime


PLACES = 6
# One program for all: three layers, so that what is stacked is looked at.
decided = jax.jit(
    lambda t, state, offset, playing: decide(
        t, state, lambda _: FirstProposal(state, playing), lambda _: offset
    )
)
followed = jax.jit(regime)


def tangent(rate, signal, gram=None, passed=None, places=PLACES, terms=1.0, astray=0.0):
    """A tangent network of so many sites, each with a normal of length 1 of its own unless
    their Gram matrix is given; the other places stay empty."""
    n = len(rate)
    rest = places - n

    def padded(values):
        return jnp.asarray(np.pad(np.asarray(values, float), [(0, rest)] * np.ndim(values)))

    gram = np.eye(n) if gram is None else gram
    return TangentNetwork(
        gram=padded(gram),
        passed=padded(np.zeros((n, n)) if passed is None else passed),
        signal=padded(signal),
        rate=padded(rate),
        present=jnp.arange(places) < n,
        terms=jnp.full(places, terms),
        pulls=jnp.full(places, terms),
        astray=jnp.full(places, astray),
        gain=jnp.asarray(1.0),
        layers=3,
    )


def states(*named):
    return jnp.asarray([*named, *[OFF] * (PLACES - len(named))], jnp.int8)
