"""Nets from the state of PyTorch's models, without PyTorch."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from ._activation import activation as activation_of
from ._layered import LayeredNet
from ._mlp import MLP, ActivationSpec, activations_of
from ._stack import NoStack, Padding, Stack


# One number, or one for each dimension
Each = int | Sequence[int]


def from_torch(
    state_dict: Mapping[str, ArrayLike],
    activation: ActivationSpec = "relu",
    *,
    in_shape: Sequence[int] | None = None,
    strides: int | Sequence[Each] = 1,
    padding: int | str | Sequence[Each | str] = 0,
) -> MLP | LayeredNet:
    """The net of a PyTorch stack of linear layers, or of convolutions, then linear layers.

    PyTorch is not imported; in its process take

        {name: value.cpu().numpy() for name, value in model.state_dict().items()}

    The state tells weights and their order; arguments tell strides and padding, where
    activations are, and the size of images, which are flattened before the first linear
    layer. Pooling, of which no state tells, has no place. A row of x is an input as PyTorch
    takes it, flattened: `images.reshape(len(images), -1)`.

    Args:
        state_dict: `"….weight"`, (out, in) of a linear layer, (out, in, *window) of a
            convolution, and `"….bias"`, (out,), in order.
        activation: between the layers: a name, a `PiecewiseLinear`, or one of these for
            each hidden layer.
        in_shape: of one input, (channels, *positions), if there are convolutions.
        strides: one number for all convolutions, or a list with an entry for each: a
            number, or one for each dimension.
        padding: likewise, the zeros at both ends; or `"same"`, or `"valid"`.

    Raises:
        ValueError: on an entry of another kind; if layers do not fit; without an
            `in_shape` for convolutions; on strides or padding of other convolutions.
    """
    weights, biases = _weights_and_biases(state_dict)
    hidden = activations_of(activation, len(weights) - 1)
    convolutions = [name for name, weight in weights.items() if weight.ndim > 2]
    steps = _of_each(strides, convolutions, "strides")
    zeros = _of_each(padding, convolutions, "padding")
    stack = Stack(_in_shape(weights) if in_shape is None else in_shape)
    for (name, weight), sigma in zip(
        weights.items(), (*hidden, activation_of("identity")), strict=True
    ):
        try:
            if weight.ndim == 2:
                stack.flatten()
                stack.linear(weight, biases.get(name))
            else:
                dimensions = weight.ndim - 2
                ends = _ends(zeros[name], dimensions)
                each = _of_dimensions(steps[name], dimensions, "strides")
                stack.convolution(weight, biases.get(name), each, ends)
        except NoStack as reason:
            raise ValueError(
                f"state_dict[{_entry(name)!r}] cannot be placed: {reason}; from_torch puts "
                "layers one after the other, without pooling, groups or dilation, on "
                "inputs of in_shape."
            ) from None
        stack.activation(sigma)
    stack.flatten()
    try:
        return stack.net()
    except NoStack as reason:
        raise ValueError(f"state_dict gives no net: {reason}.") from None


def _entry(layer: str, part: str = "weight") -> str:
    return f"{layer}.{part}" if layer else part


def _weights_and_biases(
    state_dict: Mapping[str, ArrayLike],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Those of each layer, by its name.

    Raises:
        ValueError: on an entry of another kind, or of another dtype.
    """
    weights: dict[str, Array] = {}
    biases: dict[str, Array] = {}
    for name, value in state_dict.items():
        layer, _, part = name.rpartition(".")
        array = jnp.asarray(value)
        if part == "weight" and 2 <= array.ndim <= 5:
            weights[layer] = array
        elif part == "bias" and array.ndim == 1:
            biases[layer] = array
        else:
            raise ValueError(
                f"state_dict[{name!r}] has shape {array.shape}, which is no weight or bias "
                "of a linear layer or a convolution; build other layers with "
                "gf.nets.sequential."
            )
        dtype = next(iter((weights | biases).values())).dtype
        if not jnp.issubdtype(array.dtype, jnp.floating) or array.dtype != dtype:
            raise ValueError(
                f"state_dict[{name!r}] is {array.dtype}; cast all to one floating dtype."
            )
    if foreign := set(biases) - set(weights):
        raise ValueError(
            f"state_dict has {_entry(min(foreign), 'bias')} without its weight."
        )
    for layer, bias in biases.items():
        if len(bias) != len(weights[layer]):
            raise ValueError(
                f"state_dict[{_entry(layer, 'bias')!r}] has {len(bias)} entries, but "
                f"its weight leads to {len(weights[layer])} outputs."
            )
    if not weights:
        raise ValueError("state_dict is empty; it must have the weights of some layer.")
    return weights, biases


def _in_shape(weights: Mapping[str, Array]) -> tuple[int, ...]:
    """The number of inputs of the first layer, if all are linear."""
    for name, weight in weights.items():
        if weight.ndim > 2:
            positions = ("depth", "height", "width")[5 - weight.ndim :]
            raise ValueError(
                f"state_dict[{_entry(name)!r}] has shape {weight.shape}, a convolution's, "
                "which does not tell the size of images; give in_shape=(channels, "
                f"{', '.join(positions)}) of one input."
            )
    return next(iter(weights.values())).shape[1:]


def _of_each(given: Any, convolutions: Sequence[str], name: str) -> dict[str, Any]:
    """What is given for each convolution."""
    if isinstance(given, int | str):
        return dict.fromkeys(convolutions, given)
    if len(given) != len(convolutions):
        raise ValueError(
            f"{name}={given!r} has {len(given)} entries for {len(convolutions)} "
            "convolutions; give one for each, or a number for all."
        )
    return dict(zip(convolutions, given, strict=True))


def _of_dimensions(given: Each, dimensions: int, name: str) -> tuple[int, ...]:
    """One number for each dimension."""
    each = (given,) * dimensions if isinstance(given, int) else tuple(given)
    least = 1 if name == "strides" else 0
    if len(each) != dimensions or min(each) < least:
        raise ValueError(
            f"{name}={given!r} of a convolution in {dimensions} dimensions must be one "
            f"number from {least} on, or {dimensions} of them."
        )
    return each


def _ends(given: Each | str, dimensions: int) -> Padding:
    """Zeros before and behind, or the name that XLA has for them."""
    if not isinstance(given, str):
        return [(n, n) for n in _of_dimensions(given, dimensions, "padding")]
    if given not in ("same", "valid"):
        raise ValueError(f"padding={given!r}; use 'same', 'valid' or numbers.")
    return given.upper()
