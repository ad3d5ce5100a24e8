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


def blown_up(normals, passed, signal, moves):
    """The tangent network of sites with these normals."""
    return tangent(normals @ moves, signal, normals @ normals.T, passed)


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
    t = blown_up(normals, passed, signal, moves)
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
    t = blown_up(*stack)
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


def below_two(passed, signal, moves):
    """Two kinks of their own, and sites above that have no normals."""
    normals = np.zeros((len(signal), 2))
    normals[0, 0] = normals[1, 1] = 1.0
    return normals, passed, signal, moves


def test_what_hangs_on_two_opens_with_the_one_that_opens_further():
    """Opened alone, the second of two kinks would open a site whose signal lets it go. The
    first is open more often: with both open that site is closed, and descent stays."""
    passed = np.zeros((4, 4))
    passed[2:, :2] = [[1.0, 1.0], [-1.0, 1.0]]
    stack = below_two(passed, np.array([0.0, 0.0, 1.0, -0.5]), np.array([0.9, 0.55]))
    t = blown_up(*stack)
    sliding = states(SLIDING, SLIDING, OFF, OFF)
    there = followed(t, sliding)
    assert there.least[1] < -0.04 and there.stacked[:2].all()
    for low in ([-0.55, -0.25], [-0.55, 0.15], [-0.45, -0.45]):
        z = np.array([*low, 0.0, 0.0])
        z += passed @ np.maximum(z, 0.0)
        assert descended(*stack, z)[:2] == (SLIDING, SLIDING)
        found = decided(t, sliding, jnp.asarray([*z, 0.0, 0.0]), jnp.asarray(False))
        assert found.verified and found.state[:2].tolist() == [SLIDING, SLIDING]


@pytest.mark.parametrize("seed", [14, 78, 538])
def test_what_is_too_slow_to_be_played_is_proposed(seed):
    """Two units come to their kinks after more rounds than are played. What opens above
    them slides only if it comes back as far as what slides already lets it: two that slide
    would hold both units, and all that hangs on these."""
    rng = np.random.default_rng(seed)
    passed, slow = np.zeros((6, 6)), 5e-5
    passed[2:, :2] = rng.normal(size=(4, 2))
    signal = slow * np.append(np.zeros(2), rng.normal(size=4))
    stack = below_two(passed, signal, slow * np.abs(rng.normal(size=2)))
    t = blown_up(*stack)
    z = np.array([-1.0, -1.0, 0.0, 0.0, 0.0, 0.0])
    found = decided(t, states(*[OFF] * 6), jnp.asarray(z), jnp.asarray(True))
    assert found.verified
    # At the same speeds from nearby, which they come to in time
    near = np.array([-1e-4, -1e-4, 0.0, 0.0, 0.0, 0.0])
    assert tuple(found.state[:4].tolist()) == descended(*stack, near)
