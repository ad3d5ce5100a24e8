r"""Data sets: the samples that a problem is posed on, and where to get some.

A sample is a row, as in $X \in \mathbb R^{N \times d}$ (the papers often use columns).
Synthetic data are drawn in float32 and cast, so that one seed gives the same data in
every precision up to rounding; `dtype=None` stands for JAX's default float throughout.
"""

import math
import os
from collections.abc import Sequence
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Float, Integer, PRNGKeyArray

from ._mnist import read_mnist
from ._tracing import is_concrete


DType = DTypeLike | None


class Dataset(eqx.Module):
    """N samples: inputs, one row each, and what is wanted there.

    Targets are a row of numbers for each sample. Integers of shape (N,) are left as
    they are: class labels or signs, which the loss reads.
    """

    x: Float[Array, "samples dim"]
    y: Float[Array, "samples outputs"] | Integer[Array, " samples"]

    def __init__(self, x: ArrayLike | Sequence, y: ArrayLike | Sequence):
        """The data set (x, y), in the floating dtype of whichever array has one.

        Lists and integers take the dtype of the other array, or JAX's default float.

        Args:
            x: inputs, (N, d).
            y: targets, (N, k), or (N,) for one output, or integer labels, (N,).

        Raises:
            ValueError: if the shapes do not fit together, if x and y have different
                floating dtypes, or if an entry is not finite (which traced arrays do
                not show).
        """
        inputs, targets = _as_array("x", x), _as_array("y", y)
        _check_inputs(inputs)
        _check_targets(targets, len(inputs))
        dtype = _common_dtype(x, y)
        if targets.ndim == 1 and not _is_integer(targets):
            targets = targets[:, None]
        self.x = inputs.astype(dtype)
        self.y = targets if targets.ndim == 1 else targets.astype(dtype)
        _check_finite("x", self.x, "feature")
        if self.y.ndim == 2:
            _check_finite("y", self.y, "output")

    @property
    def num_samples(self) -> int:
        """The number of samples N."""
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        """The number of input features d."""
        return self.x.shape[1]

    def subset(self, index: slice | ArrayLike | Sequence) -> "Dataset":
        """The samples at `index`: a slice, integers, or a mask of length N.

        Raises:
            ValueError: if that is no list of samples. Traced indices are not checked:
                those out of range are clamped.
        """
        if not is_concrete(index):
            return Dataset(self.x[index], self.y[index])
        try:
            rows = np.arange(self.num_samples)[
                index if isinstance(index, slice) else np.asarray(index)
            ]
        except IndexError as error:
            raise ValueError(
                f"index={index} does not select from {self.num_samples} samples "
                f"({error}): pass a slice, integers in range or a mask."
            ) from error
        if rows.ndim != 1 or rows.size == 0:
            raise ValueError(
                f"index={index} selects an array of shape {rows.shape}: pass a list of "
                "at least one sample."
            )
        return Dataset(self.x[rows], self.y[rows])

    def astype(self, dtype: DTypeLike) -> "Dataset":
        """The same data in another floating dtype; integer labels stay as they are."""
        dtype = _float_dtype(dtype)
        y = self.y if self.y.ndim == 1 else self.y.astype(dtype)
        return Dataset(self.x.astype(dtype), y)


def one_hot(
    labels: ArrayLike | Sequence,
    num_classes: int | None = None,
    dtype: DType = None,
) -> Float[Array, "samples classes"]:
    r"""The indicator rows $e_{c_1}, \dots, e_{c_N}$ of class labels $c_i$.

    Args:
        labels: integers in 0 … `num_classes` - 1, (N,).
        num_classes: None for one more than the largest label.

    Raises:
        ValueError: if a label is no integer or out of range. Traced labels do not show
            their range, and need `num_classes`.
    """
    classes = _as_array("labels", labels)
    if classes.ndim != 1 or classes.size == 0 or not _is_integer(classes):
        raise ValueError(
            f"labels must be integers of shape (samples,), received {classes.dtype} of "
            f"shape {classes.shape}: cast or ravel them."
        )
    values = None if not is_concrete(classes) else np.asarray(classes)
    if num_classes is None:
        if values is None:
            raise ValueError(
                "num_classes=None cannot be read off traced labels: pass the number."
            )
        num_classes = max(int(values.max()) + 1, 1)
    _check_counts(num_classes=num_classes)
    if values is not None:
        _check_labels(values, num_classes)
    return jax.nn.one_hot(classes, num_classes, dtype=_float_dtype(dtype))


def standardise(x: ArrayLike | Sequence) -> Float[Array, "samples dim"]:
    r"""The data $(x - \mu) / \sigma$, with one mean and one deviation over all entries.

    Bantzis, Simon & Jacot, appendix B, do so to the pixels of MNIST.

    Raises:
        ValueError: if all entries are equal, or one is not finite.
    """
    inputs = _as_array("x", x)
    _check_inputs(inputs)
    inputs = inputs.astype(_common_dtype(x))
    _check_finite("x", inputs, "feature")
    if is_concrete(inputs) and np.ptp(np.asarray(inputs)) == 0:
        raise ValueError(
            f"x is {np.asarray(inputs)[0, 0]} throughout, with no deviation to divide "
            "by: leave it as it is."
        )
    return (inputs - inputs.mean()) / inputs.std()


def circle(n: int = 8, dtype: DType = None) -> Dataset:
    r"""Points round the unit circle with alternating targets.

    $$x_j = (\sin(2\pi j/n), \cos(2\pi j/n)), \quad y_j = -(-1)^j,
    \quad j = 1, \dots, n.$$

    The cost $\tfrac12 \sum_j (f_j - y_j)^2$ then has at f = 0 the gradient
    $G_j = (-1)^j$ of Bantzis, Simon & Jacot, example 1 (who print the targets
    $(-1)^j$). For n > 2, $\sum_j G_j x_j = 0$: a linear network sees nothing.

    >>> circle(4).y.ravel().tolist()
    [1.0, -1.0, 1.0, -1.0]

    Raises:
        ValueError: unless n is even and at least 2.
    """
    _check_counts(n=n, least=2)
    if n % 2:
        raise ValueError(f"n={n} must be even for targets to alternate: add a point.")
    j = np.arange(1, n + 1)
    angle = 2 * np.pi * j / n
    x = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    return _from_numpy(x, 1.0 - 2.0 * (j % 2 == 0), dtype)


def gaussian(
    n: int, dim: int, outputs: int = 1, *, key: PRNGKeyArray, dtype: DType = None
) -> Dataset:
    """Inputs and targets with independent N(0, 1) entries."""
    _check_counts(n=n, dim=dim, outputs=outputs)
    x_key, y_key = _keys(key, 2)
    return Dataset(_normal(x_key, (n, dim), dtype), _normal(y_key, (n, outputs), dtype))


def teacher(
    n: int, widths: Sequence[int], *, key: PRNGKeyArray, dtype: DType = None
) -> Dataset:
    r"""N(0, 1) inputs; targets are the outputs of a random ReLU network without biases.

    $$y = W_L\, \sigma(W_{L-1} \cdots \sigma(W_1 x)), \qquad
    (W_l)_{ij} \sim N(0, 1/n_{l-1}).$$

    Args:
        widths: $(n_0, \dots, n_L)$, from the inputs to the outputs.
    """
    if len(widths) < 2:
        raise ValueError(f"widths={widths} must name at least inputs and outputs.")
    _check_counts(n=n, **{f"widths[{i}]": width for i, width in enumerate(widths)})
    x_key, *keys = _keys(key, len(widths))
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
        scales: the lengths $\lambda_i$, (N,); None for unit vectors.

    Raises:
        ValueError: if n exceeds `dim`, or a length is not positive and finite.
    """
    _check_counts(n=n, dim=dim, outputs=outputs)
    if n > dim:
        raise ValueError(
            f"n={n} samples cannot be orthogonal in dim={dim} dimensions: raise dim."
        )
    x_key, y_key = _keys(key, 2)
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
    """
    _check_counts(n=n, dim=dim, outputs=outputs)
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise={noise} must be finite and at least 0.")
    u_key, v_key, y_key, noise_key = _keys(key, 4)
    u = _orthonormal(u_key, 1, dim, dtype)
    v = 0.5 + jnp.abs(_normal(v_key, (n, 1), dtype))
    x = v * u + noise * _normal(noise_key, (n, dim), dtype)
    return Dataset(x, _normal(y_key, (n, outputs), dtype))


def parallel(
    n: int, dim: int, outputs: int = 1, *, key: PRNGKeyArray, dtype: DType = None
) -> Dataset:
    """Inputs on one ray, positive multiples of a unit vector; N(0, 1) targets."""
    return rank_one(n, dim, outputs, key=key, dtype=dtype)


def antipodal(
    n: int, dim: int, outputs: int = 1, *, key: PRNGKeyArray, dtype: DType = None
) -> Dataset:
    """2n inputs in pairs, row n + i minus row i; N(0, 1) targets, all independent.

    The two of a pair share the kink of every first-layer neuron.
    """
    _check_counts(n=n, dim=dim, outputs=outputs)
    x_key, y_key = _keys(key, 2)
    x = _normal(x_key, (n, dim), dtype)
    return Dataset(jnp.concatenate([x, -x]), _normal(y_key, (2 * n, outputs), dtype))


def xor(dim: int = 2, dtype: DType = None) -> Dataset:
    r"""The unit points at 45°, 135°, 225°, 315° with labels +1, -1, +1, -1.

    $x = (\pm 1, \pm 1)/\sqrt2$ and $y = \operatorname{sign}(x_1 x_2)$, with further
    coordinates zero.
    """
    _check_counts(dim=dim, least=2)
    signs = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    x = np.pad(signs * math.sqrt(0.5), [(0, 0), (0, dim - 2)])
    return _from_numpy(x, signs.prod(axis=1), dtype)


def two_points(angle: float, targets_angle: float, dtype: DType = None) -> Dataset:
    r"""Two unit inputs in the plane at one angle, their unit targets at another.

    $x_1 = y_1 = (1, 0)$, $x_2 = (\cos\phi, \sin\phi)$ and
    $y_2 = (\cos\psi, \sin\psi)$: up to rotations the data of Timor, Vardi & Shamir,
    section 3, who take $\pi/2 < \phi < \pi$ and $0 < \psi < \pi$.

    Args:
        angle: $\phi$ in (0, π], in radians.
        targets_angle: $\psi$ in [0, π], in radians.
    """
    if not 0 < angle <= math.pi:
        raise ValueError(f"angle={angle} must lie in (0, pi]: give it in radians.")
    if not 0 <= targets_angle <= math.pi:
        raise ValueError(
            f"targets_angle={targets_angle} must lie in [0, pi]: give it in radians."
        )
    x, y = (
        np.array([[1.0, 0.0], [math.cos(phi), math.sin(phi)]])
        for phi in (angle, targets_angle)
    )
    return _from_numpy(x, y, dtype)


def digits(
    n: int | None = None,
    *,
    key: PRNGKeyArray | None = None,
    standardised: bool = True,
    dtype: DType = None,
) -> Dataset:
    """Scikit-learn's handwritten digits, 8×8 pixels from 0 to 1, one-hot targets.

    Args:
        n: how many; None for all.
        key: draws which ones, and their order; None for the first n.
        standardised: whether to `standardise` the pixels, over all 1797 images.

    Raises:
        ValueError: if n is out of range.
    """
    # Scikit-learn takes a second to import, which only this data set should cost.
    from sklearn.datasets import load_digits

    pixels, classes = map(np.asarray, load_digits(return_X_y=True))
    return _images(pixels / 16, classes, n, key, standardised, dtype)


def mnist(
    path: str | os.PathLike,
    n: int | None = None,
    *,
    labels: str | os.PathLike | None = None,
    key: PRNGKeyArray | None = None,
    standardised: bool = True,
    dtype: DType = None,
) -> Dataset:
    """MNIST from files on disk, pixels from 0 to 1, one-hot targets; no downloads.

    Args:
        path: an `.npz` archive with x_train and y_train, or x and y; or a directory
            with train-images-idx3-ubyte and train-labels-idx1-ubyte; or an IDX file of
            images. IDX files may be compressed by gzip.
        n: how many; None for all.
        labels: the IDX file of the labels; None for the one beside the images, called
            labels-idx1 where they are called images-idx3.
        key: draws which ones, and their order; None for the first n.
        standardised: whether to `standardise` the pixels, over the whole file.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged or is not MNIST, or if n is out of range.
    """
    images, classes = read_mnist(path, labels)
    return _images(images / 255, classes, n, key, standardised, dtype)


def _images(
    pixels: np.ndarray,
    classes: np.ndarray,
    n: int | None,
    key: PRNGKeyArray | None,
    standardised: bool,
    dtype: DType,
) -> Dataset:
    """n of the images, each a row of pixels, of the ten digits."""
    total = len(pixels)
    n = total if n is None else n
    _check_counts(n=n, most=total)
    chosen = np.arange(total)
    if key is not None:
        chosen = np.asarray(jr.permutation(_keys(key, 1)[0], total))
    chosen = chosen[:n]
    x = standardise(pixels) if standardised else jnp.asarray(pixels)
    return Dataset(
        x[chosen].astype(_float_dtype(dtype)), one_hot(classes, 10, dtype)[chosen]
    )


def _from_numpy(x: np.ndarray, y: np.ndarray, dtype: DType) -> Dataset:
    dtype = _float_dtype(dtype)
    return Dataset(jnp.asarray(x, dtype), jnp.asarray(y, dtype))


def _keys(key: PRNGKeyArray, num: int) -> Sequence[PRNGKeyArray]:
    try:
        return tuple(jr.split(key, num))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"key={key!r} is not one random key ({error}): pass jax.random.key(seed)."
        ) from error


def _normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DType) -> Array:
    return jr.normal(key, shape, jnp.float32).astype(_float_dtype(dtype))


def _orthonormal(
    key: PRNGKeyArray, n: int, dim: int, dtype: DType
) -> Float[Array, "n dim"]:
    """n orthonormal rows, uniform over all such."""
    dtype = _float_dtype(dtype)
    # LAPACK has no half precision.
    z = _normal(key, (dim, n), np.promote_types(dtype, np.float32))
    q, r = jnp.linalg.qr(z)
    # Householder's signs are not uniform; those of Gram-Schmidt, with r_ii > 0, are.
    return (q * jnp.sign(jnp.diagonal(r))[None, :]).T.astype(dtype)


def _lengths(scales: ArrayLike | Sequence, n: int) -> Array:
    lengths = _as_array("scales", scales)
    if lengths.shape != (n,):
        raise ValueError(
            f"scales has shape {lengths.shape}, must be ({n},): one length a sample."
        )
    if is_concrete(lengths):
        values = np.asarray(lengths)
        if not (np.isfinite(values) & (values > 0)).all():
            raise ValueError(f"scales={scales} must all be positive and finite.")
    return lengths


def _is_integer(array: Array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.integer)


def _as_array(name: str, value: ArrayLike | Sequence) -> Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{name} is not array-like ({error}): pass an array or lists of numbers."
        ) from error
    if not (_is_integer(array) or jnp.issubdtype(array.dtype, jnp.floating)):
        raise ValueError(
            f"{name} has dtype {array.dtype}, must be real numbers: cast it to floats."
        )
    return array


def _float_dtype(dtype: DType) -> np.dtype:
    """The floating dtype asked for, JAX's default if None."""
    if dtype is None:
        return jnp.result_type(float)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype={dtype} must be a floating one, such as 'float32'.")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"dtype={dtype} needs 64-bit JAX: set jax_enable_x64, or ask for float32."
        )
    return jnp.dtype(dtype)


def _common_dtype(*values: ArrayLike | Sequence) -> np.dtype:
    """The one floating dtype among x and y; lists and integers state none."""
    stated = [
        jax.dtypes.canonicalize_dtype(value.dtype)
        for value in values
        if isinstance(value, (jax.Array, np.ndarray))
        and jnp.issubdtype(value.dtype, jnp.floating)
    ]
    if not stated:
        return jnp.result_type(float)
    if stated[0] != stated[-1]:
        raise ValueError(
            f"x is {stated[0]} but y is {stated[-1]}: cast one to the other's dtype."
        )
    return stated[0]


def _check_counts(least: int = 1, most: int | None = None, **counts: int) -> None:
    bounds = f"of at least {least}" if most is None else f"in {least}..{most}"
    for name, count in counts.items():
        whole = isinstance(count, (int, np.integer))
        if not (whole and least <= count and (most is None or count <= most)):
            raise ValueError(f"{name}={count!r} must be an integer {bounds}.")


def _check_inputs(x: Array) -> None:
    if x.ndim != 2 or x.size == 0:
        raise ValueError(
            f"x has shape {x.shape}, must be (samples, features) with at least one of "
            "each: one sample a row."
        )


def _check_targets(y: Array, num_samples: int) -> None:
    if y.ndim not in (1, 2):
        raise ValueError(
            f"y has shape {y.shape}, must be (samples, outputs), or (samples,) for one "
            "output or integer labels."
        )
    if len(y) != num_samples:
        raise ValueError(
            f"x has {num_samples} samples but y has {len(y)}: each sample is a row."
        )
    if y.size == 0:
        raise ValueError(f"y has shape {y.shape}, must have at least one output.")


def _check_finite(name: str, array: Array, column: str) -> None:
    if not is_concrete(array):
        return
    values = np.asarray(array)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        i, j = bad[0]
        entries = "entry" if len(bad) == 1 else "entries"
        raise ValueError(
            f"{name} has {len(bad)} non-finite {entries}, the first at sample {i}, "
            f"{column} {j} ({values[i, j]}): drop or mend such samples."
        )


def _check_labels(labels: np.ndarray, num_classes: int) -> None:
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if bad.size:
        raise ValueError(
            f"labels must lie in 0..{num_classes - 1}, and {bad.size} do not, the "
            f"first at sample {bad[0]} ({labels[bad[0]]}): check num_classes."
        )
