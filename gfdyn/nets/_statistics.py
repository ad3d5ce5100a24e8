"""Batch normalisation whose statistics stay: an affine map, and a net like any other."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractNet
from ._layered import Layer, LayeredNet


def normalised_by(net: AbstractNet, x: Float[Array, "samples in"]) -> AbstractNet:
    r"""The net with the statistics of these samples for good, whatever it is evaluated on
    (Galanti & Poggio, §2.1; no running averages).

    Each normalisation becomes part of the weights before it and a bias, $W \mapsto
    \operatorname{diag}(\gamma/\sqrt{\operatorname{Var}+\epsilon})\,W$, so that on x the
    outputs are those of the net, and samples do not see each other: such a net has kinks
    and exact flows. A net without batch normalisation stays as it is.

    Args:
        x: the samples, one a row: the training set.

    Raises:
        ValueError: for a single sample.
    """
    if not isinstance(net, LayeredNet):
        return net
    values, layers = [x], []
    for layer in net.layers:
        layers.append(_fixed(layer, layer.entering(values)))
        values.append(layer.activation(layer(values)))
    return LayeredNet(net.in_shape, layers)


def _fixed(layer: Layer, entering: Array) -> Layer:
    """The layer without its normalisation, whose statistics are those of what enters."""
    if layer.norm is None:
        return layer
    mean, factor = layer.norm.statistics(entering)
    bias = jnp.zeros_like(mean) if layer.bias is None else layer.bias
    bias = factor * (bias - mean)
    if layer.norm.shift is not None:
        bias = bias + jnp.broadcast_to(layer.norm.shift, bias.shape)
    connections = tuple(connection.scaled(factor) for connection in layer.connections)
    return Layer(connections, bias, layer.sources, layer.activation, layer.shape)
