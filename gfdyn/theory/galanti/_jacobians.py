"""What one sample, and a batch, can do to a weight matrix: Lemmas 1 and 2."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._problem import Problem, check_fit
from ..._sampling import on_batch
from ...escape._rewrite import check_mlp
from ...nets import MLP, AbstractNet
from .._check import Check, at_most
from ._quantities import ROUNDING, excess


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
        TypeError, ValueError: if the net does not fit the problem, or `uses` its layers.
    """
    check_fit(problem, net)
    ranks = _per_layer(uses, net)

    def of(x: Array) -> Array:
        jacobian = jax.jacrev(lambda net: net(x[None])[0])(net)

        def ratios(gradient: AbstractNet) -> Array:
            pairs = zip(gradient.weights, ranks, strict=True)
            return jnp.stack([excess(w, rank) for w, rank in pairs])

        return jax.vmap(ratios)(jacobian)

    lhs = jax.vmap(of)(problem.data.x)
    return _is_zero(lhs, net, ranks)


def low_rank_batch_gradients(
    problem: Problem,
    net: AbstractNet,
    batches: Int[Array, "batches size"],
    uses: int | Sequence[int] = 1,
) -> Check:
    r"""A batch of B samples has a gradient of rank B at most in each weight matrix:

    $$\sigma_{B+1}/\sigma_1 = 0 \quad\text{of}\quad \nabla_{W_l} R_{\tilde S}.$$

    Galanti & Poggio, Lemmas 1 and 2. Without decay; the net sees the batch as a whole, so
    that statistics taken over it, detached or not, are in. Entries (batches, L).

    Args:
        batches: samples, one batch a row.
        uses: how often each matrix acts on one sample, see `low_rank_jacobians`; the
            rank is so many times B.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, or `uses` its layers.
    """
    check_fit(problem, net)
    ranks = tuple(n * batches.shape[1] for n in _per_layer(uses, net))

    def of(rows: Array) -> Array:
        gradient = jax.grad(on_batch(problem, rows).risk)(net)
        pairs = zip(gradient.weights, ranks, strict=True)
        return jnp.stack([excess(w, rank) for w, rank in pairs])

    return _is_zero(jax.vmap(of)(batches), net, ranks)


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
