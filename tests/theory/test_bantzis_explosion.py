"""Bantzis, Simon & Jacot, Proposition 2.2; balance, outputs, depth, speed."""

import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from bantzis_cases import afresh, escape_speed, escaping, rank_two, regression
from fixtures import (
    all_active,
    all_active_speed,
    example_one,
    linear_escape,
    linear_problem,
    rows,
    tight,
)

import gfdyn as gf
from gfdyn.theory import Check, bantzis


explosion_law = jax.jit(bantzis.explosion_law, static_argnames="tolerance")
balance_law = jax.jit(bantzis.balance_law)
output_bound = jax.jit(bantzis.output_bound)
deepening_never_loses = jax.jit(bantzis.deepening_never_loses)


# --- Proposition 2.2: the explosion ----------------------------------------------------


@pytest.mark.parametrize("depth", [2, 3, 6])
def test_explosion(depth):
    """A localized run from ‖θ‖ = e^-5, all gates open, to 1e-8; the printed law fails."""
    problem, net = all_active(depth)
    speed = all_active_speed(problem)
    net = gf.nets.scaled_to_norm(net, math.exp(-5))
    flow = gf.EscapeFlow(problem, localized=True)
    traj = gf.solve(flow, net, t1=8.0 / speed, solver=tight())
    r, r0 = np.exp(np.asarray(traj.log_radius)), math.exp(-5) / depth**0.5
    t = np.exp(np.asarray(traj.log_time))
    assert r[-1] > 1000 * r0
    times = gf.escape.escape_time(depth, speed, r0, r)
    np.testing.assert_allclose(times[1:], t[1:], rtol=1e-8)
    # Next to the blow-up r is far more sensitive to t than t is to r.
    early = r < 10 * r0 if depth > 2 else r > 0
    law = gf.escape.explosion_radius(depth, speed, r0, t)
    np.testing.assert_allclose(law[early], r[early], rtol=1e-8 if depth < 5 else 1e-6)
    if depth == 3:
        log_r, log_t = traj.log_radius, traj.log_time
        found = explosion_law(problem, net, log_r, log_t, tolerance=1e-8)
        assert found.verdict == "HOLDS" and found.lhs.shape == log_r.shape
        # As printed: time too short by L^{−L/2}
        printed = log_t - 1.5 * math.log(3)
        found = explosion_law(problem, net, log_r, printed, tolerance=1e-8)
        assert found.verdict == "VIOLATED"


def test_explosion_law_wants_an_escape_direction():
    times = jnp.linspace(-1.0, 0.0, 101)
    problem, net = all_active(3, noise=0.2)
    found = explosion_law(problem, net, times, times, tolerance=1e-8)
    assert found.verdict == "ASSUMPTIONS NOT MET" and "not critical" in str(found)
    backwards = eqx.tree_at(lambda n: n.matrices[-1], net, replace_fn=lambda w: -w)
    found = explosion_law(problem, backwards, times, times, tolerance=1e-8)
    assert "not escaping" in str(found)
    # Example 1 stands on kinks, where the plain gradient is not −s ρ.
    problem, net = example_one(), rank_two()
    plain = jax.jit(jax.grad(problem.localized_risk))(net)
    assert float(gf.nets.norm(jax.tree.map(lambda g, w: g + w / 2, plain, net))) > 0.7
    radii = jnp.log(jnp.asarray([1.0, 2.0, 4.0]))
    law = gf.escape.log_escape_time(3, 0.5, 0.0, radii)
    assert explosion_law(problem, net, radii, law).verdict == "HOLDS"


# --- Balance, outputs, depth, speed ----------------------------------------------------


def test_balance_law():
    problem, start = all_active(3, noise=0.3)
    flow = gf.GradientFlow(problem)
    traj = gf.solve(flow, start, ts=jnp.linspace(0, 3.0, 5), solver=tight())
    check = jax.vmap(lambda net: bantzis.balance_law(problem, net, start, 1e-9))
    found = jax.jit(check)(traj.net)
    assert found.lhs.shape == (5, 6)
    assert found.verdict == "HOLDS"
    moved = gf.nets.norm(rows(traj.net, 4).weights[0] - start.weights[0])
    assert moved > 1e-3
    expected = reference.neuron_balance(*(np.asarray(w) for w in start.weights[:2]))
    np.testing.assert_allclose(found.rhs[0, :3], expected, rtol=1e-12)
    other = rows(traj.net, 4)
    other = eqx.tree_at(lambda n: n.matrices[0], other, replace_fn=lambda w: 1.1 * w)
    assert balance_law(problem, other, start).verdict == "VIOLATED"
    shallow = gf.nets.MLP([4, 1], key=jax.random.key(0))
    with pytest.raises(ValueError, match="no hidden layer"):
        bantzis.balance_law(problem, shallow, shallow)


@pytest.mark.parametrize("widths", [(4, 2, 4, 1), (4, 6, 1), (4, 1, 1)])
def test_balance_is_of_nets_of_the_same_widths(widths):
    """As many neurons, of other layers; or one, which would stand for all."""
    problem, net = all_active(3)
    other = gf.nets.MLP(widths, key=jax.random.key(0))
    message = f"initial has widths {widths}, and net (4, 3, 3, 1); give the net"
    with pytest.raises(ValueError, match=re.escape(message)):
        bantzis.balance_law(problem, net, other)


@pytest.mark.parametrize("tolerance", [-1.0, np.nan])
def test_the_tolerance_of_balance_is_not_negative(tolerance):
    problem, net = all_active(2)
    with pytest.raises(ValueError, match=f"tolerance={tolerance} must be 0 or more"):
        bantzis.balance_law(problem, net, net, tolerance)


def test_escape_directions_are_balanced(monkeypatch):
    """Exactly at the optimum of Example 1, and as far as the residual says elsewhere."""
    balance = jax.jit(bantzis.escape_direction_balance)
    problem, net = example_one(), rank_two()
    found = balance(problem, net)
    assert found.verdict == "HOLDS" and found.lhs.shape == (8,)
    assert np.max(found.lhs) <= 1e-14
    rng = np.random.default_rng(0)
    for size in (0.1, 0.3, 1.0):
        other = gf.nets.MLP.from_weights(
            [w + size * jnp.asarray(rng.normal(size=w.shape)) * w for w in net.weights]
        )
        found = balance(problem, other)
        assert found.verdict == "HOLDS"
        assert np.max(found.lhs) > 0.1 * size
        assert np.max(found.lhs / found.rhs) > 0.05
    monkeypatch.setattr(
        "gfdyn.theory.bantzis._escape.clarke_residual", lambda *_: jnp.asarray(0.0)
    )
    assert afresh(bantzis.escape_direction_balance, problem, other).verdict == "VIOLATED"


def test_output_bound_against_numpy():
    problem = regression()
    x = np.asarray(problem.data.x)
    weights = reference.random_weights([3, 4, 4, 2])
    outputs, _ = reference.forward(weights, [0.0, 0.0], x)
    r = np.sqrt(sum(np.sum(w**2) for w in weights) / 3)
    product = np.prod([np.linalg.norm(w, 2) for w in weights]) * np.linalg.norm(x)
    found = output_bound(problem, gf.nets.MLP.from_weights(weights))
    first = np.log([np.linalg.norm(outputs), product, np.linalg.norm(outputs)])
    np.testing.assert_allclose(found.lhs, first, rtol=1e-12)
    second = [product, r**3 * np.linalg.norm(x), r**3 * np.linalg.norm(x, 2)]
    np.testing.assert_allclose(found.rhs, np.log(second), rtol=1e-12)
    tiny = gf.nets.MLP.from_weights([1e-200 * w for w in weights])
    shifted = output_bound(problem, tiny)
    np.testing.assert_allclose(shifted.lhs, first - 600 * math.log(10), rtol=1e-12)
    assert found.verdict == shifted.verdict == "HOLDS"
    steep = gf.nets.MLP.from_weights(weights, "leaky_relu(9.0)")
    found = output_bound(problem, steep)
    assert "not contracting" in str(found)
    found = eqx.tree_at(lambda c: c.assumptions["contracting"], found, jnp.asarray(True))
    assert found.verdict == "VIOLATED"


def test_deepening(monkeypatch):
    problem = regression()
    net = escaping(problem, [3, 4, 2])
    found = deepening_never_loses(problem, net)
    assert found.verdict == "HOLDS" and found.lhs < found.rhs < 0
    losing = eqx.tree_at(lambda n: n.matrices[-1], net, replace_fn=lambda w: -w)
    assert "not escaping" in str(deepening_never_loses(problem, losing))
    monkeypatch.setattr(
        "gfdyn.theory.bantzis._escape.deepen",
        lambda _, net, k: losing,
    )
    assert afresh(bantzis.deepening_never_loses, problem, net).verdict == "VIOLATED"


def test_speed_bounds():
    """Example 1, where GXᵀ = 0; linear nets, of speed σ_1; a speed out of bounds."""
    found = bantzis.optimal_speed_bounds(example_one(), 0.5)
    np.testing.assert_allclose(found.lhs, [0, 0.5], atol=1e-15)
    np.testing.assert_allclose(found.rhs, [0.5, 2 * math.sqrt(8)], rtol=1e-14)
    assert found.verdict == "HOLDS"
    problem, a = linear_problem()
    speed = float(escape_speed(problem, linear_escape(a, 3)))
    assert bantzis.optimal_speed_bounds(problem, speed).verdict == "HOLDS"
    assert bantzis.optimal_speed_bounds(problem, 0.49 * speed).verdict == "VIOLATED"
    assert bantzis.optimal_speed_bounds(problem, 100.0).verdict == "VIOLATED"
    with pytest.raises(ValueError, match="optimal_speed=0.0 must be positive"):
        bantzis.optimal_speed_bounds(problem, 0.0)


# --- Precision -------------------------------------------------------------------------


def test_statements_in_float32():
    double, net = all_active(3)
    single = gf.Problem(double.data.astype("float32"), gf.losses.squared)
    net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
    speed = all_active_speed(double)

    @jax.jit
    def statements(problem: gf.Problem, net: gf.nets.MLP) -> list[Check]:
        return [
            bantzis.product_inequality(problem, net),
            bantzis.product_inequality(problem, net, sharp=True),
            bantzis.rank_one_layer_count(problem, net),
            bantzis.near_rank_one_input(problem, net),
            bantzis.near_rank_one_gain(problem, net),
            bantzis.deepening_never_loses(problem, net),
            bantzis.output_bound(problem, net),
            bantzis.optimal_speed_bounds(problem, speed),
            bantzis.balance_law(problem, net, net),
            bantzis.rank_one_layers(problem, net, speed, tolerance=1e-4),
        ]

    for check in statements(single, net):
        assert check.lhs.dtype == check.rhs.dtype == jnp.float32
        assert bool(jnp.all(check.holds)), check
