"""Escape directions of data without interaction, and of data in the plane."""

import jax
import numpy as np
import pytest
import scipy.optimize
from direction_cases import (
    ROOT2,
    arrays,
    assert_random_nets_slower,
    checked,
    layer_sizes,
    least_residual,
    planar_cases,
    problem_of,
    psi,
    speed_of,
)
from fixtures import example_one

import gfdyn as gf
from gfdyn import escape


# --- Data without interaction ----------------------------------------------------------


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_rank_one_data(depth):
    for outputs in (1, 3):
        data = gf.data.rank_one(5, 4, outputs, key=jax.random.key(outputs))
        problem = gf.Problem(data, gf.losses.squared)
        x, g = arrays(problem)
        v = np.linalg.norm(x, axis=1)
        expected = np.linalg.norm(g.T @ v)
        assert float(escape.rank_one_speed(problem)) == pytest.approx(expected, rel=1e-13)
        found = escape.rank_one_optimum(problem, depth, width=2)
        checked(problem, found, depth, expected)
        assert found.net.weights[0].shape == (2, 4)


def test_rank_one_errors():
    x, g = np.outer([1.0, 2.0, 0.0], [3.0, 4.0]), np.ones((3, 1))
    assert float(escape.rank_one_speed(problem_of(x, g))) == pytest.approx(15, rel=1e-14)
    x[1] *= -1
    for wrong in (x, np.eye(3), np.zeros((3, 2))):
        with pytest.raises(ValueError, match=r"data\.x is not on one ray .* sample"):
            escape.rank_one_speed(problem_of(wrong, g))
    x, g = np.ones((2, 2)), np.array([[1.0], [-1.0]])
    with pytest.raises(ValueError, match="cost_gradient_at_zero is 0, or cancels out"):
        escape.rank_one_speed(problem_of(x, g))
    with pytest.raises(ValueError, match="depth=1 must be an integer of at least 2"):
        escape.rank_one_optimum(problem_of(x, g), 1)
    with pytest.raises(ValueError, match="width=0 must be an integer of at least 1"):
        escape.rank_one_optimum(problem_of(x, g), 2, width=0)


def orthogonal(outputs, seed=0, num_samples=5):
    lengths = np.random.default_rng(seed).uniform(0.5, 2, num_samples)
    key = jax.random.key(seed)
    data = gf.data.orthogonal(num_samples, 6, outputs, key=key, scales=lengths)
    return gf.Problem(data, gf.losses.squared), lengths


def strongest(b, seed=0):
    """max ‖σ(−bu)‖ over unit u, by power iteration from many starts."""
    u = np.random.default_rng(seed).normal(size=(3000, b.shape[1]))
    for _ in range(500):
        u /= np.linalg.norm(u, axis=1, keepdims=True) + 1e-300
        u = -np.maximum(-u @ b.T, 0) @ b
    u /= np.linalg.norm(u, axis=1, keepdims=True) + 1e-300
    return np.max(np.linalg.norm(np.maximum(-u @ b.T, 0), axis=1))


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_orthogonal_data(outputs):
    for seed in range(3):
        problem, lengths = orthogonal(outputs, seed)
        x, g = arrays(problem)
        b = lengths[:, None] * g
        if outputs == 1:
            parts = np.maximum(b, 0), np.maximum(-b, 0)
            expected = max(np.linalg.norm(part) for part in parts)
        else:
            expected = strongest(b)
        speed = float(escape.orthogonal_speed(problem))
        assert speed == pytest.approx(expected, rel=1e-12)
        for depth in (2, 3, 4, 5):
            found = escape.orthogonal_optimum(problem, depth)
            assert speed_of(problem, found.net) == pytest.approx(expected, rel=1e-12)
            assert layer_sizes(found.net) == pytest.approx([1] * depth, rel=1e-12)
            assert least_residual(problem, found.net, expected) <= 1e-12
        assert_random_nets_slower(x, g, speed)


def test_orthogonal_data_with_equal_blocks():
    """All subsets have leading eigenvalues of higher multiplicity."""
    problem = problem_of(np.eye(4), np.concatenate([np.eye(2), -np.eye(2)]))
    assert float(escape.orthogonal_speed(problem)) == pytest.approx(1, rel=1e-14)
    assert least_residual(problem, escape.orthogonal_optimum(problem, 3).net, 1) <= 1e-12


def test_orthogonal_errors():
    with pytest.raises(
        ValueError, match=r"is not orthogonal: the cosine of samples 0 and 1"
    ):
        escape.orthogonal_speed(problem_of(np.ones((2, 2)), np.ones((2, 1))))
    with pytest.raises(ValueError, match="15 samples and 2 outputs: .* at most 14"):
        escape.orthogonal_speed(problem_of(np.eye(15), np.ones((15, 2))))
    g = np.arange(15.0)[:, None]
    speed = escape.orthogonal_speed(problem_of(np.eye(15), g))
    assert float(speed) == pytest.approx(np.linalg.norm(g), rel=1e-14)
    with pytest.raises(ValueError, match="cost_gradient_at_zero is 0"):
        escape.orthogonal_speed(problem_of(np.eye(2), np.zeros((2, 1))))


# --- Two layers in the plane -----------------------------------------------------------


def test_planar_optima_against_a_grid():
    """Every local optimum, on a grid refined by scipy."""
    angles = np.linspace(0, 2 * np.pi, 20001)[:-1] + 1e-4
    for x, g in planar_cases():
        found = escape.planar_optimum(problem_of(x, g))
        values = psi(x, g, angles)
        peaks = (values > np.roll(values, 1)) & (values >= np.roll(values, -1))
        peaks &= values > 1e-9
        refined = [
            scipy.optimize.minimize_scalar(
                lambda t, x=x, g=g: -psi(x, g, t),
                bounds=(t - 4e-4, t + 4e-4),
                method="bounded",
                options={"xatol": 1e-13},
            ).x
            for t in angles[peaks]
        ]
        ours = np.sort(np.asarray(found.angles))
        apart = np.angle(np.exp(1j * (ours[:, None] - np.array(refined)[None, :])))
        assert len(ours) == len(refined)
        assert np.max(np.min(np.abs(apart), axis=1)) <= 1e-6
        np.testing.assert_allclose(found.speeds, psi(x, g, found.angles), rtol=1e-12)
        assert np.all(np.diff(found.speeds) <= 0) and found.speed == found.speeds[0]
        best = max(psi(x, g, np.array(refined)))
        assert best * (1 - 1e-14) <= found.speed <= best * (1 + 1e-7)


def test_planar_net():
    for x, g in planar_cases():
        problem = problem_of(x, g)
        found = escape.planar_optimum(problem)
        assert speed_of(problem, found.net) == pytest.approx(float(found.speed), rel=1e-13)
        deeper = escape.planar_optimum(problem, depth=4, width=2).net
        assert [w.shape[0] for w in deeper.weights] == [2, 2, 2, g.shape[1]]
        assert speed_of(problem, deeper) == pytest.approx(float(found.speed), rel=1e-13)
        for angle, u in zip(found.angles, found.outputs, strict=True):
            w = np.array([[np.cos(angle), np.sin(angle)]])
            net = gf.nets.MLP.from_weights([w, np.asarray(u)[:, None]])
            speed = speed_of(problem, net)
            assert speed > 0
            assert least_residual(problem, net, speed) <= 1e-12


def test_planar_optima_of_example_one():
    found = escape.planar_optimum(example_one())
    np.testing.assert_allclose(found.speeds, [ROOT2 - 1] * 8, rtol=1e-14)
    steps = np.asarray(found.angles) / (np.pi / 4)
    np.testing.assert_allclose(np.sort(np.round(steps) % 8), np.arange(8))
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-14)
    np.testing.assert_array_equal(found.outputs[:, 0], (-1.0) ** np.round(steps))


def test_planar_errors():
    with pytest.raises(ValueError, match=r"data\.x has 3 features: .* for 2"):
        escape.planar_optimum(problem_of(np.eye(3), np.ones((3, 1))))
    # Two layers are blind to six alternating points, three are not.
    with pytest.raises(ValueError, match="all planar speeds are 0"):
        escape.planar_optimum(example_one(6))
    assert escape.depth_three_optimum(example_one(6)).speed >= 0.46
    with pytest.raises(ValueError, match="problem is traced"):
        jax.jit(lambda p: escape.planar_optimum(p).speed)(example_one())
