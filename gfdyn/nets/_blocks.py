"""Blocks of layers, and the network that stacks them."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Literal

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, ArrayLike, DTypeLike, PRNGKeyArray

from .._keys import check_key
from .._numbers import check_counts
from ._activation import PiecewiseLinear, activation as activation_of
from ._batch_norm import Normalisation
from ._connections import AbstractConnection, Conv, Dense, Diagonal, Identity
from ._layered import Layer, LayeredNet


Spec = str | PiecewiseLinear
Padding = str | int | Sequence[tuple[int, int]]


class Growth:
    """A network while it is built: its layers so far, and which of them come next.

    What comes next sees the concatenation of the layers `here`.
    """

    here: tuple[int, ...]

    def __init__(
        self,
        in_shape: tuple[int, ...],
        key: PRNGKeyArray,
        draw: Callable[[PRNGKeyArray, tuple[int, ...], int], Array],
        dtype: DTypeLike,
    ):
        """Start from an input alone."""
        self.shapes: list[tuple[int, ...]] = [in_shape]
        self.layers: list[Layer] = []
        self.here = (0,)
        self._key, self._draw, self._dtype = key, draw, dtype
        self._drawn = 0

    def weights(self, shape: tuple[int, ...], fan_in: int) -> Array:
        """New weights, so many of them into a unit."""
        key = jr.fold_in(self._key, self._drawn)
        self._drawn += 1
        return self._draw(key, shape, fan_in)

    def dense(self, width: int, source: int) -> Dense:
        """A new matrix to so many units."""
        entering = math.prod(self.shapes[source])
        return Dense(self.weights((width, entering), self._fan_in))

    def add(
        self,
        shape: tuple[int, ...],
        parts: Sequence[tuple[int, AbstractConnection]],
        activation: Spec,
        bias: bool = False,
        norm: Normalisation | None = None,
    ) -> None:
        """Add a layer that these connections feed, and go on from it."""
        sources, connections = zip(*parts, strict=True)
        channels, sigma = shape[-1], activation_of(activation)
        zeros = jnp.zeros((channels,), self._dtype) if bias else None
        normalised = None if norm is None else norm(channels, self._dtype)
        self.layers.append(Layer(connections, zeros, sources, sigma, shape, normalised))
        self.shapes.append(shape)
        self.here = (len(self.layers),)

    def only(self, block: str) -> int:
        """The one layer to go on from.

        Raises:
            ValueError: if there are several, concatenated.
        """
        source, *others = self.here
        if others:
            raise ValueError(
                f"{block} cannot follow a concatenation; put a dense or conv layer between."
            )
        return source

    @property
    def _fan_in(self) -> int:
        return sum(math.prod(self.shapes[source]) for source in self.here)


Block = Callable[[Growth], None]
"""What `sequential` stacks: it adds its layers to those that are there."""


def dense(
    width: int,
    activation: Spec = "relu",
    bias: bool = False,
    norm: Normalisation | None = None,
) -> Block:
    """A fully connected layer.

    Args:
        width: the number of units.
        activation: σ, a name such as `"relu"`, `"identity"` or `"leaky_relu(0.1)"`, or a
            `PiecewiseLinear`.
        bias: whether each unit has one, which starts from 0.
        norm: `batch_norm()` before σ; None for none.

    Raises:
        ValueError: unless `width` is a whole number of at least 1.
    """
    check_counts(width=width)

    def grow(net: Growth) -> None:
        parts = [(source, net.dense(width, source)) for source in net.here]
        net.add((width,), parts, activation, bias, norm)

    return grow


def conv(
    channels: int,
    window: int | Sequence[int],
    strides: int | Sequence[int] = 1,
    padding: Padding = "VALID",
    activation: Spec = "relu",
    bias: bool = False,
    norm: Normalisation | None = None,
) -> Block:
    """A convolutional layer on a grid of one to three dimensions.

    Args:
        channels: how many come out.
        window: the size of the kernel, one number for all dimensions or one for each.
        strides: how far the window moves, one number for all dimensions or one for each.
        padding: `"VALID"` (none), `"SAME"` (such that ⌈n/stride⌉ positions come of n), a
            number of zeros at all ends, or for each dimension a pair, before and behind.
        activation: σ, a name such as `"relu"`, `"identity"` or `"leaky_relu(0.1)"`, or a
            `PiecewiseLinear`.
        bias: whether each channel has one, which starts from 0.
        norm: `batch_norm()` before σ, over samples and positions; None for none.

    Raises:
        ValueError: unless `channels` is a whole number of at least 1.
    """
    check_counts(channels=channels)

    def grow(net: Growth) -> None:
        *grid, _ = net.shapes[net.here[0]]
        if not 1 <= len(grid) <= 3:
            raise ValueError(
                f"conv comes from a layer of shape {net.shapes[net.here[0]]}; it needs one "
                "to three positions before the channels."
            )
        size = _each(window, len(grid), "window")
        steps = _each(strides, len(grid), "strides")
        ends = _ends(padding, tuple(grid), size, steps)

        def connection(source: int) -> Conv:
            entering = net.shapes[source][-1]
            shape = (*size, entering, channels)
            drawn = net.weights(shape, math.prod(size) * fan_in)
            return Conv(drawn, tuple(net.shapes[source][:-1]), steps, ends)

        fan_in = sum(net.shapes[source][-1] for source in net.here)
        parts = [(source, connection(source)) for source in net.here]
        net.add((*parts[0][1].out_positions, channels), parts, activation, bias, norm)

    return grow


def resnet_identity(hidden: int, activation: Spec = "relu", bias: bool = False) -> Block:
    """σ(U σ(Y x) + x) (Le & Jegelka, Def. 5).

    Args:
        hidden: the number of rows of Y.
        activation: both σ, a name or a `PiecewiseLinear`: see `gf.nets.activation`.
        bias: whether both layers have one, which starts from 0.

    Raises:
        ValueError: unless `hidden` is a whole number of at least 1.
    """

    def skip(net: Growth, start: int) -> tuple[int, AbstractConnection]:
        return math.prod(net.shapes[start]), Identity()

    return _residual("resnet_identity", hidden, skip, activation, bias)


def resnet_diagonal(hidden: int, activation: Spec = "relu", bias: bool = False) -> Block:
    """σ(U σ(Y x) + D x), D diagonal and trained (Le & Jegelka, Def. 5).

    Args:
        hidden: the number of rows of Y.
        activation: both σ, a name or a `PiecewiseLinear`: see `gf.nets.activation`.
        bias: whether both layers have one, which starts from 0.

    Raises:
        ValueError: unless `hidden` is a whole number of at least 1.
    """

    def skip(net: Growth, start: int) -> tuple[int, AbstractConnection]:
        width = math.prod(net.shapes[start])
        return width, Diagonal(net.weights((width,), 1))

    return _residual("resnet_diagonal", hidden, skip, activation, bias)


def resnet_free(
    hidden: int, width: int, activation: Spec = "relu", bias: bool = False
) -> Block:
    """σ(U σ(Y x) + Z x) (Le & Jegelka, Def. 5).

    Args:
        hidden: the number of rows of Y.
        width: the number of rows of U and Z.
        activation: both σ, a name or a `PiecewiseLinear`: see `gf.nets.activation`.
        bias: whether both layers have one, which starts from 0.

    Raises:
        ValueError: unless `hidden` and `width` are whole numbers of at least 1.
    """
    check_counts(width=width)

    def skip(net: Growth, start: int) -> tuple[int, AbstractConnection]:
        return width, net.dense(width, start)

    return _residual("resnet_free", hidden, skip, activation, bias)


def resnet_branch(
    hidden: int, activation: Spec = "relu", norm: Normalisation | None = None
) -> Block:
    """x + σ(n(U σ(n(Y x)))), no σ after the sum (Galanti & Poggio, §4.1).

    Args:
        hidden: the number of rows of Y.
        activation: both σ, a name or a `PiecewiseLinear`: see `gf.nets.activation`.
        norm: both n, `batch_norm()`; None for none.

    Raises:
        ValueError: unless `hidden` is a whole number of at least 1.
    """
    check_counts(hidden=hidden)

    def grow(net: Growth) -> None:
        start = net.only("resnet_branch")
        shape = net.shapes[start]
        dense(hidden, activation, norm=norm)(net)
        dense(math.prod(shape), activation, norm=norm)(net)
        parts = [(start, Identity()), (net.only("resnet_branch"), Identity())]
        net.add(shape, parts, "identity")

    return grow


def _residual(
    name: str,
    hidden: int,
    skip: Callable[[Growth, int], tuple[int, AbstractConnection]],
    activation: Spec,
    bias: bool,
) -> Block:
    check_counts(hidden=hidden)

    def grow(net: Growth) -> None:
        start = net.only(name)
        dense(hidden, activation, bias)(net)
        inner = net.only(name)
        width, around = skip(net, start)
        parts = [(inner, net.dense(width, inner)), (start, around)]
        net.add((width,), parts, activation, bias)

    return grow


def densely_connected(
    widths: Sequence[int], activation: Spec = "relu", bias: bool = False
) -> Block:
    """Fully connected layers, each of which sees the concatenation of the block's input and
    of all before it, as what follows does (DenseNet).

    Args:
        widths: the number of units of each layer.
        activation: σ of every layer, a name or a `PiecewiseLinear`: see
            `gf.nets.activation`.
        bias: whether every layer has one, which starts from 0.

    Raises:
        ValueError: unless `widths` are whole numbers of at least 1.
    """
    check_counts(**{f"widths[{i}]": width for i, width in enumerate(widths)})

    def grow(net: Growth) -> None:
        seen = net.here
        for width in widths:
            net.here = seen
            dense(width, activation, bias)(net)
            seen = (*seen, *net.here)
        net.here = seen

    return grow


def sequential(
    in_shape: int | Sequence[int],
    blocks: Sequence[Block],
    *,
    key: PRNGKeyArray,
    scale: ArrayLike = 1.0,
    fan_in: bool = False,
    distribution: Literal["normal", "uniform"] = "normal",
    dtype: DTypeLike | None = None,
) -> LayeredNet:
    """The network that passes its input through the blocks, one after the other.

    Args:
        in_shape: the number of inputs, or positions and channels, `(32, 32, 3)`; a row of
            x is that, flattened.
        blocks: such as `dense(8)`; the last layer is the output and is linear.
        key: seeds the draw; float32 and float64 nets agree up to rounding.
        scale: standard deviation of every weight, or bound of a uniform one; biases start
            from 0.
        fan_in: whether to divide it by the root of the number of weights into a unit:
            uniform ones are torch's at the scale 1, and He's at √6.
        distribution: `"normal"` or `"uniform"`.
        dtype: of the parameters; jax's default float if None.

    Raises:
        TypeError: on a key of another kind.
        ValueError: if there is no block, or one does not fit what is before it; unless the
            output is linear, `activation="identity"`; on another distribution.
    """
    if not blocks:
        raise ValueError("blocks is empty; give at least dense(OUTPUTS, 'identity').")
    shape = (in_shape,) if isinstance(in_shape, int) else tuple(in_shape)
    dtype = jnp.zeros((), dtype).dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype={dtype} must be a floating dtype such as float32.")
    if distribution not in ("normal", "uniform"):
        raise ValueError(f"distribution={distribution!r}; use 'normal' or 'uniform'.")
    check_key(key)
    sample = jr.normal if distribution == "normal" else partial(jr.uniform, minval=-1.0)

    def draw(key: PRNGKeyArray, shape: tuple[int, ...], entering: int) -> Array:
        drawn = jnp.asarray(scale, dtype) * sample(key, shape, jnp.float32).astype(dtype)
        return drawn / math.sqrt(entering) if fan_in else drawn

    net = Growth(shape, key, draw, dtype)
    for block in blocks:
        block(net)
    net.only("The output")
    last = net.layers[-1].activation
    if not last.is_linear:
        raise ValueError(
            f"the last layer has activation={last.name!r}, but outputs are linear; end "
            "with dense(OUTPUTS, 'identity')."
        )
    return LayeredNet(shape, net.layers)


def _each(size: int | Sequence[int], dimensions: int, name: str) -> tuple[int, ...]:
    sizes = tuple(size) if isinstance(size, Sequence) else (size,) * dimensions
    whole = all(isinstance(each, Integral) and each >= 1 for each in sizes)
    if len(sizes) != dimensions or not whole:
        raise ValueError(
            f"{name}={size} must be one positive whole number, or {dimensions} of them."
        )
    return sizes


def _ends(
    padding: Padding, grid: tuple[int, ...], size: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """The numbers of zeros before and behind, of each dimension.

    Raises:
        ValueError: on an unknown name.
    """
    if isinstance(padding, int):
        return ((padding, padding),) * len(grid)
    if not isinstance(padding, str):
        return tuple((low, high) for low, high in padding)
    if padding == "VALID":
        return ((0, 0),) * len(grid)
    if padding != "SAME":
        raise ValueError(
            f"padding={padding!r}; use 'VALID', 'SAME', a number or pairs of them."
        )
    missing = [
        max((-(-n // s) - 1) * s + w - n, 0)
        for n, w, s in zip(grid, size, steps, strict=True)
    ]
    return tuple((total // 2, total - total // 2) for total in missing)
