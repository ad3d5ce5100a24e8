"""How the layers act on the data: linearity, kinks, alignment."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numbers import check_number, is_threshold
from ..nets import AbstractNet, check_mlp
from ..problem import Problem


def nonlinearity(problem: Problem, net: AbstractNet) -> Float[Array, " hidden"]:
    r"""$\|\sigma(Z_l) - Z_l\|_F^2 / \|Z_l\|_F^2$ on the data, l = 1, …, L−1.

    0 where a layer acts linearly on the data (Bantzis et al., Thm 3.1); 0 for Z_l = 0.
    """
    z = net.preactivations(problem.data.x)
    return _stack(
        problem,
        [
            jnp.sum((sigma(_scaled(zl)) - _scaled(zl)) ** 2)
            / jnp.maximum(jnp.sum(_scaled(zl) ** 2), 1.0)
            for sigma, zl in zip(net.activations, z, strict=True)
        ],
    )


def kink_count(
    problem: Problem, net: AbstractNet, threshold: float = 1e-6
) -> Int[Array, " hidden"]:
    r"""The number of (neuron, sample) pairs at a kink, l = 1, …, L−1.

    A pair is at a kink where $|z| \le \text{threshold} \cdot \|w\| \|a\|$, with w the
    neuron's weights and a the activations that enter; a dead input (a = 0) is not at one.

    Args:
        threshold: the largest |cos ∠(w, a)| at a kink, 0 or more; 0 for z = 0 only.

    Raises:
        TypeError, ValueError: if the net is no `gf.nets.MLP`, or unless the threshold is a
            number of at least 0.
    """
    check_mlp(net)
    remedy = "must be 0 or more, such as 1e-6: how near to a kink is at it."
    check_number("threshold", threshold, is_threshold, remedy)
    x, counts = problem.data.x, []
    entering = x
    for w, sigma in zip(net.weights[:-1], net.activations, strict=True):
        # Both scaled into range, so that tiny nets have kinks too.
        entering, w = _scaled(entering), _scaled(w)
        z = entering @ w.T
        size = _row_norms(entering)[:, None] * _row_norms(w)[None, :]
        near = (jnp.abs(z) <= threshold * size) & (size > 0)
        counts.append(jnp.sum(near) if not sigma.is_linear else jnp.sum(near & False))
        entering = sigma(z)
    if not counts:
        return jnp.zeros((0,), jnp.int32)
    return jnp.stack(counts)


def alignment(problem: Problem, net: AbstractNet) -> Float[Array, " hidden"]:
    r"""$|\langle v_{l+1}, u_l\rangle|$, l = 1, …, L−1: the top right singular vector of
    W_{l+1} against the top left one of W_l; 1 when neighbouring layers are aligned.

    For each entry of `gf.diagnostics.invariants` that is a matrix."""
    pairs = [(i.incoming, i.outgoing) for i in net.conserved() if i.form != "norms"]
    return _stack(
        problem,
        [
            jnp.abs(jnp.vdot(_top_pair(after)[1], _top_pair(before)[0]))
            for before, after in pairs
        ],
    )


def _top_pair(w: Array) -> tuple[Array, Array]:
    largest = jnp.max(jnp.abs(w))
    u, _, vt = jnp.linalg.svd(w / jnp.where(largest > 0, largest, 1.0), full_matrices=False)
    return u[:, 0], vt[0]


def _row_norms(rows: Array) -> Array:
    return jnp.linalg.norm(rows, axis=1)


def _scaled(z: Array) -> Array:
    largest = jnp.max(jnp.abs(z))
    return z / jnp.where(largest > 0, largest, 1.0)


def _stack(problem: Problem, values: list[Array]) -> Array:
    return jnp.stack(values) if values else jnp.zeros((0,), problem.data.x.dtype)
