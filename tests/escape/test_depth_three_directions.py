"""Escape directions of three layers in the plane, and bounds of speeds."""

import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.optimize
from direction_cases import (
    ROOT2,
    assert_random_nets_slower,
    layer_sizes,
    least_residual,
    matrices,
    planar_cases,
    problem_of,
    psi,
    speed_of,
)
from fixtures import example_one, float_dtypes

from gfdyn import escape


# --- Three layers in the plane ---------------------------------------------------------


def test_programs_of_example_one():
    problem = example_one()
    found = escape.depth_three_optimum(problem, every_set=True)
    assert abs(float(found.speed) - 0.5) <= 1e-14
    assert 0 <= float(found.bound) - 0.5 <= 1e-12
    assert len(found.signs) == 30 and np.sum(np.asarray(found.signs) == -1) == 15
    for active, value, bound in zip(
        np.asarray(found.active), found.attained, found.bounds, strict=True
    ):
        chosen = np.flatnonzero(active)
        opposite = len(chosen) == 2 and chosen[1] - chosen[0] == 4
        expected = {1: 1 / 3}.get(len(chosen), 0.5 if opposite else ROOT2 - 1)
        assert abs(value - expected) <= 1e-13
        assert abs(bound - expected) <= 1e-12


def test_multipliers_of_example_one():
    """Optimal ones of the sets for which they are unique, by hand."""
    found = escape.depth_three_optimum(example_one(), every_set=True)
    known = {
        (2,): [ROOT2 / 3, ROOT2 / 3, 0, 0],
        (2, 6): [ROOT2 / 4] * 4,
        (2, 4): [1 - 1 / ROOT2, 1, 1 - 1 / ROOT2, 0],
        (2, 4, 6, 8): [1, 1, 1, 1],
    }
    table = {}
    for sign, active, mu in zip(found.signs, found.active, found.multipliers, strict=True):
        if sign < 0:
            assert np.all(np.asarray(mu)[1::2] == 0)
            table[tuple(int(i) + 1 for i in np.flatnonzero(active))] = mu[::2]
    for samples, mu in known.items():
        np.testing.assert_allclose(table[samples], mu, atol=1e-10, err_msg=str(samples))


def alternating(num_samples, seed, noise=0.15):
    """A circle of alternating signs, bent: three layers are faster than two."""
    rng = np.random.default_rng(seed)
    j = np.arange(1, num_samples + 1)
    t = 2 * np.pi * j / num_samples + noise * rng.normal(size=num_samples)
    x = np.stack([np.sin(t), np.cos(t)], axis=1) * rng.uniform(0.9, 1.1, (num_samples, 1))
    return x, ((-1.0) ** j * rng.uniform(0.9, 1.1, num_samples))[:, None]


def largest_on_a_grid(x, g, num=721):
    """s*(3) for neurons at these angles and kinks only: a linear program for each set."""
    kinks = np.arctan2(x[:, 0], -x[:, 1])
    t = np.concatenate([np.linspace(0, 2 * np.pi, num)[:-1], kinks, kinks + np.pi])
    columns = np.maximum(np.stack([np.cos(t), np.sin(t)], 1) @ x.T, 0)
    columns = np.concatenate([columns, -columns])
    best = 0.0
    for sign in (-1, 1):
        falls, rises = np.flatnonzero(sign * g < 0), np.flatnonzero(sign * g > 0)
        for bits in range(1, 2 ** len(falls)):
            chosen = falls[(bits >> np.arange(len(falls))) & 1 == 1]
            # max |g|·h on S minus |g|·t, t ≥ h, t ≥ 0, over a ≥ 0 with Σ a ≤ 1
            c = -np.append(np.abs(g[chosen]) @ columns[:, chosen].T, -np.abs(g[rises]))
            upper = np.concatenate([columns[:, rises].T, -np.eye(len(rises))], axis=1)
            total = np.append(np.ones(len(columns)), np.zeros(len(rises)))
            limits = np.append(np.zeros(len(rises)), 1.0)
            found = scipy.optimize.linprog(c, np.vstack([upper, total]), limits)
            best = max(best, -found.fun)
    return best


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_depth_three_against_linear_programs_on_a_grid(seed):
    x, g = alternating(6, seed)
    problem = problem_of(x, g)
    found = escape.depth_three_optimum(problem)
    two = escape.planar_optimum(problem).speed
    assert found.speed >= 1.05 * two
    on_grid = largest_on_a_grid(x, g[:, 0])
    assert on_grid - 1e-9 <= found.speed <= on_grid * (1 + 1e-4)
    assert abs(found.bound - found.speed) <= 1e-12
    assert speed_of(problem, found.net) == pytest.approx(float(found.speed), rel=1e-12)
    assert layer_sizes(found.net) == pytest.approx([1, 1, 1], rel=1e-12)
    # The multipliers are Clarke gates of layer 2.
    row = int(np.argmax(found.attained))
    z = reference.forward(matrices(found.net), [0, 0], x)[1][1]
    kinks = np.abs(z[:, 0]) <= 1e-9
    gates = np.where(kinks, found.multipliers[row] / np.abs(g[:, 0]), z[:, 0] > 0)
    value = least_residual(problem, found.net, float(found.speed), [gates[:, None]])
    assert np.sum(kinks) >= 1 and value <= 1e-12


def test_certificates_hold():
    """max_w |Σ ν_i σ(w·x_i)| of the multipliers, on a grid of angles and by the planar
    oracle; the bounds cover every set, solved or not."""
    for seed in range(3):
        x, g = alternating(8, seed)
        problem = problem_of(x, g)
        found = escape.depth_three_optimum(problem)
        angles = np.linspace(0, 2 * np.pi, 20001)
        sizes = np.abs(g[:, 0])
        assert len(found.signs) == 30
        solved = np.asarray(found.attained) > 0
        assert 1 <= np.sum(solved) < 30
        assert float(found.bound) == np.max(found.bounds)
        assert found.bound - found.speed <= 2e-12
        for sign, active, bound, mu in zip(
            found.signs,
            np.asarray(found.active),
            found.bounds,
            found.multipliers,
            strict=True,
        ):
            rises = sign * g[:, 0] > 0
            assert not np.any(active & rises)
            assert np.all((mu >= 0) & (mu <= np.where(rises, sizes, 0) + 1e-15))
            nu = np.where(active, sizes, 0) - np.asarray(mu)
            values = psi(x, nu[:, None], angles)
            assert np.max(values) <= bound + 1e-14
            assert np.max(values) >= bound * (1 - 1e-3)
            planar = escape.planar_optimum(problem_of(x, nu[:, None])).speed
            assert planar == pytest.approx(float(bound), rel=1e-13)
        assert_random_nets_slower(x, g, float(found.bound))


def test_every_set_agrees():
    x, g = alternating(8, 0)
    some = escape.depth_three_optimum(problem_of(x, g))
    every = escape.depth_three_optimum(problem_of(x, g), every_set=True)
    assert some.speed == pytest.approx(float(every.speed), rel=1e-12)
    assert np.all(every.attained <= some.bounds + 1e-12)
    assert np.max(np.abs(every.attained - every.bounds)) <= 2e-12


def test_depth_three_is_covariant():
    """Of degree one in G and in X; rotations, reflections and −G change nothing."""
    x, g = alternating(8, 2)
    speed = float(escape.depth_three_optimum(problem_of(x, g)).speed)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    for other in (problem_of(x @ turn, g), problem_of(x[:, ::-1], g[::1])):
        assert escape.depth_three_optimum(other).speed == pytest.approx(speed, rel=1e-11)
    scaled = escape.depth_three_optimum(problem_of(1e3 * x, -1e-8 * g))
    assert scaled.speed == pytest.approx(1e-5 * speed, rel=1e-11)
    assert scaled.bound == pytest.approx(1e-5 * speed, rel=1e-11)


def test_depth_three_errors():
    with pytest.raises(
        ValueError, match=r"data\.y has 2 outputs: certificates are for one"
    ):
        escape.depth_three_optimum(problem_of(np.eye(2), np.ones((2, 2))))
    with pytest.raises(ValueError, match=r"4 and 4 entries .* 30 linear .* max_sets=29"):
        escape.depth_three_optimum(example_one(), max_sets=29)
    with pytest.raises(ValueError, match=r"data\.x or cost_gradient_at_zero is 0"):
        escape.depth_three_optimum(problem_of(np.eye(2), np.zeros((2, 1))))
    x, g = np.ones((2, 2)), np.array([[1.0], [-1.0]])
    with pytest.raises(ValueError, match="no net of three layers lowers the risk"):
        escape.depth_three_optimum(problem_of(x, g))


# --- Together --------------------------------------------------------------------------


def test_speed_bounds():
    for x, g in planar_cases():
        problem = problem_of(x, g)
        bounds = escape.speed_bounds(problem)
        top = np.linalg.svd(g.T @ x)[1][0]
        assert bounds.lower == pytest.approx(top / 2, rel=1e-13)
        upper = np.linalg.svd(x)[1][0] * np.sqrt(np.sum(g**2))
        assert bounds.upper == pytest.approx(upper, rel=1e-13)
        two = escape.planar_optimum(problem).speed
        assert bounds.lower <= two * (1 + 1e-14)
        if g.shape[1] == 1:
            three = escape.depth_three_optimum(problem).speed
            assert two <= three * (1 + 1e-12) and three <= bounds.upper
    # Attained: one sample above, the two sides of a line below
    one = problem_of([[3.0, 4.0]], [[2.0]])
    assert escape.planar_optimum(one).speed == escape.speed_bounds(one).upper == 10
    line = problem_of([[1.0, 0.0], [-1.0, 0.0]], [[1.0], [-1.0]])
    assert escape.planar_optimum(line).speed == escape.speed_bounds(line).lower == 1


def test_float32():
    x, g = alternating(8, 0)
    single, double = problem_of(x, g, np.float32), problem_of(x, g)
    ray = problem_of(np.outer([1, 2, 3], [3, 4]), np.ones((3, 1)), np.float32)
    axes = problem_of(np.eye(4), np.arange(8.0).reshape(4, 2) - 3, np.float32)
    three = escape.depth_three_optimum(single)
    speed = float(escape.depth_three_optimum(double).speed)
    assert three.speed == pytest.approx(speed, rel=1e-6)
    everything = [
        three,
        escape.planar_optimum(single),
        escape.linear_optimum(single, 3),
        escape.linear_hessian_spectrum(single, 3),
        escape.rank_one_optimum(ray, 2),
        escape.orthogonal_optimum(axes, 2),
        escape.speed_bounds(single),
        escape.sphere_hessian(single, escape.circle_rank_two(np.float32)),
        escape.clarke_residual(single, escape.planar_optimum(single).net, 1e-4),
        escape.circle_rank_one(0.3, np.float32),
        escape.circle_depth_four(np.float32),
        escape.rank_one_speed_at(jnp.asarray([0.3], np.float32)),
    ]
    assert [float_dtypes(each) for each in everything] == [{np.dtype(np.float32)}] * 12
    assert everything[8] <= 1e-4
