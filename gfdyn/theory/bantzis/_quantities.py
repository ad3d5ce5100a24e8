"""Norms, tails and layers, from which the statements are made; all free of scale."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from ..._tracing import is_concrete
from ..._types import Matrix, Scalar
from ...diagnostics import direction
from ...nets import MLP, check_mlp, norm
from ...problem import Problem, check_fit


class UnitLayers(eqx.Module):
    """A net with every ‖W_l‖_F = 1 and log ‖ρ_1‖_F ⋯ ‖ρ_L‖_F ≤ 0 of the ρ it comes from.

    Tails and nonlinearities are the same for both; L₀(ρ) is L₀ of this net times that
    product.
    """

    net: MLP
    log_product: Scalar


def unit_layers(problem: Problem, net: MLP) -> UnitLayers:
    """ρ = √L θ/‖θ‖ with its layers scaled to norm 1; layers of zeros stay.

    Raises:
        TypeError, ValueError: if it is no MLP, or does not fit the problem.
    """
    check_mlp(net)
    check_fit(problem, net)
    rho = direction(problem, net).weights
    sizes = jnp.stack([norm(w) for w in rho])
    safe = jnp.where(sizes > 0, sizes, 1)
    units = [w / size for w, size in zip(rho, safe, strict=True)]
    return UnitLayers(MLP.from_weights(units, net.activations), jnp.sum(jnp.log(sizes)))


def hidden(problem: Problem, net: MLP) -> list[tuple[Matrix, Matrix]]:
    """(Z_l, σ(Z_l)) of each hidden layer, (N, n_l): the papers' Z_l, Z_l^σ transposed."""
    z = net.preactivations(problem.data.x)
    return [(zl, sigma(zl)) for sigma, zl in zip(net.activations, z, strict=True)]


def singular_values(matrix: Matrix) -> Float[Array, " _"]:
    """Those of the matrix, falling; scaled into range where they are computed."""
    size = jnp.max(jnp.abs(matrix))
    size = jnp.where(size > 0, size, 1)
    return size * jnp.linalg.svd(matrix / size, compute_uv=False)


def operator_norm(matrix: Matrix) -> Scalar:
    """The largest singular value."""
    return singular_values(matrix)[0]


def tail(matrix: Matrix) -> Scalar:
    """1 − ‖·‖²_op/‖·‖²_F, summed from the small side; 0 for a matrix of zeros."""
    s = singular_values(matrix)
    squares = (s / jnp.where(s[0] > 0, s[0], 1)) ** 2
    return jnp.sum(squares[1:]) / jnp.where(s[0] > 0, jnp.sum(squares), 1)


def lost(z: Matrix, a: Matrix) -> Scalar:
    """‖σ(Z) − Z‖²_F/‖Z‖²_F, 0 for Z = 0."""
    size = norm(z)
    return (norm(a - z) / jnp.where(size > 0, size, 1)) ** 2


def tails_after(problem: Problem, net: MLP, layer: int = 0) -> list[Array]:
    """tail(W_l) for l > layer, then tail(σ(Z_l)), then the nonlinearity of Z_l, for hidden
    l > layer: three vectors."""
    pairs = hidden(problem, net)[layer:]
    empty = jnp.zeros((0,), problem.data.x.dtype)
    return [
        jnp.stack([tail(w) for w in net.weights[layer:]]),
        jnp.stack([tail(a) for _, a in pairs]) if pairs else empty,
        jnp.stack([lost(z, a) for z, a in pairs]) if pairs else empty,
    ]


def check_optimal_speed(optimal_speed: ArrayLike) -> None:
    """Raise unless it is positive, or traced.

    Raises:
        ValueError: then.
    """
    if is_concrete(optimal_speed) and not np.all(np.asarray(optimal_speed) > 0):
        raise ValueError(
            f"optimal_speed={optimal_speed} must be positive: s* = −min L₀ on ‖θ‖² = L."
        )


def is_relu(net: MLP) -> Bool[Array, ""]:
    """Whether every activation is ReLU."""
    return jnp.asarray(all(sigma.slope == 0.0 for sigma in net.activations))
