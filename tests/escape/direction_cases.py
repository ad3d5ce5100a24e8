"""Data whose escape speeds are known, and their measure in NumPy."""

import numpy as np
import pytest
import reference
import scipy.optimize

import gfdyn as gf


ROOT2 = np.sqrt(2)


def problem_of(x, g, dtype: type = np.float64):
    """The problem with these inputs (N, d) and this cost gradient at zero (N, k)."""
    data = gf.Dataset(np.asarray(x, dtype), -np.asarray(g, dtype))
    return gf.Problem(data, gf.losses.linear, reduction="sum")


def arrays(problem):
    return np.asarray(problem.data.x), np.asarray(problem.cost_gradient_at_zero)


def matrices(net):
    return [np.asarray(w, float) for w in net.weights]


def slopes(net):
    return [sigma.slope for sigma in net.activations]


def speed_of(problem, net):
    """−⟨G, f(X)⟩, in plain NumPy; the net must be on its sphere."""
    x, g = arrays(problem)
    weights = matrices(net)
    assert sum(np.sum(w**2) for w in weights) == pytest.approx(len(weights), rel=1e-12)
    return -np.sum(g * reference.forward(weights, slopes(net), x)[0])


def least_residual(problem, net, speed, above=None):
    """min ‖g_λ + sρ‖ over the gates λ of the first layer at kinks, by bounded least
    squares; those of further layers follow the sign of z, unless given as `above`."""
    x, g = arrays(problem)
    weights = matrices(net)
    zs = reference.forward(weights, slopes(net), x)[1]
    gates = [np.where(z > 1e-9, 1.0, a) for z, a in zip(zs, slopes(net), strict=True)]
    if above is not None:
        gates[1:] = above
    ray = speed * reference.flatten(weights)
    base = reference.gated_backprop(weights, gates, x, g) + ray
    columns = []
    for i, j in np.argwhere(np.abs(zs[0]) <= 1e-9) if zs else []:
        opened = gates[0].copy()
        opened[i, j] = 1.0
        changed = reference.gated_backprop(weights, [opened, *gates[1:]], x, g)
        columns.append(changed + ray - base)
    columns = [c for c in columns if np.linalg.norm(c) > 1e-12]
    if not columns:
        return np.linalg.norm(base)
    matrix = np.stack(columns, axis=1)
    found = scipy.optimize.lsq_linear(matrix, -base, (0, 1), method="bvls", tol=1e-15)
    return np.linalg.norm(base + matrix @ found.x)


def assert_random_nets_slower(x, g, speed):
    """Thousand random nets of three layers, each layer of norm 1."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        shapes = (4, x.shape[1]), (2, 4), (g.shape[1], 2)
        weights = [rng.normal(size=shape) for shape in shapes]
        scale = np.prod([np.linalg.norm(w) for w in weights])
        a = np.maximum(np.maximum(x @ weights[0].T, 0) @ weights[1].T, 0)
        assert abs(np.sum(g * (a @ weights[2].T))) <= speed * scale


def layer_sizes(net):
    return [np.linalg.norm(w) for w in matrices(net)]


def checked(problem, found, depth, expected):
    """An escape direction of this speed, in plain NumPy."""
    assert len(found.net.weights) == depth
    assert float(found.speed) == pytest.approx(expected, rel=1e-12)
    assert speed_of(problem, found.net) == pytest.approx(expected, rel=1e-12)
    assert layer_sizes(found.net) == pytest.approx([1] * depth, rel=1e-12)
    assert least_residual(problem, found.net, expected) <= 1e-12


def psi(x, g, angles):
    w = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return np.linalg.norm(np.maximum(w @ x.T, 0) @ g, axis=-1)


def planar_cases():
    """Gaussian data, one and three outputs; lattice points: collinear, antipodal, zero."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x, g = rng.normal(size=(8, 2)), rng.normal(size=(8, 1 + 2 * (seed % 2)))
        yield (np.round(x), np.round(2 * g)) if seed > 3 else (x, g)
