"""Matrices made of one tensor or of one block have comparable norms: Lemmas 9 to 11."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import Check, at_most


def flattening_inequality(tensor: Float[Array, "a b c"]) -> Check:
    r"""$\|T_1\|_2^2 \le \min(a, b)\, \|T_2\|_2^2$ of the flattenings $T_1 \in \mathbb
    R^{c \times ab}$ and $T_2 \in \mathbb R^{bc \times a}$: rows by output, columns by input
    channels.

    Le & Jegelka, Lemma 9 (Lemma 10 of the corrected version). Tight: c = 1, T = I.

    Args:
        tensor: T: a channels in, b entries of the window, c channels out.
    """
    a, b, c = tensor.shape
    first = tensor.reshape(a * b, c).T
    second = jnp.moveaxis(tensor, 0, -1).reshape(b * c, a)
    lhs, rhs = _spectral(first), min(a, b) * _spectral(second)
    return at_most(lhs, rhs, assumptions={})


def free_block_inequality(
    u: Float[Array, "out hidden"],
    y: Float[Array, "hidden in"],
    z: Float[Array, "out in"],
    form: Literal["sharp", "printed"] = "sharp",
) -> Check:
    r"""$C\,\|A\|_2^2 - C\,\lambda^+(U^\top U - Y Y^\top) \le \|B\|_2^2$ of a Free block,
    with A = [U Z], all that leads into its output, and B = [Y; Z], all that leads out of
    its input; C = 1/2.

    Le & Jegelka, Lemma 10 (Lemma 11 of the corrected version) have C = 1/8 with
    $\lambda^+/4$: their chain squares a norm once too often. 1/2 is tight.

    Args:
        u, y, z: U, Y and Z of the block σ(U σ(Y x) + Z x).
        form: `"sharp"` has C = 1/2, `"printed"` the constants of the paper.
    """
    factor, part = {"sharp": (0.5, 0.5), "printed": (0.125, 0.25)}[form]
    into = jnp.concatenate([u, z], axis=1)
    out = jnp.concatenate([y, z], axis=0)
    excess = jnp.linalg.eigvalsh(u.T @ u - y @ y.T)[-1]
    lhs = factor * _spectral(into) - part * jnp.maximum(excess, 0)
    return at_most(lhs, _spectral(out), assumptions={}, vacuous=lhs <= 0)


def _spectral(matrix: Float[Array, "_ _"]) -> Float[Array, ""]:
    return jnp.linalg.svd(matrix, compute_uv=False)[0] ** 2
