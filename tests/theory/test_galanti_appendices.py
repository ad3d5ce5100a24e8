"""Galanti & Poggio, Appendices D and E: sample bound, normalised and linear layers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from fixtures import distance
from galanti_cases import N, random_net, regression

import gfdyn as gf
from gfdyn.theory import galanti


projection_identity = jax.jit(galanti.projection_identity)
normalised = jax.jit(galanti.normalised)
normalised_rank = jax.jit(galanti.normalised_rank)


def test_sample_bound():
    found = galanti.sample_bound(0.1, 0.05, 32, 10_000)
    assert f"{found:.6g}" == "4.43622e+07"
    for given, message in (
        ((0.0, 0.05, 32, 10), "accuracy=0.0 must be positive"),
        ((0.1, 1.0, 32, 10), "confidence=1.0 must lie in"),
        ((0.1, 0.5, 0, 10), "bits=0 and parameters=10"),
    ):
        with pytest.raises(ValueError, match=message):
            galanti.sample_bound(*given)


def test_equation_26_against_numpy():
    problem = regression((4, 1), loss=gf.losses.exponential)
    net, rho = random_net((4, 6, 5, 1)), 3.0
    unit = galanti.on_spheres(net)
    at = normalised(problem, net, rho)
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)[:, 0]
    weights = [np.asarray(w) / np.linalg.norm(w) for w in net.weights]
    outputs = reference.forward(weights, [0.0, 0.0], x)[0][:, 0]
    c = -np.exp(-rho * y * outputs) * y / N
    for layer, (ours, v) in enumerate(zip(at.residuals, weights, strict=True)):
        total = np.zeros_like(v)
        for n in range(N):
            one = reference.backprop(weights, [0.0, 0.0], x[[n]], np.ones((1, 1)))[layer]
            total += c[n] * (one - v * outputs[n])
        np.testing.assert_allclose(ours, total, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(unit.weights[layer], v, rtol=1e-14)
    np.testing.assert_allclose(at.growth, np.sum(c * outputs), rtol=1e-12)
    check = projection_identity(problem, net)
    assert check.lhs.shape == (1, 3) and check.verdict == "HOLDS"
    assert float(check.lhs.max()) <= 1e-13


def normalised_flow(problem, start, rho, t1, rtol=1e-8) -> Any:
    solver = gf.solvers.ExactKinks(rtol=rtol, atol=1e-4 * rtol)
    return galanti.normalised_flow(problem, start, rho, t1, ts=[t1], solver=solver)


def on_the_sphere(n):
    """Inputs of norm 1, hence outputs of 1 at most, where the loss stays in force."""
    problem = regression((6, 1), n=n, loss=gf.losses.exponential)
    x = np.asarray(problem.data.x)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return gf.Problem(gf.Dataset(x, problem.data.y), gf.losses.exponential)


@pytest.mark.parametrize("samples, rho", [(1, 1.0), (2, 5.0)])
def test_normalised_layers_come_to_the_rank_of_the_batch(samples, rho):
    problem, start = on_the_sphere(samples), random_net((6, 8, 8, 1))
    assert normalised_rank(problem, start, rho).holds.all()
    end = galanti.normalised_descent(problem, start, rho, 0.05 / rho, 10_000)
    for w in end.weights[:2]:
        np.testing.assert_allclose(np.linalg.norm(w), 1, rtol=1e-14)
        s = np.linalg.svd(np.asarray(w), compute_uv=False)
        assert s[samples:].max() <= 1e-12 < 0.1 < s[samples - 1]
    check = normalised_rank(problem, end, rho)
    assert check.verdict == "HOLDS" and float(check.rhs.max()) < 1e-12
    assert check.vacuous.tolist() == [False, False, True]


@pytest.mark.parametrize("rho", [0.0, -1.0, np.inf])
def test_the_product_of_norms_is_positive(rho):
    problem, net = on_the_sphere(3), random_net((6, 8, 8, 1))
    no_product = f"rho={rho} must be positive"
    with pytest.raises(ValueError, match=no_product):
        galanti.normalised(problem, net, rho)
    with pytest.raises(ValueError, match=no_product):
        galanti.normalised_rank(problem, net, rho)
    with pytest.raises(ValueError, match=no_product):
        galanti.normalised_flow(problem, net, rho, 1.0)


def test_the_flow_of_directions_is_the_limit_of_its_steps():
    """At first order, through kinks; and the norms stay."""
    problem, start, rho = on_the_sphere(3), random_net((6, 8, 8, 1)), 5.0
    flow = normalised_flow(problem, start, rho, 4.0)
    assert int(flow.stats["num_crossings"]) + int(flow.stats["num_slides"]) > 0
    assert float(flow.certificate.energy_residual) < 1e-6
    assert float(flow.certificate.balance_drift) < 1e-7
    for v in flow.final.weights:
        np.testing.assert_allclose(np.linalg.norm(v), 1, rtol=1e-7)
    gaps = []
    for steps in (400, 1600):
        end = galanti.normalised_descent(problem, start, rho, 4.0 / steps, steps)
        gaps.append(distance(end, flow.final))
    assert gaps[0] / gaps[1] > 2.5 and gaps[1] < 1e-3


def test_the_flow_of_directions_comes_to_the_rank_of_the_batch():
    problem, start = on_the_sphere(3), random_net((6, 8, 8, 1))
    end = normalised_flow(problem, start, 5.0, 100.0).final.unit
    for w, w0 in zip(end.weights[:2], start.weights[:2], strict=True):
        s, s0 = (np.linalg.svd(np.asarray(m), compute_uv=False) for m in (w, w0))
        assert s[3:].max() <= 1e-6 and s0[3] > 0.1


@pytest.mark.parametrize("way", ["steps", "flow"])
def test_deep_linear_layers_satisfy_equation_26(way):
    """And are of rank one, whatever the batch."""
    problem, start = on_the_sphere(4), random_net((6, 8, 8, 1), activation="identity")
    if way == "steps":
        end = galanti.normalised_descent(problem, start, 1.0, 0.05, 10_000)
    else:
        end = normalised_flow(problem, start, 1.0, 500.0, rtol=1e-13).final.unit
    at = normalised(problem, end, 1.0)
    assert max(float(jnp.abs(r).max()) for r in at.residuals) <= 1e-12
    for w in end.weights[:2]:
        s = np.linalg.svd(np.asarray(w), compute_uv=False)
        assert s[1:].max() <= 1e-10
    assert normalised_rank(problem, end, 1.0).verdict == "HOLDS"
