"""Networks from stacks of linear layers that other libraries hold: Equinox, PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from ._activation import PiecewiseLinear, activation as activation_of
from ._connections import Dense
from ._layered import Layer, LayeredNet
from ._mlp import MLP, ActivationSpec


# A matrix, a bias or None, and what follows them
LinearLayer = tuple[Array, Array | None, PiecewiseLinear]

# Where an activation is looked at: a piecewise linear one is known by its two slopes.
_POINTS = np.concatenate([-np.logspace(3, -3, 25), np.logspace(-3, 3, 25)])


def from_torch(
    state_dict: Mapping[str, ArrayLike], activation: ActivationSpec = "relu"
) -> MLP | LayeredNet:
    """The network of a PyTorch stack of linear layers, with their biases if there are any.

    PyTorch is not imported: in its process take
    `{name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}`.

    Args:
        state_dict: `"….weight"` (out, in) and `"….bias"` (out,) of each layer, in order.
        activation: between the layers: a name, a `PiecewiseLinear`, or one of these for
            each hidden layer. A state dict does not tell.

    Raises:
        ValueError: on an entry of another kind, such as a convolution, whose strides and
            padding a state dict does not tell either, or if layers do not fit.
    """
    matrices: dict[str, Array] = {}
    biases: dict[str, Array] = {}
    for name, value in state_dict.items():
        layer, _, part = name.rpartition(".")
        array = jnp.asarray(value)
        if part == "weight" and array.ndim == 2:
            matrices[layer] = array
        elif part == "bias" and array.ndim == 1:
            biases[layer] = array
        else:
            raise ValueError(
                f"state_dict[{name!r}] has shape {array.shape}, which is no weight or bias "
                "of a linear layer; build other layers with gf.nets.sequential."
            )
    if foreign := set(biases) - set(matrices):
        raise ValueError(f"state_dict has {min(foreign)}.bias without its weight.")
    # Names and activations are checked by the network that has no biases.
    plain = MLP.from_weights(tuple(matrices.values()), activation)
    kinds = (*plain.activations, activation_of("identity"))
    pairs = zip(matrices.items(), kinds, strict=True)
    return stacked([(w, biases.get(name), sigma) for (name, w), sigma in pairs])


def from_equinox(model: Any) -> MLP | LayeredNet | None:
    """The network of `eqx.nn.Linear`, `eqx.nn.MLP`, or an `eqx.nn.Sequential` of linear
    layers and piecewise linear activations; None if the model is none of these."""
    layers = _linear_layers(model)
    return None if layers is None else stacked(layers)


def stacked(layers: Sequence[LinearLayer]) -> MLP | LayeredNet:
    """One linear layer after another: an `MLP` if none has a bias."""
    if all(bias is None for _, bias, _ in layers):
        activations = [sigma for *_, sigma in layers[:-1]]
        return MLP.from_weights([w for w, *_ in layers], activations)
    return LayeredNet(
        (layers[0][0].shape[1],),
        [
            Layer((Dense(w),), bias, (i,), sigma, (w.shape[0],))
            for i, (w, bias, sigma) in enumerate(layers)
        ],
    )


def _linear_layers(model: Any) -> list[LinearLayer] | None:
    """The layers of a model that has no others, its output linear."""
    parts = _parts(model)
    if parts is None:
        return None
    layers: list[LinearLayer] = []
    for part in parts:
        if isinstance(part, eqx.nn.Linear):
            if "scalar" in (part.in_features, part.out_features):
                return None
            layers.append((part.weight, part.bias, activation_of("identity")))
            continue
        sigma = _piecewise_linear(part)
        if sigma is None or not layers:
            return None
        *head, (weight, bias, before) = layers
        # Of two activations in a row at most one may bend.
        if not before.is_linear and not sigma.is_linear:
            return None
        layers = [*head, (weight, bias, before if sigma.is_linear else sigma)]
    return layers if layers and layers[-1][-1].is_linear else None


def _parts(model: Any) -> list[Any] | None:
    """Linear layers and what stands between them."""
    if isinstance(model, eqx.nn.Linear):
        return [model]
    if isinstance(model, eqx.nn.Lambda):
        return [model.fn]
    if isinstance(model, eqx.nn.MLP):
        if model.scan:
            return None
        *hidden, last = model.layers
        between = [part for layer in hidden for part in (layer, model.activation)]
        return [*between, last, model.final_activation]
    if isinstance(model, eqx.nn.Sequential):
        nested = [_parts(layer) for layer in model.layers]
        if any(parts is None for parts in nested):
            return None
        return [part for parts in nested for part in parts or []]
    return None if isinstance(model, eqx.Module) else [model]


def _piecewise_linear(function: Callable[[Array], Array]) -> PiecewiseLinear | None:
    """The function as an activation, if it is z for z > 0 and a multiple of z elsewhere."""
    points = jnp.asarray(_POINTS)
    values = np.asarray(function(points))
    slope = round(float(values[0] / points[0]), 12 if points.dtype == jnp.float64 else 6)
    expected = np.where(_POINTS > 0, _POINTS, slope * _POINTS)
    precision = float(jnp.finfo(points.dtype).eps)
    if values.shape != expected.shape or not np.allclose(
        values, expected, rtol=8 * precision, atol=0.0
    ):
        return None
    return PiecewiseLinear(slope)
