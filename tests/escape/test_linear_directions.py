"""Escape directions of linear nets, in closed form, and their curvature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from direction_cases import arrays, checked, matrices, problem_of
from fixtures import all_active, all_active_speed, linear_problem

import gfdyn as gf
from gfdyn import escape


# --- Linear nets -----------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_linear_optimum(depth):
    problem, a = linear_problem(num_outputs=3)
    sigma = np.linalg.svd(a)[1]
    found = escape.linear_optimum(problem, depth, width=1 if depth == 2 else 4)
    checked(problem, found, depth, np.linalg.norm(a) if depth == 1 else sigma[0])
    if depth > 2:
        assert found.net.weights[1].shape == (4, 4)
        sizes = [np.linalg.matrix_rank(w) for w in matrices(found.net)]
        assert sizes == [1] * depth
    rng = np.random.default_rng(depth)
    for _ in range(500):
        shapes = [(2, 4), *[(2, 2)] * (depth - 2), (3, 2)] if depth > 1 else [(3, 4)]
        weights = [rng.normal(size=s) for s in shapes]
        product = np.linalg.multi_dot(weights[::-1]) if depth > 1 else weights[0]
        scale = np.prod([np.linalg.norm(w) for w in weights])
        assert abs(np.sum(a * product)) <= found.speed * scale


def test_linear_critical_points():
    """Harmonic sums of singular values, for every subset."""
    problem, a = linear_problem(num_outputs=3)
    sigma = np.linalg.svd(a)[1]
    for depth in (3, 4, 6):
        for subset in ([1], [2], [0, 1], [0, 2], [2, 1], [0, 1, 2]):
            found = escape.linear_critical_point(problem, depth, subset)
            powers = sum(sigma[k] ** (-2 / (depth - 2)) for k in subset)
            expected = powers ** (-(depth - 2) / 2)
            checked(problem, found, depth, expected)
            for w in matrices(found.net):
                assert np.linalg.matrix_rank(w, tol=1e-9) == len(subset)
            speed = escape.linear_speed(jnp.asarray(sigma[subset]), depth)
            assert speed == pytest.approx(expected, rel=1e-13)
    wide = escape.linear_critical_point(problem, 3, [0, 1], width=4)
    assert wide.net.weights[1].shape == (4, 4)
    checked(problem, wide, 3, 1 / (1 / sigma[0] ** 2 + 1 / sigma[1] ** 2) ** 0.5)
    four = escape.linear_speed(jnp.asarray([3.0, 3.0]), 4)
    assert four == pytest.approx(3 / 2, rel=1e-14)


def test_linear_nets_of_two_layers_join_equal_directions():
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(4, 3)))[0] for _ in range(2))
    a = u @ np.diag([2.0, 0.7, 0.7]) @ v.T
    problem = problem_of(np.eye(4), a.T)
    for subset, speed in ([0], 2.0), ([1], 0.7), ([1, 2], 0.7):
        checked(problem, escape.linear_critical_point(problem, 2, subset), 2, speed)
    with pytest.raises(ValueError, match=r"differ: .* depth=2 join only equal ones"):
        escape.linear_critical_point(problem, 2, [0, 1])
    checked(problem, escape.linear_optimum(problem, 1), 1, 4.98**0.5)
    speed = escape.linear_speed(jnp.asarray([2.0, 0.7, 0.7]), 1)
    assert speed == pytest.approx(4.98**0.5, rel=1e-14)
    with pytest.raises(ValueError, match=r"singular values .* along subset=\[0, 3\], 0 up"):
        escape.linear_critical_point(problem, 3, [0, 3])
    with pytest.raises(ValueError, match="depth=1 must be an integer of at least 2"):
        escape.linear_critical_point(problem, 1, [0])
    for values in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match=r"singular_values=.* must all be positive"):
            escape.linear_speed(jnp.asarray(values), 3)
    for subset in ([], [0, 0], [4], [-1]):
        with pytest.raises(ValueError, match=r"subset=.* different integers in 0\.\.3"):
            escape.linear_critical_point(problem, 3, subset)
    with pytest.raises(ValueError, match="width=1 must be an integer of at least 2"):
        escape.linear_critical_point(problem, 3, [0, 1], width=1)
    with pytest.raises(ValueError, match="depth=0 must be an integer of at least 1"):
        escape.linear_optimum(problem, 0)
    for depth in (1, 3):
        with pytest.raises(ValueError, match="width=0 must be an integer of at least 1"):
            escape.linear_optimum(problem, depth, 0)


def test_integers_are_asked_for(unhooked):
    problem, _ = linear_problem()
    with pytest.raises(ValueError, match=r"subset=\[0.5\] must be different integers"):
        escape.linear_critical_point(problem, 3, [0.5])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="depth=2.5 must be an integer of at least 1"):
        escape.linear_optimum(problem, 2.5)  # pyright: ignore[reportArgumentType]


def test_linear_oracles_in_jit():
    problem, a = linear_problem()
    calls = []

    @jax.jit
    def speed(problem):
        calls.append(0)
        return escape.linear_optimum(problem, 3).speed, escape.speed_bounds(problem)

    doubled = gf.Problem(gf.Dataset(problem.data.x, 2 * problem.data.y), problem.loss)
    sigma = np.linalg.svd(a)[1][0]
    for scale, each in ((1, problem), (2, doubled)):
        found, bounds = speed(each)
        assert found == pytest.approx(scale * sigma, rel=1e-13)
        assert bounds.lower == pytest.approx(scale * sigma / 2, rel=1e-13)
    assert len(calls) == 1


# --- Curvature -------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "width", "index"), [(2, 3, 0), (3, 3, 0), (3, 3, 1)])
def test_linear_hessian_spectrum(depth, width, index):
    problem, a = linear_problem()
    sigma = np.linalg.svd(a)[1]
    s, other = float(sigma[index]), float(sigma[1 - index])
    net = escape.linear_critical_point(problem, depth, [index], width=width).net
    found = escape.sphere_hessian(problem, net)
    predicted = escape.linear_hessian_spectrum(problem, depth, index, width)
    size = sum(w.size for w in net.weights)
    assert found.eigenvalues.shape == predicted.shape == (size - 1,)
    np.testing.assert_allclose(found.eigenvalues, predicted, atol=1e-12)
    values, counts = np.unique(np.round(found.eigenvalues, 8) + 0.0, return_counts=True)
    pairs = 3 if depth == 2 else 1
    expected = {
        0.0: (depth - 1) * (width - 1),
        2 * s: (depth - 1) * width,
        s - other: pairs,
        s + other: pairs,
        s: size - 1 - (depth - 1) * (2 * width - 1) - 2 * pairs,
    }
    table = dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert table == {round(k, 8): n for k, n in expected.items()}
    assert (values[0] < 0) == (index > 0)


def test_spectrum_of_a_non_square_map():
    """Singular vectors that A does not see belong to the bulk."""
    rng = np.random.default_rng(1)
    problem = problem_of(rng.normal(size=(6, 4)), rng.normal(size=(6, 2)))
    for depth, width in ((2, 1), (4, 2)):
        net = escape.linear_optimum(problem, depth, width).net
        found = escape.sphere_hessian(problem, net).eigenvalues
        predicted = escape.linear_hessian_spectrum(problem, depth, 0, width)
        np.testing.assert_allclose(found, predicted, atol=1e-12)
    with pytest.raises(ValueError, match="depth=1 must be an integer of at least 2"):
        escape.linear_hessian_spectrum(problem, 1)
    with pytest.raises(ValueError, match=r"index=2 must be an integer in 0\.\.1"):
        escape.linear_hessian_spectrum(problem, 3, 2)


@pytest.mark.parametrize("depth", [2, 3])
def test_no_spectrum_where_nothing_escapes(depth):
    """A is diag(2, 1, 0): the third direction is none."""
    problem = problem_of(np.eye(3), np.diag([2.0, 1.0, 0.0]))
    assert escape.linear_hessian_spectrum(problem, depth, 1).size > 0
    message = "along index=2, 0 up to rounding: nothing escapes there; take an index whose"
    with pytest.raises(ValueError, match=message):
        escape.linear_hessian_spectrum(problem, depth, 2)


def test_sphere_hessian_of_a_relu_net():
    """All gates open: {0, 1, 2} s, 4, 13 and 6 times; and against differences of the plain
    gradient at a point that is no escape direction."""
    problem, net = all_active(3)
    s = all_active_speed(problem)
    found = escape.sphere_hessian(problem, jax.tree.map(lambda w: 2 * w, net))
    ratios, counts = np.unique(np.round(found.eigenvalues / s, 8) + 0.0, return_counts=True)
    assert ratios.tolist() == [0, 1, 2]
    assert counts.tolist()[0] == 4 and counts.tolist()[2] == 6
    problem, net = all_active(3, noise=0.2)
    found = escape.sphere_hessian(problem, net)
    rho = [
        w * np.sqrt(3) / np.sqrt(sum(np.sum(v**2) for v in matrices(net)))
        for w in matrices(net)
    ]
    x, g = arrays(problem)

    def slope(theta):
        weights = reference.unflatten(theta, rho)
        return reference.flatten(reference.backprop(weights, [0, 0], x, g))

    flat = reference.flatten(rho)
    hessian = reference.central_differences(slope, flat, 1e-5)
    s = -np.sum(g * reference.forward(rho, [0, 0], x)[0])
    projector = np.eye(len(flat)) - np.outer(flat, flat) / 3
    full = projector @ (hessian + s * np.eye(len(flat))) @ projector
    vectors = np.concatenate(
        [np.asarray(w).reshape(len(flat) - 1, -1) for w in found.eigenvectors.weights], 1
    )
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(flat) - 1), atol=1e-13)
    np.testing.assert_allclose(vectors @ flat, 0, atol=1e-13)
    images = vectors @ full
    np.testing.assert_allclose(images, found.eigenvalues[:, None] * vectors, atol=1e-9)
    assert np.all(np.diff(found.eigenvalues) >= 0)
