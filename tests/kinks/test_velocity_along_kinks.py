"""The velocity along kinks that are all but dependent, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf
from gfdyn.kinks import GateState, evaluate_along, evaluate_field, slots_of


SLIDING, OPEN = 48, 16
EPS = np.finfo(float).eps


def samples(condition):
    """Samples of length 1; the Gram matrix of the first has about this condition number."""
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.normal(size=(SLIDING, SLIDING)))[0]
    right = np.linalg.qr(rng.normal(size=(SLIDING + OPEN, SLIDING)))[0].T
    x = (left * np.geomspace(1, condition**-0.5, SLIDING)) @ right
    x = np.concatenate([x, rng.normal(size=(OPEN, SLIDING + OPEN))])
    return x / np.linalg.norm(x, axis=1, keepdims=True), rng.normal(size=(len(x), 1))


def column(first, others):
    """What one unit has on the samples on which it slides, and on the others."""
    return (jnp.asarray(np.repeat([first, others], [SLIDING, OPEN]))[:, None],)


@pytest.mark.parametrize("condition", [1e2, 1e5, 1e8])
def test_velocity_along_dependent_kinks(condition):
    """One unit slides on samples whose normals all but depend on each other, from no guess
    and from what was found: what is left then is rounding, which needs no multipliers."""
    x, y = samples(condition)
    net = gf.nets.MLP.from_weights([jnp.zeros((1, x.shape[1])), jnp.ones((1, 1))])
    flow = gf.GradientFlow(gf.Problem(gf.Dataset(x, y), gf.losses.squared))
    held = column(True, False)
    gates = GateState(column(False, True), held, column(True, True))

    gradient = -(x[SLIDING:].T @ y[SLIDING:, 0]) / len(x)
    normals, size = x[:SLIDING], np.linalg.norm(gradient)
    damped = normals @ normals.T + EPS ** (2 / 3) * np.eye(SLIDING)
    guess = column(0.0, 0.0)
    for _ in range(2):
        here = evaluate_field(flow, net, gates, held, guess, jnp.zeros(()))
        gradient -= normals.T @ np.linalg.solve(damped, normals @ gradient)
        off = np.linalg.norm(here.velocity.position.weights[0][0] + gradient)
        assert here.converged and off <= 100 * EPS * condition * size
        guess = here.nu


def layers(*of_sites):
    """Masks of two samples and a unit in the first layer, two in the second."""
    return tuple(jnp.asarray(m) for m in of_sites)


@pytest.mark.parametrize("signal", [0.0, 1e-28, 1e-14, 1.0])
def test_a_unit_is_held_where_next_to_no_signal_reaches_it(signal):
    """It slides on a sample that the unit above passes with that weight; what moves it is
    the other sample, which another one passes."""
    first, second = jnp.asarray([[0.0, 1.0]]), jnp.asarray([[1.0], [1.0]])
    net = gf.nets.MLP.from_weights([first, second, jnp.asarray([[signal, 1.0]])])
    data = gf.Dataset(jnp.asarray([[1.0, 0.0], [1.0, 1.0]]), jnp.asarray([[1.0], [3.0]]))
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    none, every = [[False, False], [False, False]], [[True, True], [True, True]]
    slides = layers([[True], [False]], none)
    on = layers([[False], [True]], [[True, False], [False, True]])
    gates = GateState(on, slides, layers([[True], [True]], every))

    here = evaluate_along(flow, net, gates, slots_of(slides, 16))
    away, along = here.velocity.position.weights[0][0]
    assert abs(away) <= 10 * EPS * abs(along) and along > 0.5
