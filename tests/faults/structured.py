"""Flows on data with structure: samples that coincide, are opposite or all positive, on
networks of each kind and under each loss. Shapes are few, so that programs are as well.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import gfdyn as gf
from gfdyn.nets import (
    AbstractNet,
    conv,
    dense,
    densely_connected,
    resnet_identity,
    sequential,
)


SAMPLES = 8
HALF = SAMPLES // 2


# The data


def duplicates(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
    """Samples that are there twice, with the same or with other labels."""
    x[HALF:] = x[:HALF]
    if rng.integers(2):
        y[HALF:] = y[:HALF]


def antipodal(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
    """Samples of which each has its opposite; labels go along or do not."""
    x[HALF:] = -x[:HALF]
    if rng.integers(2):
        y[HALF:] = -y[:HALF]


def constant(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
    """A feature that is 1 everywhere."""
    x[:, rng.integers(x.shape[1])] = 1.0


def positive(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
    """Inputs that are all positive."""
    np.abs(x, out=x)


def near(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
    """Samples that almost coincide, and their labels as well."""
    x[HALF:] = x[:HALF] + _gap(rng) * rng.normal(size=x[HALF:].shape)
    y[HALF:] = y[:HALF]


def near_and_other(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
    """Samples that almost coincide, with labels of their own."""
    x[HALF:] = x[:HALF] + _gap(rng) * rng.normal(size=x[HALF:].shape)


def _gap(rng: np.random.Generator) -> float:
    return 10.0 ** rng.integers(-15, -2)


# The networks: each of the number of inputs, and the key


def mlp(outputs: int, rng: np.random.Generator, activation: str = "relu") -> AbstractNet:
    """Two hidden layers of six."""
    widths = [3, 6, 6, outputs]
    weights = [
        jnp.asarray(rng.normal(size=(b, a)) / np.sqrt(a))
        for a, b in zip(widths[:-1], widths[1:], strict=True)
    ]
    return gf.nets.MLP.from_weights(weights, activation=activation)


def _layered(shape, blocks, outputs: int, rng: np.random.Generator) -> AbstractNet:
    key = jr.key(int(rng.integers(2**31)))
    return sequential(shape, [*blocks, dense(outputs, "identity")], key=key, fan_in=True)


def biases(outputs: int, rng: np.random.Generator) -> AbstractNet:
    """Of which none is 0, as at those all kinks of a unit meet."""
    net = _layered(3, [dense(6, bias=True), dense(6, bias=True)], outputs, rng)
    return jax.tree.map(lambda w: w if np.any(w) else rng.normal(size=w.shape) * 0.5, net)


def line(outputs: int, rng: np.random.Generator) -> AbstractNet:
    """A convolution over three pixels."""
    return _layered((3, 1), [conv(3, 3, padding=1)], outputs, rng)


def grid(outputs: int, rng: np.random.Generator) -> AbstractNet:
    """Convolutions over two by two pixels."""
    return _layered((2, 2, 1), [conv(3, (2, 2), padding=1)], outputs, rng)


def residual(outputs: int, rng: np.random.Generator) -> AbstractNet:
    """A block whose input is added to what comes of it."""
    return _layered(3, [dense(4), resnet_identity(4)], outputs, rng)


def dense_block(outputs: int, rng: np.random.Generator) -> AbstractNet:
    """Layers that see all that is before them."""
    return _layered(3, [densely_connected([4, 4])], outputs, rng)


def graph(outputs: int, rng: np.random.Generator) -> AbstractNet:
    """A graph of single neurons, in which edges leave layers out."""
    inner = [(u, v) for v in (3, 4, 5) for u in (0, 1, 2)]
    inner += [(u, v) for v in (6, 7) for u in (0, 3, 4, 5)]
    last = [(u, 8 + k) for k in range(outputs) for u in (1, 5, 6, 7)]
    edges = [*inner, *last]
    return gf.nets.Dag(edges, rng.normal(size=len(edges)) / 2, 3)


leaky = functools.partial(mlp, activation="leaky_relu(0.1)")


# The losses


def log_cosh(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """A loss of a user's own."""
    return jnp.sum(jnp.logaddexp(outputs - targets, targets - outputs))


OWN = gf.losses.from_function(log_cosh)


def targets_for(loss: gf.losses.AbstractLoss, y: np.ndarray) -> np.ndarray:
    """What it takes, of real numbers."""
    if loss in (gf.losses.logistic, gf.losses.exponential):
        return np.where(y > 0, 1.0, -1.0)
    if loss is gf.losses.cross_entropy:
        return np.eye(y.shape[1])[np.argmax(y, axis=1)]
    return y


Network = Callable[[int, np.random.Generator], AbstractNet]
Structure = Callable[[np.random.Generator, np.ndarray, np.ndarray], None]

# Each is one compiled program.
PROGRAMS: tuple[tuple[Network, gf.losses.AbstractLoss], ...] = (
    (mlp, gf.losses.squared),
    (line, gf.losses.squared),
    (mlp, gf.losses.logistic),
    (biases, gf.losses.squared),
    (leaky, gf.losses.squared),
    (grid, gf.losses.squared),
    (residual, gf.losses.squared),
    (dense_block, gf.losses.squared),
    (graph, gf.losses.squared),
    (mlp, gf.losses.cross_entropy),
    (mlp, gf.losses.exponential),
    (mlp, OWN),
)
STRUCTURES: dict[str, Structure] = {
    "samples that are there twice": duplicates,
    "antipodal samples": antipodal,
    "a constant feature": constant,
    "positive inputs": positive,
    "samples that almost coincide, with the same labels": near,
    "samples that almost coincide, with other labels": near_and_other,
}


def drawn(program: int, structure: Structure, seed: int) -> tuple[gf.Problem, AbstractNet]:
    """The problem and the network of a flow."""
    network, loss = PROGRAMS[program]
    rng = np.random.default_rng([program, seed, *structure.__name__.encode()])
    outputs = 2 if loss is gf.losses.cross_entropy else 1
    net = network(outputs, rng)
    inputs = 4 if network is grid else 3
    x, y = rng.normal(size=(SAMPLES, inputs)), rng.normal(size=(SAMPLES, outputs))
    structure(rng, x, y)
    return gf.Problem(gf.Dataset(x, targets_for(loss, y)), loss), net
