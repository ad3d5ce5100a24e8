"""The neural tangent kernel against its sum over weights in NumPy, and its limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf


ntk, ntk_change = gf.diagnostics.ntk, gf.diagnostics.ntk_change


def two_layers(width=6, outputs=2, scale=1.0):
    data = gf.data.teacher(7, [3, 4, outputs], key=jax.random.key(0))
    net = gf.nets.MLP([3, width, outputs], key=jax.random.key(1), scale=scale)
    return gf.Problem(data, gf.losses.squared), net


def by_hand(problem, net):
    """Σ of products of derivatives by V, then by W, of V relu(W x)."""
    x, (w, v) = np.asarray(problem.data.x), map(np.asarray, net.weights)
    z = x @ w.T
    a, gate = np.maximum(z, 0), (z > 0).astype(float)
    same = np.eye(len(v))
    of_v = np.einsum("iu,ju,ab->iajb", a, a, same)
    of_w = np.einsum("au,iu,bu,ju,ij->iajb", v, gate, v, gate, x @ x.T)
    return of_v + of_w


def test_kernel_of_two_layers():
    problem, net = two_layers()
    expected = by_hand(problem, net)
    np.testing.assert_allclose(jax.jit(ntk)(problem, net), expected, rtol=1e-12, atol=1e-12)


def test_alignment_with_the_targets():
    problem, net = two_layers()
    kernel = by_hand(problem, net).reshape(14, 14)
    y = np.asarray(problem.data.y).ravel()
    expected = y @ kernel @ y / (y @ y * np.linalg.norm(kernel))
    found = gf.diagnostics.ntk_alignment(problem, net)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    # One direction alone is aligned with itself.
    single = gf.Problem(gf.Dataset(jnp.ones((1, 3)), jnp.ones((1, 1))), gf.losses.squared)
    line = gf.nets.MLP.from_weights([jnp.ones((1, 3))])
    np.testing.assert_allclose(gf.diagnostics.ntk_alignment(single, line), 1.0, rtol=1e-14)


def test_outputs_move_by_it():
    """dF/dt = −Θ ∇C, against finite differences of the flow."""
    problem, net = two_layers()
    h = 1e-5
    solver = gf.solvers.ExactKinks(rtol=1e-12)
    traj = gf.solve(gf.GradientFlow(problem), net, ts=[h], solver=solver)
    moved = (problem.outputs(traj.final) - problem.outputs(net)) / h
    cotangent = problem.cost_gradient(problem.outputs(net))
    expected = -np.einsum("iajb,jb->ia", ntk(problem, net), cotangent)
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-4)


def test_change():
    problem, start = two_layers()
    net = jax.tree.map(lambda w: 1.1 * w, start)
    before, after = by_hand(problem, start), by_hand(problem, net)
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert float(ntk_change(problem, net, start)) == pytest.approx(expected, rel=1e-12)
    # Both kernels are multiples of one here, so that every probe is exact.
    assert float(ntk_change(problem, net, start, 3)) == pytest.approx(expected, rel=1e-12)
    assert float(ntk_change(problem, start, start)) == 0
    with pytest.raises(ValueError, match="probes=0 must be 1 or more"):
        ntk_change(problem, net, start, 0)


def test_probes_estimate():
    problem, start = two_layers()
    net = gf.nets.MLP([3, 6, 2], key=jax.random.key(5))
    exact = float(ntk_change(problem, net, start))
    assert float(ntk_change(problem, net, start, 400)) == pytest.approx(exact, rel=0.15)


def test_recorded_from_lazy_to_rich():
    """From outputs of 0, so that larger weights have less far to go: about 1/scale²."""
    problem, half = two_layers(width=16, outputs=1)
    w, v = half.weights
    changes = []
    for scale in (0.5, 2.0, 8.0):
        weights = [jnp.concatenate([w, w]), jnp.concatenate([v, -v], axis=1)]
        net = gf.nets.MLP.from_weights([scale * weight for weight in weights])
        record = {"change": functools.partial(ntk_change, start=net)}
        ts = jnp.asarray([0.0, 10.0 / scale**2])
        solver = gf.solvers.ExactKinks(rtol=1e-8)
        flow = gf.GradientFlow(problem)
        traj = gf.solve(flow, net, ts=ts, record=record, solver=solver)
        assert traj.records["change"][0] == 0
        changes.append(float(traj.records["change"][1]))
    assert changes[0] > 4 * changes[1] > 16 * changes[2] > 0
