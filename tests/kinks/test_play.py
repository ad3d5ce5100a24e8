"""Gradient descent played on tangent networks, against descents in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from tangents import decided, followed, states, tangent

from gfdyn.kinks import OFF, ON, SLIDING, offset_of


def random_stack(seed):
    """Three kinks, and two above that these push, of which the last has no normal."""
    rng = np.random.default_rng(seed)
    normals = rng.normal(size=(5, 3))
    normals /= np.linalg.norm(normals, axis=1)[:, None]
    normals[4] = 0.0
    passed = np.zeros((5, 5))
    passed[3:, :3] = rng.normal(size=(2, 3))
    signal = np.abs(rng.normal(size=5)) * [0.3, 0.3, 0.3, 0.5, 0.5]
    return normals, passed, signal, 0.4 * rng.normal(size=3)


def descended(normals, passed, signal, moves, z):
    """The states in which gradient descent of unit steps leaves the sites with a normal,
    from pre-activations z."""
    alone = (z - passed @ np.maximum(z, 0.0)) * np.any(normals != 0, axis=1)
    gates = []
    for _ in range(4000):
        on = alone + passed @ np.maximum(alone, 0.0) > 0
        arrives = signal + passed.T @ np.where(on, signal, 0.0)
        alone = alone + normals @ (moves - np.where(on, arrives, 0.0) @ normals)
        gates.append(on)
    late = np.mean(gates[2000:], axis=0)[:4]
    return tuple(np.where(late == 1, ON, np.where(late == 0, OFF, SLIDING)).tolist())


def test_sites_are_left_where_a_displacement_of_the_parameters_brings_them():
    """Two of five normals in three dimensions depend on the others: where two sites slide
    and one comes to its kink, the rest moves with these."""
    normals, passed, signal, moves = random_stack(0)
    t = tangent(normals @ moves, signal, normals @ normals.T, passed)
    there = followed(t, states(SLIDING, SLIDING, ON, OFF, OFF))
    left_at = jnp.asarray([0.3, -0.4, 0.0, 0.0, 0.0, 0.0])
    offset = np.asarray(offset_of(t, there, left_at))
    np.testing.assert_allclose(offset[:2], (left_at * t.scale)[:2], rtol=1e-8)
    alone = (offset[:5] - passed @ np.maximum(offset[:5], 0.0))[:4]
    led = normals[:4] @ np.linalg.lstsq(normals[:4], alone, rcond=None)[0]
    np.testing.assert_allclose(led, alone, atol=1e-8)
    assert np.max(np.abs(alone)) > 0.1


@pytest.mark.parametrize("seed", [38, 76, 87, 92, 96, 114, 279, 340, 385])
def test_descent_settles_where_it_was_left(seed):
    """Sites below others are held by several regimes. Which of them descent settles in
    depends on where it begins; and from where a play has left the sites it settles in the
    same one again."""
    normals, passed, signal, moves = stack = random_stack(seed)
    t = tangent(normals @ moves, signal, normals @ normals.T, passed)
    settled = set()
    for start in range(5):
        z = normals @ np.random.default_rng(1000 * start + seed).normal(size=3)
        z += passed @ np.maximum(z, 0.0)
        begun = states(*np.where(z > 0, ON, OFF))
        found = decided(t, begun, jnp.asarray(np.append(z, 0.0)), jnp.asarray(True))
        assert found.verified
        assert tuple(found.state[:4].tolist()) == descended(*stack, z)
        stands = offset_of(t, followed(t, found.state), found.left_at)
        again = decided(t, found.state, stands, jnp.asarray(True))
        assert again.verified
        np.testing.assert_array_equal(again.state[:4], found.state[:4])
        settled.add(tuple(found.state[:4].tolist()))
    assert len(settled) > 1
