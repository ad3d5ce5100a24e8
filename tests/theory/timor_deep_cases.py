"""Witnesses of the tests of Theorems 4 and 5."""

from typing import Any

import numpy as np
import reference

import gfdyn as gf


def relu_net(widths, seed=0):
    return gf.nets.MLP.from_weights(reference.random_weights(widths, seed))


def sizes(net):
    return np.array([np.linalg.norm(w) for w in net.weights])


def square(net):
    return float(np.sum(sizes(net) ** 2))


def outputs(net, x):
    weights = [np.asarray(w) for w in net.weights]
    return reference.forward(weights, [0.0] * (len(weights) - 1), x)[0]


def line(targets, loss: Any = gf.losses.squared):
    """x = 1 and −1 on the line, with these targets."""
    return gf.Problem(gf.Dataset(np.array([[1.0], [-1.0]]), np.array(targets)), loss)


def absolute():
    """|x| on the line: depth 2, every ‖W_l‖_F = √2."""
    return gf.nets.MLP.from_weights([np.array([[1.0], [-1.0]]), np.array([[1.0, 1.0]])])


def same_sign():
    """x on the line, as x⁺ − x⁻: depth 2, every ‖W_l‖_F = √2."""
    return gf.nets.MLP.from_weights([np.array([[1.0], [-1.0]]), np.array([[1.0, -1.0]])])
