"""Points at which SGD may rest: Propositions 1 and 2."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._types import Scalar
from ...nets import MLP, AbstractNet, check_mlp, norm
from ...problem import Problem, check_fit
from .._check import Check, at_most
from ._quantities import check_mean, decayed, difference, sample_gradient, square


# Samples at a time, whose gradients are held.
_CHUNK = 64


class Stationarity(eqx.Module):
    r"""How far SGD is from rest at a point, $g_i = \nabla \ell_i$ without decay.

    SGD rests at W, for every batch of one size B < m, iff it does for single samples: iff
    `largest` is 0, that is `mean` and `noise` are (Galanti & Poggio, eqs. 6–9).

    Attributes:
        largest: $R_{max} = \max_i \|g_i + 2\lambda W\|$.
        root_mean_square: $R_{rms}$, the root of mean² + noise.
        mean: $\|\bar g + 2\lambda W\|$, at which full-batch gradient descent rests.
        noise: $\operatorname{tr}\Sigma = \frac1m\sum_i \|g_i - \bar g\|^2$.
        loss_derivatives: $\|\ell'_i\|$ of each sample, (m,). "Almost convergence" of an
            exponential tail at λ = 0 is that they are small.
    """

    largest: Scalar
    root_mean_square: Scalar
    mean: Scalar
    noise: Scalar
    loss_derivatives: Float[Array, " samples"]


def stationarity(
    problem: Problem, net: AbstractNet, weight_decay: ArrayLike = 0.0
) -> Stationarity:
    """How far SGD is from rest, with the penalty λ‖W‖² of this `weight_decay` λ.

    Args:
        weight_decay: λ, 0 or more.

    Raises:
        TypeError, ValueError: if the net does not fit the problem, or the risk is no mean.
    """
    check_mean(problem, net)
    x, y = problem.data.x, problem.data.y
    decay = decayed(net, jnp.asarray(weight_decay, x.dtype))
    mean = jax.grad(problem.risk)(net)

    def of(sample: tuple[Array, Array]) -> tuple[Scalar, Scalar]:
        gradient = sample_gradient(problem, net, *sample)
        residual = jax.tree.map(jnp.add, gradient, decay)
        return square(residual), square(difference(gradient, mean))

    derivatives = _loss_derivatives(problem, problem.outputs(net))
    residuals, deviations = jax.lax.map(of, (x, y), batch_size=_CHUNK)
    return Stationarity(
        largest=jnp.sqrt(jnp.max(residuals)),
        root_mean_square=jnp.sqrt(jnp.mean(residuals)),
        mean=jnp.sqrt(square(jax.tree.map(jnp.add, mean, decay))),
        noise=jnp.mean(deviations),
        loss_derivatives=jnp.linalg.norm(derivatives, axis=1),
    )


def collinearity(vectors: Float[Array, "samples dim"]) -> Scalar:
    r"""$1 - \lambda_1/m$, λ_1 the largest eigenvalue of the Gram matrix of the directions
    $v_i/\|v_i\|$: 0 exactly if all lie on one line through 0.

    Vectors of zeros lie on every line, and are left out; 0 if all are.

    Args:
        vectors: v_i, one a row.
    """
    units = _units(vectors)
    values = jnp.linalg.svd(units, compute_uv=False)
    number = jnp.sum(jnp.any(units != 0, axis=1)).astype(values.dtype)
    # From the small side, which keeps its digits.
    return jnp.sum(values[1:] ** 2) / jnp.maximum(number, 1)


def jacobian_collinearity(problem: Problem, net: AbstractNet) -> Float[Array, " layers"]:
    r"""The `collinearity` of the gradients $\nabla_{W_l} \ell_i$ of all samples, (L,).

    For one output these are the Jacobians, up to the factors ℓ'_i: 0 at a convergence
    point of SGD with decay (Galanti & Poggio, eq. 9).

    Raises:
        TypeError, ValueError: if the net does not fit the problem.
    """
    check_fit(problem, net)

    def of(x: Array, y: Array) -> list[Array]:
        return [w.ravel() for w in sample_gradient(problem, net, x, y).weights]

    rows = jax.vmap(of)(problem.data.x, problem.data.y)
    return jnp.stack([collinearity(each) for each in rows])


def zero_or_collinear(problem: Problem, net: MLP, weight_decay: ArrayLike) -> Check:
    r"""With decay SGD rests nowhere but at f ≡ 0, unless all inputs are collinear:

    $$\|W_1\|_F \le \frac{R_1}{2\lambda} \sqrt{1 + \frac{4}{\sin^2\varphi}}, \qquad
    R_1 = \max_i \|\nabla_{W_1} \ell_i + 2\lambda W_1\|_F,$$

    φ the largest angle between the lines of two inputs. Galanti & Poggio's Prop. 1 is the
    case $R_1 = 0$, for one output. Scalar sides; infinite right for λ = 0.

    Proof: $\nabla_{W_1} \ell_i = \delta_i x_i^\top$, so that the rows of W_1 are within
    $R_1/2\lambda$ (together) of the line of each $x_i$. If these are at an angle φ, the
    rows are as short as that.

    Args:
        weight_decay: λ of the penalty λ‖W‖².

    Raises:
        TypeError, ValueError: if the net is no MLP, does not fit the problem, or the risk
            is no mean.
    """
    check_mlp(net)
    check_mean(problem, net)
    x, first = problem.data.x, net.weights[0]
    decay = jnp.asarray(weight_decay, x.dtype)

    def residual(sample: tuple[Array, Array]) -> Scalar:
        gradient = sample_gradient(problem, net, *sample).weights[0]
        return jnp.linalg.norm(gradient + 2 * decay * first)

    largest = jnp.max(jax.lax.map(residual, (x, problem.data.y), batch_size=_CHUNK))
    units = _units(x)
    nonzero = jnp.any(units != 0, axis=1)
    cosines = jnp.where(nonzero[:, None] & nonzero[None, :], units @ units.T, 1)
    square_sine = 1 - jnp.min(cosines**2)
    apart = square_sine > 1e3 * float(jnp.finfo(x.dtype).eps)
    factor = jnp.sqrt(1 + 4 / jnp.where(apart, square_sine, 1))
    rhs = largest / jnp.where(decay > 0, 2 * decay, 1) * factor
    rhs = jnp.where(decay > 0, rhs, jnp.inf)
    return at_most(
        jnp.linalg.norm(first),
        rhs,
        assumptions={"not_collinear": apart},
        vacuous=jnp.isinf(rhs),
    )


def fitted_or_zero(problem: Problem, net: AbstractNet) -> Check:
    r"""Without decay SGD rests only where each sample's loss is at its minimum, or f is 0:

    $$|\langle \ell'_i, f(x_i)\rangle| \le \|\nabla \ell_i\|\,\|\theta\|/L.$$

    By Euler's identity and Cauchy–Schwarz. Galanti & Poggio's Prop. 2 is the case of right
    sides 0, for one output; it does not need its inputs not to be collinear. A loss without
    a minimum (logistic, cross-entropy, exponential) leaves f(x_i) = 0. Entries (m,).

    Raises:
        TypeError, ValueError: if the net does not fit the problem.
    """
    check_fit(problem, net)
    x, y = problem.data.x, problem.data.y
    outputs = problem.outputs(net)
    products = jnp.sum(_loss_derivatives(problem, outputs) * outputs, axis=1)

    def size(sample: tuple[Array, Array]) -> Scalar:
        return jnp.sqrt(square(sample_gradient(problem, net, *sample)))

    sizes = jax.lax.map(size, (x, y), batch_size=_CHUNK)
    return at_most(
        jnp.abs(products),
        sizes * norm(net) / (net.degree or 1),
        assumptions={"homogeneous": net.degree is not None},
        slack=100 * float(jnp.finfo(x.dtype).eps) * jnp.max(jnp.abs(products), initial=1.0),
    )


def _units(vectors: Float[Array, "samples dim"]) -> Float[Array, "samples dim"]:
    lengths = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / jnp.where(lengths > 0, lengths, 1)


def _loss_derivatives(
    problem: Problem, outputs: Float[Array, "samples outputs"]
) -> Float[Array, "samples outputs"]:
    """ℓ'_i of each sample."""
    y = problem.data.y
    return jax.grad(lambda f: jnp.sum(problem.loss.values(f, y)))(outputs)
