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


@pytest.mark.parametrize("seed", [38, 55, 76, 87, 113, 114])
def test_descent_settles_where_it_was_left(seed):
    """Sites below others are held by several regimes. Which of them descent settles in
    depends on where it begins; and from where a play has left the sites it settles in the
    same one again."""
    normals, passed, signal, moves = stack = random_stack(seed)
    t = tangent(normals @ moves, signal, normals @ normals.T, passed)
    settled = set()
    for start in range(5):
        z = np.random.default_rng(1000 * start + seed).normal(size=5)
        z[4] = passed[4] @ np.maximum(z, 0.0)
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
