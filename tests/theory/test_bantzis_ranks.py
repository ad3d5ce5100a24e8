"""Bantzis, Simon & Jacot, Proposition 3.4: products of stable ranks."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from bantzis_cases import afresh, escaping, rank_two, regression
from fixtures import all_active, example_one

import gfdyn as gf
from gfdyn.theory import bantzis
from gfdyn.theory._check import at_most, equal


# One program a shape; `afresh` where something is replaced, uncompiled where refused.
product_inequality = jax.jit(bantzis.product_inequality, static_argnames="sharp")
rank_one_layer_count = jax.jit(bantzis.rank_one_layer_count)


# --- Checks ----------------------------------------------------------------------------


def claim(lhs, rhs, relation=at_most, vacuous: Any = False, so=None, slack=None):
    assumptions = {} if so is None else {"so": jnp.asarray(so)}
    vacuous = jnp.asarray(vacuous)
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    return relation(lhs, rhs, assumptions=assumptions, vacuous=vacuous, slack=slack)


VERDICTS = [
    ((1.0, 2.0), {}, "HOLDS"),
    ((2.0, 1.0), {}, "VIOLATED"),
    ((1.0 + 1e-15, 1.0), {}, "HOLDS"),
    ((1.0 + 1e-13, 1.0), {}, "VIOLATED"),
    ((1.1, 1.0), {"slack": 0.2}, "HOLDS"),
    ((1.0, 2.0), {"vacuous": True}, "VACUOUS"),
    ((2.0, 1.0), {"vacuous": True}, "VIOLATED"),
    ((2.0, 1.0), {"so": False}, "ASSUMPTIONS NOT MET"),
    ((2.0, 1.0), {"so": True}, "VIOLATED"),
    ((math.nan, 1.0), {}, "UNDEFINED"),
    (([math.nan, 2.0], 1.0), {}, "VIOLATED"),
    (([math.nan, 0.0], 1.0), {"so": [False, True]}, "HOLDS"),
    (([1.0, 2.0], [3.0, 3.0]), {"vacuous": [True, False]}, "HOLDS"),
    (([1.0, 4.0], 3.0), {"so": [True, False]}, "HOLDS"),
    ((math.inf, math.inf), {}, "HOLDS"),
    ((math.inf, 1.0), {}, "VIOLATED"),
    ((-math.inf, -math.inf, equal), {}, "HOLDS"),
    ((-math.inf, 0.0, equal), {}, "VIOLATED"),
    ((1.0, 1.0 + 1e-15, equal), {}, "HOLDS"),
    ((1.0, 1.1, equal), {}, "VIOLATED"),
    ((1.0, 1.1, equal), {"slack": 0.11}, "HOLDS"),
]


@pytest.mark.parametrize("sides, keywords, verdict", VERDICTS)
def test_verdicts(sides, keywords, verdict):
    check = claim(*sides, **keywords)
    assert check.verdict == verdict
    assert repr(check) == str(check) == check.summary()
    assert check.summary().startswith(f"{verdict}: ")


def test_summaries():
    assert str(claim(1.0, 2.0)) == "HOLDS: 1 <= 2"
    assert str(claim(1.0, 2.0, so=False)) == "ASSUMPTIONS NOT MET: not so"
    assert (
        str(claim([1.0, 5.0, 9.0], 6.0, so=[True, True, False]))
        == "HOLDS: 5 <= 6 at the closest; true in 2 of 2, vacuous in 0; not so in 1 of 3"
    )
    assert (
        str(claim([1.0, 5.0], [1.5, 4.5], equal, vacuous=[True, False]))
        == "VIOLATED: 1 == 1.5 at the closest; true in 0 of 2, vacuous in 1"
    )


def test_checks_under_jit_and_vmap():
    """Assumptions keep their shape, and are repeated along the axes that they lack."""
    seen = []

    def check(x):
        seen.append(repr(claim(x * jnp.arange(3.0), 2.0)))
        return claim(x * jnp.arange(3.0), 2.0, so=x < 3)

    both = jax.jit(jax.vmap(check))(jnp.asarray([1.0, 1.5, 4.0]))
    assert seen == ["Check: lhs <= rhs of shape (3,), traced"]
    assert both.assumptions["so"].shape == (3,)
    assert both.applies.tolist() == [[True] * 3, [True] * 3, [False] * 3]
    assert both.holds.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    assert str(both) == (
        "VIOLATED: 3 <= 2 at the closest; true in 5 of 6, vacuous in 0; not so in 3 of 9"
    )


# --- Proposition 3.4: products of stable ranks -----------------------------------------


def sides(weights, x, g):
    """Both inequalities in NumPy, on the sphere of radius √L."""
    depth = len(weights)
    size = np.sqrt(sum(np.sum(w**2) for w in weights))
    weights = [w * np.sqrt(depth) / size for w in weights]
    outputs, z = reference.forward(weights, [0.0] * (depth - 1), x)
    a = [x, *(np.maximum(zl, 0) for zl in z)]
    risk = abs(np.sum(g * outputs))
    left = sum(np.log(np.sum(m**2) / np.linalg.norm(m, 2) ** 2) for m in a)
    right = 2 * np.log(np.linalg.norm(x) * np.linalg.norm(g) / risk)
    pairs = zip(z, a[1:], strict=True)
    sharp_left = sum(np.log(np.sum(zl**2) / np.linalg.norm(al, 2) ** 2) for zl, al in pairs)
    product = np.prod([np.linalg.norm(w) for w in weights])
    largest = np.linalg.norm(x, 2) * np.linalg.norm(g) * product
    return left, right, sharp_left, 2 * np.log(largest / risk)


@pytest.mark.parametrize("widths", [[3, 2], [3, 4, 2], [3, 4, 5, 4, 2]])
def test_product_inequality_against_numpy(widths):
    problem = regression()
    x, g = np.asarray(problem.data.x), -np.asarray(problem.data.y) / 7
    for seed in range(3):
        weights = reference.random_weights(widths, seed)
        net = gf.nets.MLP.from_weights([1e-30 * w for w in weights])
        expected = sides(weights, x, g)
        plain = product_inequality(problem, net)
        sharp = product_inequality(problem, net, sharp=True)
        found = [plain.lhs, plain.rhs, sharp.lhs, sharp.rhs]
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)
        # Where X stands in the product makes no difference, uneven layers do.
        assert sharp.rhs - sharp.lhs <= plain.rhs - plain.lhs + 1e-12


def random_cases(count, widths, n):
    """Inputs, targets and weights in layers of different size, with a leading axis."""
    rng = np.random.default_rng(0)
    shapes = zip(widths[1:], widths[:-1], strict=True)
    scales = np.exp(rng.normal(size=(len(widths) - 1, count, 1, 1)))
    weights = [
        s * rng.normal(size=(count, *shape))
        for s, shape in zip(scales, shapes, strict=True)
    ]
    x, y = (rng.normal(size=(count, n, k)) for k in (widths[0], widths[-1]))
    return x, y, weights


def case(x, y, weights):
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    return problem, gf.nets.MLP.from_weights(weights)


@pytest.mark.parametrize(
    "widths, n", [([2, 3, 1], 5), ([4, 6, 6, 2], 8), ([3, 4, 3, 5, 3, 1], 6)], ids=str
)
def test_product_inequality_of_random_nets(widths, n):
    """Of 7000 nets, each on a problem of its own."""

    @jax.jit
    @jax.vmap
    def check(*arrays):
        statement = bantzis.product_inequality
        return statement(*case(*arrays)), statement(*case(*arrays), sharp=True)

    plain, sharp = check(*random_cases(7000, widths, n))
    for found in (plain, sharp):
        assert found.verdict == "HOLDS"
        assert np.all(found.holds) and np.all(found.applies)
    # L₀ = 0 where a layer is dead: infinite right side
    alive = ~np.asarray(plain.vacuous)
    assert np.mean(alive) > 0.8
    assert np.mean((plain.lhs / plain.rhs)[alive]) > 0.04
    gained = (plain.rhs - plain.lhs)[alive] - (sharp.rhs - sharp.lhs)[alive]
    assert np.min(gained) >= -1e-9 and np.median(gained) > 0.5


def test_counts_and_outputs_of_random_nets():
    @jax.jit
    @jax.vmap
    def check(*arrays):
        given = case(*arrays)
        return bantzis.rank_one_layer_count(*given, 0.9), bantzis.output_bound(*given)

    count, outputs = check(*random_cases(1000, [4, 6, 6, 2], 8))
    assert outputs.verdict == "HOLDS" and np.all(outputs.holds)
    assert np.all(count.holds[count.applies]) and np.sum(count.applies) > 400


# Chatter along kinks does no harm here.
@pytest.mark.filterwarnings("ignore::gfdyn.CertificateWarning")
def test_product_inequality_along_a_trajectory():
    """From a small scale through the escape to the fit, 1201 points."""
    problem = regression(n=8, k=1)
    net = gf.nets.scaled_to_norm(escaping(problem, [3, 5, 5, 1]), 1e-2)
    solver = gf.solvers.Adaptive(rtol=1e-3)
    flow = gf.EscapeFlow(problem)
    traj = gf.solve(flow, net, ts=jnp.linspace(0, 80.0, 1201), solver=solver)
    assert problem.risk(traj.final) < 0.9 * traj.initial_risk

    @jax.jit
    @jax.vmap
    def check(net):
        statement = bantzis.product_inequality
        return statement(problem, net), statement(problem, net, sharp=True)

    for found in check(traj.net):
        assert found.lhs.shape == (1201,)
        assert str(found).startswith("HOLDS") and "true in 1201 of 1201" in str(found)
        # Speed grows, and with it what is known.
        assert found.rhs[-1] < found.rhs[0] - 1


def test_product_inequality_is_an_equality_at_full_speed(monkeypatch):
    """Rank-one data and the targets along them: s = ‖X‖ ‖G‖."""
    problem, net = all_active(4)
    for sharp in (False, True):
        found = product_inequality(problem, net, sharp=sharp)
        assert abs(found.lhs) <= 1e-14 and abs(found.rhs) <= 1e-14
        assert found.verdict == "HOLDS"
    norm = gf.nets.norm
    monkeypatch.setattr("gfdyn.theory.bantzis._products.norm", lambda m: 0.99 * norm(m))
    assert afresh(bantzis.product_inequality, problem, net).verdict == "VIOLATED"


def test_product_inequality_without_speed_or_contraction():
    problem = regression()
    dead = gf.nets.MLP.from_weights([-jnp.ones((2, 3)) * 1e-9, jnp.zeros((2, 2))])
    for sharp in (False, True):
        found = product_inequality(problem, dead, sharp)
        assert found.verdict == "VACUOUS" and found.rhs == jnp.inf
    steep = gf.nets.MLP([3, 4, 4, 2], key=jax.random.key(0), activation="leaky_relu(30.0)")
    found = product_inequality(problem, steep)
    assert found.verdict == "ASSUMPTIONS NOT MET" and not found.holds
    assert str(found) == "ASSUMPTIONS NOT MET: not contracting"
    # The other form needs no assumption on the activation.
    assert product_inequality(problem, steep, sharp=True).verdict == "HOLDS"


def test_layer_count_against_numpy(monkeypatch):
    problem, net = example_one(), rank_two()
    x = np.asarray(problem.data.x)
    _, z = reference.forward([np.asarray(w) for w in net.weights], [0.0, 0.0], x)
    a = [x, *(np.maximum(zl, 0) for zl in z)]
    tails = [1 - np.linalg.norm(m, 2) ** 2 / np.sum(m**2) for m in a]
    for p in (0.2, 0.9):
        found = rank_one_layer_count(problem, net, p)
        bound = 2 * math.log(16) / (3 * p)
        assert int(found.rhs) == sum(t <= bound for t in tails)
        assert found.lhs == pytest.approx((1 - p) * 3)
        assert found.verdict == "VACUOUS"
    backwards = eqx.tree_at(lambda n: n.matrices[-1], net, jnp.ones((1, 1)))
    assert "not escaping" in str(rank_one_layer_count(problem, backwards))
    # Where nothing is lost, the threshold is 0, and all layers are below it.
    problem, net = all_active(4)
    found = rank_one_layer_count(problem, net, 0.25)
    assert (found.verdict, float(found.rhs), float(found.lhs)) == ("HOLDS", 4.0, 3.0)
    monkeypatch.setattr("gfdyn.theory.bantzis._products.tail", lambda m: jnp.asarray(0.1))
    assert afresh(bantzis.rank_one_layer_count, problem, net, 0.25).verdict == "VIOLATED"


@pytest.mark.parametrize("p", [0.0, 1.0, -1.0])
def test_layer_count_names_wrong_fractions(p):
    problem, net = all_active(2)
    with pytest.raises(ValueError, match=rf"p={p} must lie in \(0, 1\)"):
        bantzis.rank_one_layer_count(problem, net, p)
