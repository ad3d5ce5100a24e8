"""Convolutions from PyTorch, against NumPy."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from net_cases import rows

import gfdyn as gf
from gfdyn.nets import LayeredNet


def slow_conv(images, weight, bias, strides, padding):
    """As PyTorch defines it, entry by entry, zeros at both ends of two dimensions."""
    images = np.pad(images, [(0, 0), (0, 0), *[(n, n) for n in padding]])
    sizes = images.shape[2:]
    grid = [
        (n - w) // s + 1 for n, w, s in zip(sizes, weight.shape[2:], strides, strict=True)
    ]
    out = np.zeros((len(images), len(weight), *grid), images.dtype)
    for i, j in itertools.product(*map(range, grid)):
        a, b = i * strides[0], j * strides[1]
        patch = images[:, :, a : a + weight.shape[2], b : b + weight.shape[3]]
        out[:, :, i, j] = np.einsum("ncij,ocij->no", patch, weight) + bias[None]
    return out


def convolutional(dtype="float64"):
    """As `model.state_dict()` of torch names and shapes them, in NumPy."""
    rng = np.random.default_rng(0)
    shapes = {
        "features.0.weight": (4, 3, 3, 2),
        "features.0.bias": (4,),
        "features.2.weight": (5, 4, 2, 3),
        "classifier.weight": (6, 5 * 5 * 2),
        "classifier.bias": (6,),
        "last.weight": (2, 6),
    }
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


TOLD = {
    "activation": ["relu", "leaky_relu(0.2)", "identity"],
    "in_shape": (3, 8, 5),
    "strides": [2, 1],
    "padding": [(1, 0), 1],
}


@pytest.mark.parametrize(("dtype", "precision"), [("float64", 1e-12), ("float32", 1e-4)])
def test_convolutions_of_torch(dtype, precision):
    state = convolutional(dtype)
    net = gf.nets.from_torch(state, **TOLD)
    images = np.random.default_rng(1).normal(size=(4, 3, 8, 5)).astype(dtype)
    w = list(state.values())
    a = np.maximum(slow_conv(images, w[0], w[1], (2, 2), (1, 0)), 0)
    z = slow_conv(a, w[2], np.zeros(5, dtype), (1, 1), (1, 1))
    a = np.where(z > 0, z, np.float32(0.2) * z if dtype == "float32" else 0.2 * z)
    expected = (rows(a) @ w[3].T + w[4]) @ w[5].T
    got = net(jnp.asarray(rows(images)))
    assert type(net) is LayeredNet and got.dtype == dtype
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got / scale, expected / scale, rtol=0, atol=precision)
    assert [sigma.slope for sigma in net.activations] == [0.0, 0.2, 1.0]


def test_same_padding_of_torch():
    """Of an even window it has a zero more behind than before."""
    state = {"0.weight": np.array([[[1.0, 2.0]]]), "1.weight": np.eye(4)}
    x = jnp.array([[1.0, 2.0, 3.0, 4.0]])
    same = gf.nets.from_torch(state, in_shape=(1, 4), padding="same")
    np.testing.assert_allclose(same(x), [[5.0, 8.0, 11.0, 4.0]])
    valid = gf.nets.from_torch(
        state | {"1.weight": np.eye(3)}, in_shape=(1, 4), padding=["valid"]
    )
    np.testing.assert_allclose(valid(x), [[5.0, 8.0, 11.0]])


def without(name):
    return {key: value for key, value in convolutional().items() if key != name}


@pytest.mark.parametrize(
    ("state", "told", "message"),
    [
        (
            convolutional(),
            {"in_shape": None},
            r"'features\.0\.weight'.*\(4, 3, 3, 2\).*in_shape=\(channels, height, width\)",
        ),
        (
            convolutional(),
            {"in_shape": (3, 9, 5)},
            r"'classifier\.weight'.*\(6, 50\).*do not fit.*without pooling",
        ),
        (
            convolutional(),
            {"in_shape": (1, 8, 5)},
            r"'features\.0\.weight'.*convolution do not fit.*\(1, 8, 5\).*groups",
        ),
        (convolutional(), {"in_shape": (3, 1, 1), "padding": 0}, r"window \(3, 2\).*fit"),
        (convolutional(), {"strides": [1]}, r"strides=\[1\] has 1 entries for 2 conv"),
        (convolutional(), {"strides": 0}, "strides=0 of a convolution in 2.*from 1 on"),
        (convolutional(), {"padding": -1}, "padding=-1 of a convolution.*from 0 on"),
        (
            convolutional(),
            {"padding": [(1, 0, 0), 1]},
            r"padding=\(1, 0, 0\) of a convolution in 2 dimensions",
        ),
        (convolutional(), {"padding": "SAME"}, "padding='SAME'; use 'same', 'valid'"),
        (convolutional(), {"activation": ["relu"]}, "activation lists 1.*3 hidden"),
        (without("last.weight") | {"last.bias": np.ones(2)}, {}, r"last\.bias without"),
        (
            convolutional() | {"last.bias": np.ones(3)},
            {},
            r"'last\.bias'.*3 entries, but.*2 outputs",
        ),
        (
            convolutional() | {"last.bias": np.ones(2, np.float32)},
            {},
            r"'last\.bias'\] is float32; cast all to one floating dtype",
        ),
        ({}, {}, "state_dict is empty"),
        (
            {"0.weight": np.ones((2, 1, 2))},
            {"activation": "relu", "in_shape": (1, 4), "strides": 1, "padding": 0},
            "gives no net: its output is an image",
        ),
    ],
)
def test_what_does_not_fit_of_torch(state, told, message):
    with pytest.raises(ValueError, match=message):
        gf.nets.from_torch(state, **(TOLD | told))
