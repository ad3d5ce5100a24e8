"""What one sample, and a batch, can do to a weight matrix: Lemmas 1 and 2."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...descent import on_batch
from ...nets import MLP, AbstractNet, LayeredNet, check_mlp
from ...problem import Problem, check_fit
from .._check import Check, at_most, equal
from ._quantities import ROUNDING, check_matrices, excess, normalised_receivers


class Factors(NamedTuple):
    """∂f_c(x_i)/∂W_l = u_ic v_iᵀ: u (N, k, n_l) and v (N, n_{l−1})."""

    u: Float[Array, "samples outputs rows"]
    v: Float[Array, "samples columns"]


def jacobian_factors(problem: Problem, net: MLP) -> tuple[Factors, ...]:
    r"""The factors of each sample's Jacobian, l = 1, …, L:

    $$\frac{\partial f_c(x_i)}{\partial W_l} = u_{ic}\, v_i^\top, \qquad
    u_{ic} = \frac{\partial f_c}{\partial z_l}(x_i), \quad v_i = a_{l-1}(x_i).$$

    Galanti & Poggio, eq. 13, who write u as a sum over paths, for piecewise linear
    activations; by the chain rule it is so for all, and v is common to the outputs c. A
    gradient of the loss is then $\big(\sum_c \ell'_{ic} u_{ic}\big) v_i^\top$.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem.
    """
    check_mlp(net)
    check_fit(problem, net)
    x = problem.data.x
    z = net.preactivations(x)
    a = [sigma(zl) for sigma, zl in zip(net.activations, z, strict=True)]

    def outputs(shifts: tuple[Array, ...]) -> Array:
        pairs = zip(net.activations, shifts, strict=True)
        gates = [lambda z, s=sigma, by=shift: s(z + by) for sigma, shift in pairs]
        return net.forward(x, gates)[0]

    found, vjp = jax.vjp(outputs, tuple(jnp.zeros_like(zl) for zl in z))
    basis = jnp.eye(net.out_size, dtype=x.dtype)
    each = jnp.broadcast_to(basis[:, None, :], (net.out_size, *found.shape))
    (behind,) = jax.vmap(vjp)(each)
    signals = [jnp.swapaxes(u, 0, 1) for u in (*behind, each)]
    return tuple(Factors(u, v) for u, v in zip(signals, [x, *a], strict=True))


def low_rank_jacobians(
    problem: Problem, net: AbstractNet, uses: int | Sequence[int] = 1
) -> Check:
    r"""One sample's Jacobian in a weight matrix is of rank one:

    $$\sigma_{2}/\sigma_1 = 0 \quad\text{of}\quad \partial f_c(x_i)/\partial W_l.$$

    Galanti & Poggio, Lemma 1, for any differentiable activation. Entries (N, k, L).

    Args:
        uses: how often the matrix acts on one sample, which is then the rank: the number
            of patches of a convolution, the number of times that a tied matrix appears; a
            number, or one for each layer. Vacuous where no matrix has a higher rank.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, or `uses` its layers;
            on weights that are no matrices, or batch normalisation.
    """
    check_fit(problem, net)
    check_matrices(net)
    ranks = _per_layer(uses, net)

    def of(x: Array) -> Array:
        jacobian = jax.jacrev(lambda net: net(x[None])[0])(net)
        return jax.vmap(lambda gradient: _excesses(gradient, ranks))(jacobian)

    lhs = jax.vmap(of)(problem.data.x)
    return _is_zero(lhs, net, ranks)


def low_rank_batch_gradients(
    problem: Problem,
    net: AbstractNet,
    batches: Int[Array, "batches size"],
    uses: int | Sequence[int] = 1,
) -> Check:
    r"""A batch of B samples has a gradient of rank B at most in each weight matrix:

    $$\sigma_{B+1}/\sigma_1 = 0 \quad\text{of}\quad \nabla_{W_l} R_{\tilde S};$$

    B − 1 where W_l leads to batch normalisation, for the signals that arrive there sum to
    0. Galanti & Poggio, Lemmas 1 and 2, who ask for a detached scale; it need not be.
    Without decay. Entries (batches, L).

    Args:
        batches: samples, one batch a row.
        uses: how often each matrix acts on one sample, see `low_rank_jacobians`; the
            rank is so many times B.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, or `uses` its layers;
            on weights that are no matrices.
    """
    check_fit(problem, net)
    check_matrices(net)
    ranks = _ranks_of_batches(net, batches, uses)

    def of(rows: Array) -> Array:
        return _excesses(jax.grad(on_batch(problem, rows).risk)(net), ranks)

    return _is_zero(jax.vmap(of)(batches), net, ranks)


def low_rank_batch_jacobians(
    problem: Problem,
    net: AbstractNet,
    batches: Int[Array, "batches size"],
    uses: int | Sequence[int] = 1,
) -> Check:
    r"""One sample's Jacobian within a batch of B is of rank B at most, where normalisation
    lets it see the others:

    $$\sigma_{B+1}/\sigma_1 = 0 \quad\text{of}\quad \bar\partial f_c(x_j; \tilde X)/
    \bar\partial W_l;$$

    B − 1 where W_l leads to batch normalisation. Galanti & Poggio, Lemma 2. Entries
    (batches, B, k, L).

    Args:
        batches, uses: see `low_rank_batch_gradients`.

    Raises:
        TypeError, ValueError: as `low_rank_batch_gradients`.
    """
    check_fit(problem, net)
    check_matrices(net)
    ranks = _ranks_of_batches(net, batches, uses)

    def of(rows: Array) -> Array:
        jacobian = jax.jacrev(lambda net: net(problem.data.x[rows]))(net)
        each = jax.vmap(jax.vmap(lambda gradient: _excesses(gradient, ranks)))
        return each(jacobian)

    return _is_zero(jax.vmap(of)(batches), net, ranks)


def scale_invariance(problem: Problem, net: LayeredNet) -> Check:
    r"""Weights that lead to batch normalisation are orthogonal to their gradient:

    $$\langle W_l, \nabla_{W_l} R\rangle = 0,$$

    for the outputs do not depend on ‖W_l‖: decay alone moves it, and with decay such a
    layer is at rest at W_l = 0 only, where it is undefined. Not in the paper, whose
    detached scale hides it. Sides (L,): the cosine of the two, and 0.

    Raises:
        TypeError, ValueError: if the net is no LayeredNet, or does not fit the problem.
    """
    if not isinstance(net, LayeredNet):
        raise TypeError(
            f"net is a {type(net).__name__}; batch normalisation is of a gf.nets."
            "LayeredNet, as gf.nets.architecture('MLP-BN-L-H', …) builds it."
        )
    check_fit(problem, net)
    gradient = jax.grad(problem.risk)(net)
    cosines = []
    for w, g in zip(net.weights, gradient.weights, strict=True):
        size = jnp.linalg.norm(w) * jnp.linalg.norm(g)
        cosines.append(jnp.sum(w * g) / jnp.where(size > 0, size, 1))
    lhs = jnp.stack(cosines)
    layers = [layer for layer in net.layers if layer.is_trained]
    norms = [layer.norm for layer in layers]
    alone = [all(c.trained for c in layer.connections) for layer in layers]
    bare = [layer.bias is None for layer in layers]
    assumptions = {
        "normalised": [norm is not None for norm in norms],
        "not_detached": [norm is None or not norm.detach for norm in norms],
        "zero_eps": [norm is None or norm.eps == 0 for norm in norms],
        "nothing_but_weights": [a and b for a, b in zip(alone, bare, strict=True)],
    }
    return equal(
        lhs,
        jnp.zeros_like(lhs),
        assumptions={name: jnp.asarray(met) for name, met in assumptions.items()},
        slack=ROUNDING * float(jnp.finfo(lhs.dtype).eps),
    )


def _ranks_of_batches(
    net: AbstractNet, batches: Array, uses: int | Sequence[int]
) -> tuple[int, ...]:
    """The greatest rank of each matrix."""
    pairs = zip(_per_layer(uses, net), normalised_receivers(net), strict=True)
    return tuple(n * batches.shape[1] - normalised for n, normalised in pairs)


def _excesses(gradient: AbstractNet, ranks: tuple[int, ...]) -> Array:
    pairs = zip(gradient.weights, ranks, strict=True)
    return jnp.stack([excess(w, rank) for w, rank in pairs])


def _per_layer(uses: int | Sequence[int], net: AbstractNet) -> tuple[int, ...]:
    number = len(net.weights)
    per_layer = (uses,) * number if isinstance(uses, int) else tuple(uses)
    if len(per_layer) != number or min(per_layer) < 1:
        raise ValueError(
            f"uses={uses} must be 1 or more, one number or one for each of the {number} "
            "weight matrices."
        )
    return per_layer


def _is_zero(lhs: Array, net: AbstractNet, ranks: tuple[int, ...]) -> Check:
    full = [rank >= min(w.shape) for rank, w in zip(ranks, net.weights, strict=True)]
    return at_most(
        lhs,
        jnp.zeros_like(lhs),
        assumptions={},
        vacuous=jnp.broadcast_to(jnp.asarray(full), lhs.shape),
        slack=ROUNDING * float(jnp.finfo(lhs.dtype).eps),
    )
