"""The degree of homogeneity of a network of which only values are known."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from .._tracing import is_concrete
from ._base import AbstractNet


# Rows of input with which a network is tried.
_PROBES = 5


def degree_by_values(net: AbstractNet) -> int | None:
    """The degree of positive homogeneity, as multiples of a point drawn near θ tell, up to
    64 times and down to a 64th; None if there is none. Near 0, where θ is traced."""
    leaves, structure = jax.tree.flatten(net)
    with jax.ensure_compile_time_eval():
        known = [w if is_concrete(w) else jnp.zeros(w.shape, w.dtype) for w in leaves]
        return _degree_near(known, structure, net.in_size)


def _degree_near(leaves: list[Array], structure: Any, in_size: int) -> int | None:
    dtype = leaves[0].dtype
    keys = jr.split(jr.key(0), len(leaves) + 1)
    # Also where some arrays, such as biases, are 0.
    near = [
        leaf + jnp.maximum(jnp.std(leaf), 0.1) * jr.normal(key, leaf.shape, dtype)
        for leaf, key in zip(leaves, keys[1:], strict=True)
    ]
    x = jr.normal(keys[0], (_PROBES, in_size), dtype)

    # Compiled, as functions with derivatives of their own go to the trace outside.
    outputs = jax.jit(lambda c: jax.tree.unflatten(structure, [c * w for w in near])(x))
    at, doubled = outputs(1.0), outputs(2.0)
    ratio = float(jnp.linalg.norm(doubled) / jnp.linalg.norm(at))
    if not (math.isfinite(ratio) and ratio > 1):
        return None
    degree = round(math.log2(ratio))
    # Far from θ, too: ReLU6 is homogeneous up to where it ends. But within float32.
    far = 2.0 ** min(6, 100 // max(degree, 1))
    rounding = 1e4 * float(jnp.finfo(dtype).eps) * jnp.max(jnp.abs(at))
    agree = [
        jnp.max(jnp.abs(outputs(c) / c**degree - at)) <= rounding
        for c in (0.5, 2.0, far, 1 / far)
    ]
    return degree if degree >= 1 and all(agree) else None
