"""Statements of Bantzis, Simon & Jacot: against NumPy, on random nets, along trajectories.

Each is also made to fail once, by a wrong number in the right place.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from fixtures import (
    all_active,
    all_active_speed,
    biased_net,
    linear_escape,
    linear_problem,
    rows,
    tight,
)

import gfdyn as gf
from gfdyn.theory import Check, bantzis
from gfdyn.theory._check import at_most, equal


# One program a shape; `afresh` where something is replaced, uncompiled where refused.
product_inequality = jax.jit(bantzis.product_inequality, static_argnames="sharp")
rank_one_layers = jax.jit(bantzis.rank_one_layers, static_argnames=("sharp", "tolerance"))
near_rank_one_input = jax.jit(bantzis.near_rank_one_input, static_argnames="layer")
near_rank_one_gain = jax.jit(bantzis.near_rank_one_gain, static_argnames="layer")
near_rank_one_speed = jax.jit(bantzis.near_rank_one_speed)
explosion_law = jax.jit(bantzis.explosion_law, static_argnames="tolerance")
balance_law = jax.jit(bantzis.balance_law)
output_bound = jax.jit(bantzis.output_bound)
deepening_never_loses = jax.jit(bantzis.deepening_never_loses)
rank_one_layer_count = jax.jit(bantzis.rank_one_layer_count)
nonnegative_singular_pair = jax.jit(bantzis.nonnegative_singular_pair)
escape_speed = jax.jit(gf.diagnostics.escape_speed)


def afresh(statement, *arguments):
    """Compiled anew, with what the test has put in the place of a part of it."""
    return jax.jit(lambda *given: statement(*given))(*arguments)


def regression(seed=0, n=7, d=3, k=2):
    rng = np.random.default_rng(seed)
    data = gf.Dataset(rng.normal(size=(n, d)), rng.normal(size=(n, k)))
    return gf.Problem(data, gf.losses.squared)


def circle():
    """Example 1, whose G is (−1)^j."""
    return gf.Problem(gf.data.circle(8), gf.losses.squared, reduction="sum")


def rank_two():
    """The optimal direction of Example 1 at depth 3, of speed 1/2 (W_3 = −1)."""
    first = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]]) / 2
    second = np.array([[1.0, -1, 1, -1]]) / 2
    return gf.nets.MLP.from_weights([first, second, np.array([[-1.0]])])


def escaping(problem, widths, seed=0):
    """A random net with L₀ < 0, which is odd in W_L."""
    weights = reference.random_weights(widths, seed)
    x, g = np.asarray(problem.data.x), np.asarray(problem.cost_gradient_at_zero)
    outputs, _ = reference.forward(weights, [0.0] * (len(weights) - 1), x)
    weights[-1] *= -np.sign(np.sum(g * outputs))
    return gf.nets.MLP.from_weights(weights)


# --- Checks ---------------------------------------------------------------------------


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


# --- Proposition 3.4: products of stable ranks ----------------------------------------


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
    problem, net = circle(), rank_two()
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


# --- Theorem 3.1: deep layers ---------------------------------------------------------


def test_constants_of_example_1():
    problem = circle()
    assert bantzis.speed_ratio(problem, 0.5) == pytest.approx(16, rel=1e-14)
    c = 16 * math.sqrt(2 * math.log(16))
    assert bantzis.rank_one_constant(problem, 0.5) == pytest.approx(c, rel=1e-14)
    assert c == pytest.approx(37.6771, abs=5e-5)
    depth = bantzis.non_vacuous_depth(problem, 0.5)
    assert depth == pytest.approx(114984.8, abs=0.05)
    # XXᵀ = 4 I, so that ‖X‖_op = 2 = ‖X‖_F/√2.
    sharp = math.sqrt(128) * math.sqrt(math.log(128))
    assert bantzis.rank_one_constant(problem, 0.5, sharp=True) == pytest.approx(sharp)
    layers = np.array([1e3, 2e3, 114984.0, 114985.0, 1e8])
    bound = bantzis.rank_one_bound(problem, 0.5, layers)
    expected = 8 * c / (np.sqrt(layers) - c)
    np.testing.assert_allclose(bound, np.where(layers < 1500, np.inf, expected), rtol=1e-12)
    assert bound[2] > 1 > bound[3]


def test_theorem_on_the_optimum_of_example_1():
    problem, net = circle(), rank_two()
    for sharp in (False, True):
        found = rank_one_layers(problem, net, 0.5, sharp)
        assert found.verdict == "VACUOUS" and found.lhs.shape == (7,)
        # Ranks 2, 1, 1 of W, 4 and 1 of Z^σ
        weights = [np.asarray(w) for w in net.weights]
        _, z = reference.forward(weights, [0.0, 0.0], np.asarray(problem.data.x))
        tails = [reference.tail(m) for m in [*weights, *(np.maximum(v, 0) for v in z)]]
        lost = reference.nonlinearity(weights, [0.0, 0.0], np.asarray(problem.data.x))
        np.testing.assert_allclose(found.lhs, [*tails, *lost], atol=1e-14)
        np.testing.assert_allclose(found.lhs[:3], [0.5, 0, 0], atol=1e-14)
    slower = rank_one_layers(problem, net, 0.51)
    assert slower.verdict == "ASSUMPTIONS NOT MET" and "not optimal in 7 of 7" in str(
        slower
    )


def test_theorem_where_it_says_something():
    """At κ = 1 all layers have rank one exactly: true of the optimum, not of its like."""
    problem, net = all_active(4)
    speed = all_active_speed(problem)
    assert bantzis.speed_ratio(problem, speed) == pytest.approx(1, rel=1e-14)
    for sharp in (False, True):
        found = rank_one_layers(problem, net, speed, sharp)
        assert found.verdict == "HOLDS" and bool(jnp.all(found.holds))
        assert bool(jnp.all(found.rhs[1:4] <= 1e-5))
        # The safe form has no claim on W_1 and on Z_1.
        vacuous = [0, 7] if sharp else []
        assert np.flatnonzero(found.vacuous).tolist() == vacuous
    _, other = all_active(4, noise=0.3)
    assert "not optimal" in str(rank_one_layers(problem, other, speed))
    found = rank_one_layers(problem, other, speed)
    found = eqx.tree_at(lambda c: c.assumptions["optimal"], found, jnp.asarray(True))
    assert found.verdict == "VIOLATED"


def test_wrong_speed_is_named():
    problem, net = all_active(2)
    with pytest.raises(ValueError, match=r"optimal_speed=-0.5 must be positive: s\* ="):
        bantzis.rank_one_layers(problem, net, -0.5)


def test_nets_of_other_kinds_are_named(unhooked):
    with pytest.raises(TypeError, match="net is a BiasedNet"):
        bantzis.product_inequality(
            regression(),
            biased_net((3, 4, 2)),  # pyright: ignore[reportArgumentType]
        )
    net = gf.nets.MLP([4, 4, 2], key=jax.random.key(0))
    with pytest.raises(ValueError, match="net has 4 inputs but the data have 3"):
        bantzis.product_inequality(regression(), net)


# --- Proposition 3.3: inputs of rank nearly one ---------------------------------------


def near_rank_one(epsilon, depth, seed=0):
    """Inputs v uᵀ + E, ‖E‖_F = ε, and the optimal net at ε = 0."""
    rng = np.random.default_rng(seed)
    u, v, y = rng.normal(size=5), rng.uniform(0.2, 1, 8), rng.normal(size=(8, 2))
    noise = rng.normal(size=(8, 5))
    x = np.outer(v, u) + epsilon * noise / np.linalg.norm(noise)
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    gv = -(y / 8).T @ v
    e = np.eye(3)[0]
    first, last = np.outer(e, u) / np.linalg.norm(u), np.outer(-gv, e) / np.linalg.norm(gv)
    net = gf.nets.MLP.from_weights([first, *[np.outer(e, e)] * (depth - 2), last])
    return problem, net, u, v, y / 8


def test_inputs_of_rank_one():
    """s* = ‖Gv‖ ‖u‖, and the bound is 0."""
    problem, net, u, v, g = near_rank_one(0.0, 3)
    speed = np.linalg.norm(g.T @ v) * np.linalg.norm(u)
    assert escape_speed(problem, net) == pytest.approx(speed, rel=1e-13)
    for given in ((None, None), (u, v), (2 * u, v / 2)):
        found = near_rank_one_input(problem, net, 0, *given)
        assert found.verdict == "HOLDS" and np.max(found.rhs) <= 1e-13
        assert found.lhs.shape == (7,)
    assert near_rank_one_speed(problem, speed, u, v).verdict == "HOLDS"
    assert near_rank_one_speed(problem, 1.01 * speed, u, v).verdict == "VIOLATED"
    gain = near_rank_one_gain(problem, net)
    assert gain.verdict == "HOLDS"
    np.testing.assert_allclose(gain.lhs, 1, rtol=1e-13)
    # What is slower need not be of rank one, nor lose nothing.
    slower = escaping(problem, [5, 3, 3, 2])
    for statement in (near_rank_one_input, near_rank_one_gain):
        found = statement(problem, slower)
        assert "not fast" in str(found)
        pretended = jnp.ones_like(found.assumptions["fast"])
        found = eqx.tree_at(lambda c: c.assumptions["fast"], found, pretended)
        assert found.verdict == "VIOLATED"


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_inputs_of_rank_nearly_one(epsilon):
    problem, net, u, v, g = near_rank_one(epsilon, 3)
    speed = float(escape_speed(problem, net))
    loss = np.linalg.norm(g) * epsilon
    bound = 8 * loss / (speed - loss)
    given = near_rank_one_input(problem, net, 0, u, v)
    np.testing.assert_allclose(given.rhs, bound, rtol=1e-10)
    assert bound < 1 and given.verdict == "HOLDS"
    # The split that is found loses no more.
    found = near_rank_one_input(problem, net)
    assert found.verdict == "HOLDS" and np.all(found.rhs <= given.rhs)
    best = np.linalg.norm(g.T @ v) * np.linalg.norm(u)
    between = near_rank_one_speed(problem, speed, u, v)
    assert float(between.lhs) == pytest.approx(abs(speed - best), rel=1e-8)
    assert float(between.rhs) == pytest.approx(loss, rel=1e-10)
    assert between.verdict == "HOLDS"
    gain = near_rank_one_gain(problem, net, 0, u, v)
    assert gain.lhs[0] == pytest.approx(1 - 2 * loss / best, rel=1e-12)
    assert gain.verdict == "HOLDS"
    negative = near_rank_one_input(problem, net, 0, u, -v)
    assert "not nonnegative" in str(negative)


def test_representations_of_rank_one():
    """From its first one on, those of a deepened net are, and the bound is 0."""
    problem = regression(k=1)
    net = jax.jit(gf.escape.deepen, static_argnums=2)(
        problem, escaping(problem, [3, 5, 5, 1]), 2
    )
    for layer, width in ((2, 7), (4, 1)):
        found = near_rank_one_input(problem, net, layer)
        assert found.lhs.shape == (width,) and np.max(found.rhs) <= 1e-12
        assert found.verdict == "HOLDS"
        uneven = eqx.tree_at(lambda n: n.matrices[-1], net, replace_fn=lambda w: 7.0 * w)
        again = near_rank_one_input(problem, uneven, layer)
        np.testing.assert_allclose(again.rhs, found.rhs, atol=1e-13)


def test_near_rank_one_names_wrong_arguments():
    problem, net = all_active(3)
    with pytest.raises(ValueError, match=r"layer=3 must lie in 0..2"):
        bantzis.near_rank_one_input(problem, net, 3)
    with pytest.raises(ValueError, match="u and v belong together"):
        bantzis.near_rank_one_input(problem, net, u=np.ones(4))
    with pytest.raises(ValueError, match=r"u has shape \(3,\) and v \(6,\); they must be"):
        bantzis.near_rank_one_gain(problem, net, u=np.ones(3), v=np.ones(6))


# --- Lemma A.6 ------------------------------------------------------------------------


def blocks():
    """Two blocks with one top singular value, 2: any mixture of their vectors is one."""
    matrix = np.zeros((4, 5))
    matrix[:2, :2], matrix[2:, 2:] = 1.0, math.sqrt(2 / 3)
    return matrix


@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(4),
        blocks(),
        np.zeros((3, 2)),
        np.full((2, 3), 1e-200),
        np.random.default_rng(0).uniform(size=(6, 3)),
        np.maximum(np.random.default_rng(1).normal(size=(4, 7)), 0),
        np.diag([1.0, 1 - 1e-12, 0.5]),
        np.array([[0.0, 0.0], [3.0, 0.0]]),
    ],
    ids=["eye", "blocks", "zeros", "tiny", "positive", "relu", "near", "one"],
)
def test_nonnegative_singular_pairs(matrix, monkeypatch):
    found = nonnegative_singular_pair(jnp.asarray(matrix))
    u, s, v = (np.asarray(each) for each in found)
    top = np.linalg.norm(matrix, 2)
    assert s == pytest.approx(top, rel=1e-14)
    assert np.min(u) >= 0 and np.min(v) >= 0
    assert np.linalg.norm(u) == pytest.approx(1) == np.linalg.norm(v)
    size = max(top, 1e-300)
    np.testing.assert_allclose(matrix @ v / size, top / size * u, atol=1e-12)
    np.testing.assert_allclose(matrix.T @ u / size, top / size * v, atol=1e-12)
    matrix = jnp.asarray(matrix)
    assert bantzis.singular_pair_is_nonnegative(matrix).verdict == "HOLDS"
    for wrong in ((-u, s, v), (u, s, -v), (np.roll(u, 1) + 0.1, s, v)):
        monkeypatch.setattr(
            "gfdyn.theory.bantzis._rank_one.nonnegative_singular_pair",
            lambda _, wrong=wrong: tuple(jnp.asarray(each) for each in wrong),
        )
        found = bantzis.singular_pair_is_nonnegative(matrix)
        assert found.verdict == "VIOLATED" or top == 0


def test_mixed_vectors_of_blocks_are_mended(monkeypatch):
    """A singular vector that takes the two blocks with opposite signs."""
    mixed = np.concatenate([np.ones(2) / 2, -np.ones(3) / math.sqrt(6)])
    monkeypatch.setattr(
        jnp.linalg, "svd", lambda a, **_: (None, None, jnp.asarray(mixed)[None])
    )
    u, s, v = bantzis.nonnegative_singular_pair(jnp.asarray(blocks()))
    assert s == pytest.approx(2, rel=1e-14)
    np.testing.assert_allclose(blocks().T @ np.asarray(u), 2 * np.asarray(v), atol=1e-14)


def test_negative_entries_are_named():
    with pytest.raises(ValueError, match="negative entries, the least -1.0"):
        bantzis.nonnegative_singular_pair(jnp.asarray([[1.0, -1.0]]))
    traced = jax.jit(bantzis.singular_pair_is_nonnegative)(jnp.asarray([[1.0, -1.0]]))
    assert traced.verdict == "ASSUMPTIONS NOT MET"


# --- Proposition 2.2: the explosion ---------------------------------------------------


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
    problem, net = circle(), rank_two()
    plain = jax.jit(jax.grad(problem.localized_risk))(net)
    assert float(gf.nets.norm(jax.tree.map(lambda g, w: g + w / 2, plain, net))) > 0.7
    radii = jnp.log(jnp.asarray([1.0, 2.0, 4.0]))
    law = gf.escape.log_escape_time(3, 0.5, 0.0, radii)
    assert explosion_law(problem, net, radii, law).verdict == "HOLDS"


# --- Balance, outputs, depth, speed ---------------------------------------------------


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


def test_escape_directions_are_balanced(monkeypatch):
    """Exactly at the optimum of Example 1, and as far as the residual says elsewhere."""
    balance = jax.jit(bantzis.escape_direction_balance)
    problem, net = circle(), rank_two()
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
    found = bantzis.optimal_speed_bounds(circle(), 0.5)
    np.testing.assert_allclose(found.lhs, [0, 0.5], atol=1e-15)
    np.testing.assert_allclose(found.rhs, [0.5, 2 * math.sqrt(8)], rtol=1e-14)
    assert found.verdict == "HOLDS"
    problem, a = linear_problem()
    speed = float(escape_speed(problem, linear_escape(a, 3)))
    assert bantzis.optimal_speed_bounds(problem, speed).verdict == "HOLDS"
    assert bantzis.optimal_speed_bounds(problem, 0.49 * speed).verdict == "VIOLATED"
    assert bantzis.optimal_speed_bounds(problem, 100.0).verdict == "VIOLATED"


# --- Precision ------------------------------------------------------------------------


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
