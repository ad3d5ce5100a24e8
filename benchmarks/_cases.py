"""Random flows of every kind that the campaign sets against gradient descent."""

from collections.abc import Callable

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import gfdyn as gf
from gfdyn.nets import LayeredNet, conv, dense, resnet_identity, sequential


Widths = list[int]
Drawn = tuple[gf.GradientFlow | gf.EscapeFlow, gf.nets.MLP | LayeredNet]


def drawn(case: str, seed: int) -> Drawn:
    """The flow and the network of a case, `widths:samples` or `kind/widths:samples`, and a
    seed: data and targets N(0, 1), weights N(0, 1/fan-in)."""
    kind, _, shape = case.rpartition("/")
    written, samples = shape.split(":")
    widths, rng = [int(n) for n in written.split("-")], np.random.default_rng(seed)
    x = jnp.asarray(rng.normal(size=(int(samples), widths[0])))
    y = jnp.asarray(rng.normal(size=(int(samples), widths[-1])))
    return KINDS[kind](widths, x, y, rng)


def is_plain(case: str) -> bool:
    """Whether it is the squared loss of a ReLU network without biases or decay."""
    return case.rpartition("/")[0] in ("", "escape")


def _flow(x: jnp.ndarray, y: jnp.ndarray) -> gf.GradientFlow:
    return gf.GradientFlow(gf.Problem(gf.Dataset(x, y), gf.losses.squared))


def _mlp(widths: Widths, rng: np.random.Generator, activation: str = "relu") -> gf.nets.MLP:
    weights = [
        jnp.asarray(rng.normal(size=(b, a)) / np.sqrt(a))
        for a, b in zip(widths[:-1], widths[1:], strict=True)
    ]
    return gf.nets.MLP.from_weights(weights, activation=activation)


def _plain(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    return _flow(x, y), _mlp(widths, rng)


def _biases(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    inner = [dense(width, bias=True) for width in widths[1:-1]]
    return _flow(x, y), _layered(widths[0], [*inner, _last(widths)], rng)


def _convolution(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    """A first layer of `widths[1]` channels over a line of `widths[0]` pixels."""
    inner = [dense(width) for width in widths[2:-1]]
    blocks = [conv(widths[1], 3, padding=1), *inner, _last(widths)]
    return _flow(x, y), _layered((widths[0], 1), blocks, rng)


def _residual(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    """A first layer, then residual blocks, the hidden layer of each of the width given."""
    inner = [resnet_identity(width) for width in widths[2:-1]]
    blocks = [dense(widths[1]), *inner, _last(widths)]
    return _flow(x, y), _layered(widths[0], blocks, rng)


def _last(widths: Widths):
    return dense(widths[-1], "identity")


def _layered(shape, blocks, rng: np.random.Generator) -> LayeredNet:
    key = jr.key(int(rng.integers(2**31)))
    return sequential(shape, blocks, key=key, fan_in=True)


def _leaky(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    return _flow(x, y), _mlp(widths, rng, "leaky_relu(0.1)")


def _logistic(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    problem = gf.Problem(gf.Dataset(x, jnp.sign(y)), gf.losses.logistic)
    return gf.GradientFlow(problem), _mlp(widths, rng)


def _cross_entropy(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    classes = jnp.eye(widths[-1])[jnp.argmax(y, axis=1)]
    problem = gf.Problem(gf.Dataset(x, classes), gf.losses.cross_entropy)
    return gf.GradientFlow(problem), _mlp(widths, rng)


def _decay(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    return gf.GradientFlow(_flow(x, y).problem, 1e-2), _mlp(widths, rng)


def _escape(widths: Widths, x, y, rng: np.random.Generator) -> Drawn:
    """By its direction and its norm: from norm 1e-6 with one hidden layer; from 1 with
    more, as descent does not get through the wait of smaller ones."""
    size = 1e-6 if len(widths) == 3 else 1.0
    net = gf.nets.scaled_to_norm(_mlp(widths, rng), size)
    return gf.EscapeFlow(_flow(x, y).problem), net


KINDS: dict[str, Callable[..., Drawn]] = {
    "": _plain,
    "biases": _biases,
    "leaky": _leaky,
    "convolution": _convolution,
    "residual": _residual,
    "logistic": _logistic,
    "cross_entropy": _cross_entropy,
    "decay": _decay,
    "escape": _escape,
}


def keeps_physical_time(case: str) -> bool:
    """Whether its clock is physical time: that of an escape is with one hidden layer."""
    kind, _, shape = case.rpartition("/")
    return kind != "escape" or shape.count("-") == 2
