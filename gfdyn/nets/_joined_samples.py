"""Kinks that coincide while gates stay: above a ReLU through which samples pass alone.

What passes a layer through one and the same unit arrives above it on one line, whatever the
weights are.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._by_layer import in_layers, in_one_row
from .._types import Mask
from ._base import AbstractNet
from ._coincidence import Coincidence
from ._mlp import MLP


def passing_alone(net: AbstractNet, on: Mask) -> Mask:
    """Of each sample that passes a layer through one ReLU alone, that one.

    Only a network without biases and with one path from layer to layer, an `MLP`, is looked
    at; of others, none.

    Args:
        on: where a unit lets a sample pass, of each hidden layer, (N, n_l).
    """
    return tuple(
        o
        & (jnp.sum(o, axis=1, keepdims=True) == 1)
        & (isinstance(net, MLP) and sigma.slope == 0)
        for sigma, o in zip(net.activations, on, strict=True)
    )


def joined(always: Coincidence, alone: Mask) -> Coincidence:
    """With samples joined above the last unit through which they pass alone; the ratios are
    those of before.

    Args:
        always: what coincides wherever θ is, of `coinciding_kinks`.
        alone: where samples pass alone, of `passing_alone`.
    """
    samples = len(alone[0])
    own = jnp.arange(samples)
    nobody = sum(a.shape[1] for a in alone)
    through, before, firsts = jnp.full(samples, nobody), 0, []
    for first, a in zip(in_layers(always.first, alone), alone, strict=True):
        leaders = jnp.full(nobody, samples).at[through].min(own, mode="drop")
        leader = leaders.at[through].get(mode="fill", fill_value=0)[:, None]
        width = a.shape[1]
        sites = samples * before + leader * width + jnp.arange(width)[None, :]
        known = (through < nobody)[:, None]
        firsts.append(jnp.where(known, sites, first))
        through = jnp.where(jnp.any(a, axis=1), before + jnp.argmax(a, axis=1), through)
        before += width
    return Coincidence(in_one_row(firsts), always.ratio)


def with_ratios(
    now: Coincidence, alone: Mask, z: tuple[Float[Array, "samples _"], ...]
) -> Coincidence:
    """With the ratios of z of joined samples: those of what their unit lets through.

    Args:
        now: what coincides under the gates as they are, of `joined`.
        alone: where samples pass alone, of `passing_alone`.
        z: the pre-activations of each hidden layer, (N, n_l).
    """
    size, sizes = jnp.zeros((len(z[0]), 1), z[0].dtype), []
    for a, zl in zip(alone, z, strict=True):
        sizes.append(jnp.broadcast_to(size, zl.shape))
        passed = jnp.sum(jnp.where(a, jnp.abs(zl), 0.0), axis=1, keepdims=True)
        size = jnp.where(jnp.any(a, axis=1, keepdims=True), passed, size)
    here = in_one_row(sizes)
    first = jnp.where(here > 0, now.of_first(here), 1.0)
    return Coincidence(now.first, jnp.where(here > 0, here / first, now.ratio))
