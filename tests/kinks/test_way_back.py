"""The way back to kinks: where it leads there, not where kinks are all but parallel."""

import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf
from gfdyn.kinks import GateState, back_along, back_to_kinks, shared_kinks, slots_of


# One unit on two samples, whose normals differ by 1e-5
APART = 1e-5
ROWS = jnp.asarray([[1.0, 0.0], [1.0, APART]])
ANTIPODAL = jnp.asarray([[1.0, 0.0], [-1.0, 0.0]])
SLIDING = (jnp.ones((2, 1), bool),)
GATES = GateState((jnp.zeros((2, 1), bool),), SLIDING, SLIDING)


def led_back(weights, way, rows=ROWS):
    """Where the weights of the unit are led."""
    flow = gf.GradientFlow(
        gf.Problem(gf.Dataset(rows, jnp.ones((2, 1))), gf.losses.squared)
    )
    net = gf.nets.MLP.from_weights([jnp.asarray([weights]), jnp.ones((1, 1))])
    nowhere = (jnp.zeros((2, 1), bool),)
    if way == "conjugate gradients":
        shared = shared_kinks(net, rows)
        exactly = jnp.zeros(())
        moved, _ = back_to_kinks(flow, net, GATES, shared, exactly, nowhere)
    else:
        slots = slots_of(SLIDING, 16)
        moved = back_along(flow, net, GATES, slots, jnp.zeros(16, bool))
    return np.asarray(moved.weights[0][0])


@pytest.mark.parametrize("way", ["conjugate gradients", "dense"])
def test_a_distance_that_kinks_share_is_gone(way):
    """z = 1e-6 on both samples: the first weight takes θ there."""
    np.testing.assert_allclose(led_back([1e-6, 0.0], way), 0.0, atol=1e-11)


@pytest.mark.parametrize("way", ["conjugate gradients", "dense"])
def test_what_only_tells_parallel_kinks_apart_is_left_alone(way):
    """z = ±1e-6: to be on both kinks the second weight would move by 0.2."""
    weights = [1e-6, -2e-6 / APART]
    np.testing.assert_array_equal(led_back(weights, way), weights)


@pytest.mark.parametrize("distance", [1e-6, 3e-15])
def test_antipodal_samples_are_put_on_the_kink_that_they_share(distance):
    """By rounding they could not both be on the closed side of it."""
    first, _ = led_back([distance, 0.0], "dense", ANTIPODAL)
    assert abs(first) <= np.finfo(float).eps
