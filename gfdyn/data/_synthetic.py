"""Synthetic data, as the theory asks for them.

Random ones are drawn in float32 and cast, so that one seed gives the same data in every
precision up to rounding.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .._keys import random_keys
from .._numbers import check_counts
from .._tracing import is_concrete
from ._checks import DType, as_array, float_dtype
from ._dataset import Dataset


def circle(n: int = 8, dtype: DType = None) -> Dataset:
    r"""Points round the unit circle with alternating targets.

    $$x_j = (\sin(2\pi j/n), \cos(2\pi j/n)), \quad y_j = -(-1)^j,
    \quad j = 1, \dots, n.$$

    The cost $\tfrac12 \sum_j (f_j - y_j)^2$ then has at f = 0 the gradient
    $G_j = (-1)^j$ of Bantzis, Simon & Jacot, example 1 (who print the targets
    $(-1)^j$). For n > 2, $\sum_j G_j x_j = 0$: a linear network sees nothing.

    Args:
        n: the number of points, even.
        dtype: of inputs and targets, a floating one; JAX's default float if None.

    Raises:
        ValueError: unless n is even and at least 2.

    Example:
        >>> circle(4).y.ravel().tolist()
        [1.0, -1.0, 1.0, -1.0]
    """
    check_counts(n=n, least=2)
    if n % 2:
        raise ValueError(f"n={n} must be even for targets to alternate: add a point.")
    j = np.arange(1, n + 1)
    angle = 2 * np.pi * j / n
    x = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    return _from_numpy(x, 1.0 - 2.0 * (j % 2 == 0), dtype)


def gaussian(
    n: int, dim: int, outputs: int = 1, *, key: PRNGKeyArray, dtype: DType = None
) -> Dataset:
    """Inputs and targets with independent N(0, 1) entries.

    Args:
        n: N, the number of samples.
        dim: d, the number of input features.
        outputs: k, the number of targets of each sample.
        key: seeds the draw.
        dtype: of inputs and targets, a floating one; JAX's default float if None.
    """
    check_counts(n=n, dim=dim, outputs=outputs)
    x_key, y_key = random_keys(key, 2)
    return Dataset(_normal(x_key, (n, dim), dtype), _normal(y_key, (n, outputs), dtype))


def teacher(
    n: int, widths: Sequence[int], *, key: PRNGKeyArray, dtype: DType = None
) -> Dataset:
    r"""N(0, 1) inputs; targets are the outputs of a random ReLU network without biases.

    $$y = W_L\, \sigma(W_{L-1} \cdots \sigma(W_1 x)), \qquad
    (W_l)_{ij} \sim N(0, 1/n_{l-1}).$$

    Args:
        n: N, the number of samples.
        widths: $(n_0, \dots, n_L)$, from the inputs to the outputs.
        key: seeds the draw of inputs and weights.
        dtype: of inputs and targets, a floating one; JAX's default float if None.
    """
    if len(widths) < 2:
        raise ValueError(f"widths={widths} must name at least inputs and outputs.")
    check_counts(n=n, **{f"widths[{i}]": width for i, width in enumerate(widths)})
    x_key, *keys = random_keys(key, len(widths))
    x = _normal(x_key, (n, widths[0]), dtype)
    *hidden, last = (
        _normal(k, shape, dtype) / math.sqrt(shape[0])
        for k, shape in zip(keys, pairwise(widths), strict=True)
    )
    a = x
    # Else GPUs would round the float32 targets as TensorFloat-32.
    with jax.default_matmul_precision("highest"):
        for w in hidden:
            a = jax.nn.relu(a @ w)
        return Dataset(x, a @ last)


def orthogonal(
    n: int,
    dim: int,
    outputs: int = 1,
    *,
    key: PRNGKeyArray,
    scales: ArrayLike | Sequence | None = None,
    dtype: DType = None,
) -> Dataset:
    r"""Orthogonal inputs $x_i = \lambda_i q_i$, the $q_i$ orthonormal; N(0, 1) targets.

    Args:
        n: N, the number of samples, at most `dim`.
        dim, outputs, key, dtype: see `gaussian`.
        scales: the lengths $\lambda_i$, (N,); None for unit vectors.

    Raises:
        ValueError: if n exceeds `dim`, or a length is not positive and finite.
    """
    check_counts(n=n, dim=dim, outputs=outputs)
    if n > dim:
        raise ValueError(
            f"n={n} samples cannot be orthogonal in dim={dim} dimensions: raise dim."
        )
    x_key, y_key = random_keys(key, 2)
    x = _orthonormal(x_key, n, dim, dtype)
    if scales is not None:
        x = _lengths(scales, n).astype(x.dtype)[:, None] * x
    return Dataset(x, _normal(y_key, (n, outputs), dtype))


def rank_one(
    n: int,
    dim: int,
    outputs: int = 1,
    *,
    key: PRNGKeyArray,
    noise: float = 0.0,
    dtype: DType = None,
) -> Dataset:
    r"""Inputs near one ray, $X = v u^\top + \text{noise} \cdot Z$; N(0, 1) targets.

    u is a random unit vector, $v_i = \tfrac12 + |z_i|$, and z and Z are N(0, 1). The
    setting of Bantzis, Simon & Jacot, proposition 3.3.

    Args:
        n, dim, outputs, key, dtype: see `gaussian`.
        noise: the factor of Z, 0 or more.
    """
    check_counts(n=n, dim=dim, outputs=outputs)
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise={noise} must be finite and at least 0.")
    u_key, v_key, y_key, noise_key = random_keys(key, 4)
    u = _orthonormal(u_key, 1, dim, dtype)
    v = 0.5 + jnp.abs(_normal(v_key, (n, 1), dtype))
    x = v * u + noise * _normal(noise_key, (n, dim), dtype)
    return Dataset(x, _normal(y_key, (n, outputs), dtype))


def parallel(
    n: int, dim: int, outputs: int = 1, *, key: PRNGKeyArray, dtype: DType = None
) -> Dataset:
    """Inputs on one ray, positive multiples of a unit vector; N(0, 1) targets.

    Args:
        n, dim, outputs, key, dtype: see `gaussian`.
    """
    return rank_one(n, dim, outputs, key=key, dtype=dtype)


def antipodal(
    n: int, dim: int, outputs: int = 1, *, key: PRNGKeyArray, dtype: DType = None
) -> Dataset:
    """2n inputs in pairs, row n + i minus row i; N(0, 1) targets, all independent.

    The two of a pair share the kink of every first-layer neuron.

    Args:
        n: the number of pairs.
        dim, outputs, key, dtype: see `gaussian`.
    """
    check_counts(n=n, dim=dim, outputs=outputs)
    x_key, y_key = random_keys(key, 2)
    x = _normal(x_key, (n, dim), dtype)
    return Dataset(jnp.concatenate([x, -x]), _normal(y_key, (2 * n, outputs), dtype))


def xor(dim: int = 2, dtype: DType = None) -> Dataset:
    r"""The unit points at 45°, 135°, 225°, 315° with labels +1, -1, +1, -1.

    $x = (\pm 1, \pm 1)/\sqrt2$ and $y = \operatorname{sign}(x_1 x_2)$.

    Args:
        dim: d, the number of input features, 2 or more; those beyond two are 0.
        dtype: of inputs and targets, a floating one; JAX's default float if None.
    """
    check_counts(dim=dim, least=2)
    signs = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    x = np.pad(signs * math.sqrt(0.5), [(0, 0), (0, dim - 2)])
    return _from_numpy(x, signs.prod(axis=1), dtype)


def two_points(
    angle: float, targets_angle: float, rotation: float = 0.0, dtype: DType = None
) -> Dataset:
    r"""Two unit inputs in the plane at one angle, their unit targets at another.

    $x_1 = (\cos\alpha, \sin\alpha)$, $x_2 = (\cos(\alpha+\phi), \sin(\alpha+\phi))$,
    $y_1 = (1, 0)$ and $y_2 = (\cos\psi, \sin\psi)$: up to a rotation of the targets the
    data of Timor, Vardi & Shamir, section 3, who take $\pi/2 < \phi < \pi$ and
    $0 < \psi < \pi$.

    Args:
        angle: $\phi$ in (0, π], in radians.
        targets_angle: $\psi$ in [0, π], in radians.
        rotation: $\alpha$ of the inputs, in radians.
        dtype: of inputs and targets, a floating one; JAX's default float if None.
    """
    if not 0 < angle <= math.pi:
        raise ValueError(f"angle={angle} must lie in (0, pi]: give it in radians.")
    if not 0 <= targets_angle <= math.pi:
        raise ValueError(
            f"targets_angle={targets_angle} must lie in [0, pi]: give it in radians."
        )
    if not math.isfinite(rotation):
        raise ValueError(f"rotation={rotation} must be finite: give it in radians.")
    x, y = (
        np.array([[math.cos(turn), math.sin(turn)] for turn in turns])
        for turns in ((rotation, rotation + angle), (0.0, targets_angle))
    )
    return _from_numpy(x, y, dtype)


def _from_numpy(x: np.ndarray, y: np.ndarray, dtype: DType) -> Dataset:
    dtype = float_dtype(dtype)
    return Dataset(jnp.asarray(x, dtype), jnp.asarray(y, dtype))


def _normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DType) -> Array:
    return jr.normal(key, shape, jnp.float32).astype(float_dtype(dtype))


def _orthonormal(
    key: PRNGKeyArray, n: int, dim: int, dtype: DType
) -> Float[Array, "n dim"]:
    """n orthonormal rows, uniform over all such."""
    dtype = float_dtype(dtype)
    # LAPACK has no half precision.
    z = _normal(key, (dim, n), np.promote_types(dtype, np.float32))
    q, r = jnp.linalg.qr(z)
    # Householder's signs are not uniform; those of Gram-Schmidt, with r_ii > 0, are.
    return (q * jnp.sign(jnp.diagonal(r))[None, :]).T.astype(dtype)


def _lengths(scales: ArrayLike | Sequence, n: int) -> Array:
    lengths = as_array("scales", scales)
    if lengths.shape != (n,):
        raise ValueError(
            f"scales has shape {lengths.shape}, must be ({n},): one length a sample."
        )
    if is_concrete(lengths):
        values = np.asarray(lengths)
        if not (np.isfinite(values) & (values > 0)).all():
            raise ValueError(f"scales={scales} must all be positive and finite.")
    return lengths
