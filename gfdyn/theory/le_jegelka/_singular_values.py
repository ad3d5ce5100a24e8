"""Matrices next to each other have the same singular values, up to those of M(0)."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

from ..._numerics import ROUNDING
from ...nets import AbstractNet
from .._check import Check, at_most


def neighbouring_singular_values(
    initial: AbstractNet,
    net: AbstractNet,
    classes: Mapping[str, Int[Array, " units"]] | None = None,
    tolerance: ArrayLike = 0.0,
) -> Check:
    r"""$|\sigma_i^2([W_2]_{\cdot A}) - \sigma_i^2([W_1]_{A \cdot})| \le \|[M(0)]_{AA}\|_2$
    for all i, of the weights into and out of linear units, and of classes A of neurons
    whose activation pattern was the same all along.

    Le & Jegelka, the second of their contributions, from Theorem 1 by Weyl's inequality: a
    convolution before a fully connected layer is as far from rank one as that layer is as
    (d l) × c. Entries (values,), invariant after invariant of `gf.diagnostics.invariants`,
    class after class, the values rising.

    Args:
        initial: the net that gradient flow started from.
        net: where it is.
        classes: the class of each neuron of layers with kinks, as `gf.diagnostics.
            signatures` labels them; such layers are left out if None.
        tolerance: of the solve; what it may err relative to the sum of both squared norms.

    Raises:
        ValueError: if the net has no such units.
    """
    given = {} if classes is None else classes
    parts = []
    for before, after in zip(initial.conserved(), net.conserved(), strict=True):
        units = len(before.incoming)
        if before.form == "full":
            masks = jnp.ones((1, units), bool)
        elif before.form == "blocks" and before.name in given:
            masks = given[before.name][None, :] == jnp.arange(units)[:, None]
        else:
            continue
        pairs = masks[:, :, None] & masks[:, None, :]

        def values(gram: Array, pairs: Array = pairs) -> Array:
            return jnp.linalg.eigvalsh(jnp.where(pairs, gram[None], 0))

        largest = jnp.max(jnp.abs(values(before.matrix)), axis=1, keepdims=True)
        out = values(after.outgoing.T @ after.outgoing)
        into = values(after.incoming @ after.incoming.T)
        size = jnp.sum(after.outgoing**2) + jnp.sum(after.incoming**2)
        columns = (jnp.abs(out - into), largest, jnp.maximum(out, into), size)
        parts.append([jnp.broadcast_to(c, out.shape).ravel() for c in columns])
    if not parts:
        raise ValueError(
            "net has no linear units, and no classes are given of the layers with kinks."
        )
    lhs, rhs, values_there, sizes = (jnp.concatenate(c) for c in zip(*parts, strict=True))
    rounding = ROUNDING * float(jnp.finfo(lhs.dtype).eps)
    slack = (rounding + jnp.asarray(tolerance, lhs.dtype)) * sizes
    # Both are at least 0, so that they are no further apart than the larger one.
    return at_most(lhs, rhs, assumptions={}, vacuous=values_there <= rhs, slack=slack)
