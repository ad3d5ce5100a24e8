"""Nets and trajectories of the tests of Bantzis, Simon & Jacot."""

import jax
import numpy as np
import reference

import gfdyn as gf


escape_speed = jax.jit(gf.diagnostics.escape_speed)


def afresh(statement, *arguments):
    """Compiled anew, with what the test has put in the place of a part of it."""
    return jax.jit(lambda *given: statement(*given))(*arguments)


def regression(seed=0, n=7, d=3, k=2):
    rng = np.random.default_rng(seed)
    data = gf.Dataset(rng.normal(size=(n, d)), rng.normal(size=(n, k)))
    return gf.Problem(data, gf.losses.squared)


def rank_two():
    """The optimal direction of Example 1 at depth 3, of speed 1/2 (W_3 = −1)."""
    first = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]]) / 2
    second = np.array([[1.0, -1, 1, -1]]) / 2
    return gf.nets.MLP.from_weights([first, second, np.array([[-1.0]])])


def escaping(problem, widths, seed=0):
    """A random net with L₀ < 0, which is odd in W_L."""
    weights = reference.random_weights(widths, seed)
    x, g = np.asarray(problem.data.x), np.asarray(problem.cost_gradient_at_zero)
    outputs, _ = reference.forward(weights, [0.0] * (len(weights) - 1), x)
    weights[-1] *= -np.sign(np.sum(g * outputs))
    return gf.nets.MLP.from_weights(weights)
