"""Whole networks by the names that papers give them."""

import re

from jaxtyping import ArrayLike, DTypeLike, PRNGKeyArray

from ._batch_norm import Normalisation, batch_norm
from ._blocks import dense, resnet_branch, sequential
from ._initialisation import fan_in_uniform
from ._layered import LayeredNet
from ._mlp import MLP


def architecture(
    name: str,
    inputs: int,
    outputs: int,
    *,
    key: PRNGKeyArray,
    norm: Normalisation | None = None,
    scale: ArrayLike = 1.0,
    dtype: DTypeLike | None = None,
) -> MLP | LayeredNet:
    r"""The network of this name in Galanti & Poggio, §4.1, with ReLU and without biases.

    * `"MLP-L-H"`: L hidden layers of width H; an `MLP`.
    * `"MLP-BN-L-H"`: the same with batch normalisation before each ReLU.
    * `"RES-L-H"`: W_0 x, then L blocks $z \mapsto z + \sigma(W_2\,\sigma(W_1 z))$ of width
      H, then the head; no ReLU after the first matrix, nor after a sum.
    * `"RES-BN-L-H"`: $z \mapsto z + \sigma(n_2(W_2\,\sigma(n_1(W_1 z))))$.

    Args:
        name: such as `"RES-BN-3-50"`.
        inputs, outputs: their numbers.
        key: seeds the draw; float32 and float64 nets agree up to rounding.
        norm: of the nets with BN; `batch_norm()` if None.
        scale: weights are uniform, U(±scale/√fan in): torch's at 1, He's at √6.
        dtype: of the parameters; jax's default float if None.

    Raises:
        ValueError: on another name, or a `norm` without BN in it.
    """
    match = re.fullmatch(r"(MLP|RES)(-BN)?-([1-9]\d*)-([1-9]\d*)", name)
    if match is None:
        raise ValueError(
            f"name={name!r} is unknown; use 'MLP-L-H', 'MLP-BN-L-H', 'RES-L-H' or "
            "'RES-BN-L-H' with numbers for depth L and width H, such as 'MLP-5-50'."
        )
    kind, normalised, depth, width = match[1], match[2], int(match[3]), int(match[4])
    if norm is not None and not normalised:
        raise ValueError(f"norm is given, but name={name!r} has no BN.")
    if kind == "MLP" and not normalised:
        widths = [inputs, *[width] * depth, outputs]
        return MLP(widths, key=key, init=fan_in_uniform(scale), dtype=dtype)
    if normalised and norm is None:
        norm = batch_norm()
    if kind == "MLP":
        hidden = [dense(width, norm=norm)] * depth
    else:
        hidden = [dense(width, "identity"), *[resnet_branch(width, norm=norm)] * depth]
    return sequential(
        inputs,
        [*hidden, dense(outputs, "identity")],
        key=key,
        scale=scale,
        fan_in=True,
        distribution="uniform",
        dtype=dtype,
    )
