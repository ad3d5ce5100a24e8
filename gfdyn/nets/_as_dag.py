"""Networks of layers as graphs of single neurons."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ._activation import PiecewiseLinear
from ._as_layered import as_layered
from ._composed import AveragePool, Composed
from ._connections import AbstractConnection
from ._dag import Dag, Edge
from ._layered import LayeredNet
from ._mlp import MLP


def as_dag(net: Dag | MLP | LayeredNet) -> Dag:
    """The same network, vertex by vertex: inputs, the constant 1 if there are biases, then
    the units of each layer. A graph is given back as it is.

    Which weight joins which units is found by passing unit vectors through connections
    whose weights are their own numbers.

    Raises:
        TypeError: if the net is of another kind, which has no graph.
        ValueError: on batch normalisation, which joins samples and not vertices; on
            averages, whose edges have a fraction of a weight.
    """
    if isinstance(net, Dag):
        return net
    layered = as_layered(net)
    if layered.is_normalised:
        raise ValueError(
            "net has batch normalisation, which is no edge of a graph; fix its statistics "
            "first: gf.nets.normalised_by(net, x)."
        )
    if any(_averages(c) for layer in layered.layers for c in layer.connections):
        raise ValueError(
            "net has average pooling, whose edges would have fractions of a weight; a "
            "convolution with strides has whole ones."
        )
    biased = any(layer.bias is not None for layer in layered.layers)
    one = layered.in_size
    vertices = [range(layered.in_size)]
    trained: dict[Edge, int] = {}
    constants: dict[Edge, float] = {}
    activations: dict[int, PiecewiseLinear] = {}
    so_far = 0

    for layer in layered.layers:
        start = vertices[-1].stop + (biased and len(vertices) == 1)
        here = range(start, start + layer.units)
        for connection, source in zip(layer.connections, layer.sources, strict=True):
            for i, j, number in _joined(connection, len(vertices[source])):
                edge = vertices[source][i], here[j]
                if connection.trained:
                    trained[edge] = so_far + number
                else:
                    constants[edge] = 1.0
            so_far += sum(w.size for w in jax.tree.leaves(connection))
        if layer.bias is not None:
            trained |= {(one, v): so_far + i % layer.channels for i, v in enumerate(here)}
            so_far += layer.channels
        activations |= dict.fromkeys(here, layer.activation)
        vertices.append(here)
    return Dag(
        tuple(trained),
        jnp.concatenate([jnp.ravel(w) for w in jax.tree.leaves(net)]),
        layered.in_size,
        activation=activations,
        parameters=tuple(trained.values()),
        constants=constants,
        constant=one if biased else None,
    )


def _averages(connection: AbstractConnection) -> bool:
    return isinstance(connection, Composed) and any(
        isinstance(step, AveragePool) for step in connection.fixed
    )


def _joined(connection: AbstractConnection, units: int) -> Iterator[tuple[int, int, int]]:
    """(unit from, unit to, number of the weight) of each pair that it joins."""
    numbered = jax.tree.map(
        lambda w: jnp.arange(1.0, w.size + 1).reshape(w.shape), connection
    )
    with jax.ensure_compile_time_eval():
        numbers = np.rint(np.asarray(numbered(jnp.eye(units)))).astype(int)
    for i, j in zip(*np.nonzero(numbers), strict=True):
        yield int(i), int(j), int(numbers[i, j]) - 1
