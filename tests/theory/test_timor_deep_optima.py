"""Theorems 4 and 5 of Timor, Vardi & Shamir: margins, KKT points, optima."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from scipy.optimize import nnls
from timor_deep_cases import absolute, line, outputs, relu_net, same_sign, square

import gfdyn as gf
from gfdyn.theory import timor
from gfdyn.theory.timor._lagrangian import RoundedReLU


def xor(loss: Any = gf.losses.exponential):
    """Four points round the unit circle with alternating labels."""
    angle = np.pi / 4 * np.arange(1, 8, 2)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return gf.Problem(gf.Dataset(x, np.array([1, -1, 1, -1])), loss)


def xor_net(noise=0.0):
    """Of depth 2 and least norm: w_i = x_i, of which each is at the kinks of two others."""
    rng = np.random.default_rng(0)
    weights = [np.asarray(xor().data.x), np.asarray(xor().data.y).T.astype(float)]
    return gf.nets.MLP.from_weights([w + noise * rng.normal(size=w.shape) for w in weights])


# --- Margins and KKT points ------------------------------------------------------------


@pytest.mark.parametrize("loss", [gf.losses.exponential, gf.losses.logistic])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_smoothed_margin(loss, reduction):
    problem = gf.Problem(xor().data, loss, reduction)
    net = xor_net(noise=0.1)
    q = np.ravel(outputs(net, np.asarray(problem.data.x)) * np.asarray(problem.data.y))
    total = np.sum(np.exp(-q) if loss is gf.losses.exponential else np.log1p(np.exp(-q)))
    expected = -np.log(total) / square(net)
    found = gf.diagnostics.smoothed_margin(problem, net)
    assert float(found) == pytest.approx(expected, rel=1e-13)
    # Where the loss is e^-40000
    far = jax.tree.map(lambda w: 200 * w, net)
    found = float(gf.diagnostics.smoothed_margin(problem, far))
    smallest = float(gf.diagnostics.normalised_margin(problem, net))
    assert smallest * (1 - 1e-3) < found <= smallest


def test_norm_ratio():
    net = relu_net((3, 5, 4, 1))
    values = [np.linalg.svd(w, compute_uv=False) for w in net.weights]
    expected = np.array([s[0] / np.linalg.norm(s) for s in values])
    problem = gf.Problem(gf.Dataset(np.ones((2, 3)), np.ones(2)), gf.losses.squared)
    found = gf.diagnostics.norm_ratio(problem, net)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    mean = gf.diagnostics.mean_norm_ratio(problem, net)
    assert float(mean) == pytest.approx(expected.mean(), rel=1e-14)
    tiny = jax.tree.map(lambda w: 1e-300 * w, net)
    np.testing.assert_allclose(
        gf.diagnostics.norm_ratio(problem, tiny), expected, rtol=1e-14
    )
    zero = jax.tree.map(jnp.zeros_like, net)
    np.testing.assert_array_equal(gf.diagnostics.norm_ratio(problem, zero), 0)


def test_kkt_on_kinks():
    """The XOR optimum is a KKT point only with gates at its kinks; λ = 1 by hand."""
    found = timor.kkt(xor(), jax.tree.map(lambda w: 3 * w, xor_net()))
    assert float(found.residual) < 1e-14
    np.testing.assert_allclose(found.multipliers, 1, rtol=1e-13)
    assert abs(float(found.complementarity)) < 1e-14
    near = timor.kkt(xor(), xor_net(noise=1e-5))
    assert float(near.residual) < 1e-4
    # Without them it is what non-negative least squares give.
    net = xor_net(noise=1e-5)
    naive = timor.kkt(xor(), net, tolerance=1e-9)
    x, y = np.asarray(xor().data.x), np.asarray(xor().data.y)
    scaled = [np.asarray(w) for w in naive.net.weights]
    columns = [
        np.concatenate([np.ravel(g) for g in reference.backprop(scaled, [0.0], x, c)])
        for c in np.eye(4)[:, :, None] * y
    ]
    theta = np.concatenate([np.ravel(w) for w in scaled])
    multipliers, distance = nnls(np.stack(columns, axis=1), theta)
    assert float(naive.residual) == pytest.approx(
        distance / np.linalg.norm(theta), rel=1e-8
    )
    assert 0.4 < float(naive.residual) < 0.6
    np.testing.assert_allclose(np.ravel(naive.multipliers), multipliers, atol=1e-7)


def test_kkt_of_interpolation():
    """λ may be negative: x⁺ − x⁻ is the shortest net through (±1, ±1)."""
    found = timor.kkt(line([1.0, -1.0]), same_sign())
    assert float(found.residual) < 1e-14 and float(found.complementarity) == 0
    np.testing.assert_allclose(np.ravel(found.multipliers), [1, -1], rtol=1e-13)
    longer = gf.nets.MLP.from_weights(
        [2 * same_sign().weights[0], same_sign().weights[1] / 2]
    )
    assert float(timor.kkt(line([1.0, -1.0]), longer).residual) > 0.1


def test_kkt_that_has_no_answer():
    with pytest.raises(ValueError, match="does not classify all samples with a positive"):
        timor.kkt(xor(), jax.tree.map(lambda w: -w, relu_net((2, 4, 1))))
    with pytest.raises(ValueError, match="tolerance=1.0 must be at least 0 and below 1"):
        timor.kkt(xor(), xor_net(), tolerance=1.0)


# --- Optima ----------------------------------------------------------------------------


def test_rounded_relu():
    width = 0.1
    z = np.array([-1.0, 0.0, 0.05, 0.1, 2.0])
    relu = RoundedReLU(jnp.asarray(width))
    np.testing.assert_allclose(relu(jnp.asarray(z)), [0, 0, 0.0125, 0.05, 1.95], rtol=1e-14)
    slopes = jax.vmap(jax.grad(relu))(jnp.asarray(z))
    np.testing.assert_allclose(slopes, [0, 0, 0.5, 1, 1], rtol=1e-14)


def solved(program, problem, depth, width=4, n_starts=8, **options):
    widths = [problem.data.dim, *[width] * (depth - 1), 1]
    return program(problem, widths, n_starts, key=jax.random.key(0), **options)


def test_minimum_norm():
    """|x| at depth 3: all layers of rank one, ‖θ‖² = 3 · 2^(2/3), the norm of N'."""
    problem = line([1.0, 1.0])
    found = solved(timor.minimum_norm, problem, 3)
    assert found.polished and found.num_feasible >= 4 and not found.seeded.any()
    assert float(found.square_norm) == pytest.approx(3 * 2 ** (2 / 3), rel=1e-12)
    assert float(found.violation) < 1e-12 and float(found.layer_spread) < 1e-12
    assert found.best_square_norm(seeded=False) == pytest.approx(3 * 2 ** (2 / 3), rel=1e-4)
    assert found.best_square_norm(seeded=True) == math.inf
    check = timor.minimum_norm_ratios(problem, found.net, absolute())
    assert check.applies.all() and check.holds.all()
    np.testing.assert_allclose(check.rhs[0], 1, rtol=1e-12)
    assert timor.equal_layer_norms(problem, found.net).verdict == "HOLDS"
    assert str(found).startswith("Optimum: ‖θ‖² = 4.7622032, polished; violation ")
    # Data of other sizes: the same program, by homogeneity
    larger = gf.Problem(
        gf.Dataset(50 * problem.data.x, 1e-3 * problem.data.y), gf.losses.squared
    )
    other = solved(timor.minimum_norm, larger, 3)
    factor = (1e-3 / 50) ** (2 / 3)
    assert float(other.square_norm) == pytest.approx(
        factor * float(found.square_norm), rel=1e-10
    )


def test_maximum_margin_on_kinks():
    """XOR at depth 2: ‖θ‖² = 8, by a net that stands on eight kinks."""
    found = solved(timor.maximum_margin, xor(), 2, width=5)
    assert found.polished
    assert float(found.square_norm) == pytest.approx(8, rel=1e-12)
    assert float(gf.diagnostics.margin(xor(), found.net)) == pytest.approx(1, rel=1e-13)
    assert float(timor.kkt(xor(), found.net, 1e-6).residual) < 1e-10


def test_seeds_are_told_apart():
    problem = line([1, -1], gf.losses.exponential)
    seed = timor.maximum_margin_witness(same_sign(), 3)
    found = solved(timor.maximum_margin, problem, 3, n_starts=3, seeds=[seed])
    np.testing.assert_array_equal(found.seeded, [True, False, False, False])
    assert found.feasible[0]
    assert float(found.square_norm) == pytest.approx(6, rel=1e-9)
    assert found.best_square_norm(seeded=True) >= 6 * (1 - 1e-9)
    check = timor.maximum_margin_ratios(problem, found.net, same_sign(), sharp=True)
    assert check.applies.all() and check.holds.all()


def test_starts_do_not_depend_on_their_number():
    problem = line([1.0, 1.0])
    few = solved(timor.minimum_norm, problem, 3, n_starts=2, rounds=6, steps=60)
    more = solved(timor.minimum_norm, problem, 3, n_starts=3, rounds=6, steps=60)
    np.testing.assert_allclose(few.square_norms, more.square_norms[:2], rtol=1e-9)


def test_searches_that_are_refused(unhooked):
    squared, key = line([1.0, 1.0]), jax.random.key(0)
    with pytest.raises(ValueError, match="loss Squared; this is about a margin"):
        timor.maximum_margin(squared, [1, 4, 1], key=key)
    with pytest.raises(ValueError, match="loss Exponential; this is about interpolation"):
        timor.minimum_norm(xor(), [2, 4, 1], key=key)
    with pytest.raises(ValueError, match="n_starts=0 must be an integer of at least 1"):
        timor.minimum_norm(squared, [1, 4, 1], 0, key=key)
    with pytest.raises(ValueError, match="net has 2 inputs but the data have 1"):
        timor.minimum_norm(squared, [2, 4, 1], key=key)
    with pytest.raises(TypeError, match="is not one random key"):
        no_key: Any = "key"
        timor.minimum_norm(squared, [1, 4, 1], key=no_key)
    seed = relu_net((1, 5, 1))
    with pytest.raises(ValueError, match="a seed has weights .* of at most the shapes"):
        timor.minimum_norm(squared, [1, 4, 1], key=key, seeds=[seed])
    with pytest.raises(RuntimeError, match="none of 2 starts met the constraints"):
        timor.maximum_margin(xor(), [2, 1, 1], 2, key=key, rounds=2, steps=20)
