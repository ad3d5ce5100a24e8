"""Bantzis, Simon & Jacot, Theorem 3.1, Proposition 3.3, Lemma A.6."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from bantzis_cases import escape_speed, escaping, rank_two, regression
from fixtures import all_active, all_active_speed, biased_net, example_one

import gfdyn as gf
from gfdyn.theory import bantzis


rank_one_layers = jax.jit(bantzis.rank_one_layers, static_argnames=("sharp", "tolerance"))
near_rank_one_input = jax.jit(bantzis.near_rank_one_input, static_argnames="layer")
near_rank_one_gain = jax.jit(bantzis.near_rank_one_gain, static_argnames="layer")
near_rank_one_speed = jax.jit(bantzis.near_rank_one_speed)
nonnegative_singular_pair = jax.jit(bantzis.nonnegative_singular_pair)


# --- Theorem 3.1: deep layers ----------------------------------------------------------


def test_constants_of_example_1():
    problem = example_one()
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
    problem, net = example_one(), rank_two()
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
    u, v = np.ones(4), np.ones(len(problem.data.x))
    for speed in (-0.5, 0.0, np.nan):
        with pytest.raises(ValueError, match=f"optimal_speed={speed} must be positive"):
            bantzis.near_rank_one_speed(problem, speed, u, v)


def test_the_tolerance_of_a_speed_is_not_negative():
    """An infinite one takes any speed for the optimal one."""
    problem, net = all_active(2)
    for tolerance in (-1e-6, np.nan):
        with pytest.raises(ValueError, match=f"tolerance={tolerance} must be 0 or more"):
            bantzis.rank_one_layers(problem, net, 0.5, tolerance=tolerance)
    found = rank_one_layers(problem, net, 1e3, tolerance=np.inf)
    assert bool(jnp.all(found.assumptions["optimal"]))


def test_nets_of_other_kinds_are_named(unhooked):
    with pytest.raises(TypeError, match="net is a BiasedNet"):
        bantzis.product_inequality(
            regression(),
            biased_net((3, 4, 2)),  # pyright: ignore[reportArgumentType]
        )
    net = gf.nets.MLP([4, 4, 2], key=jax.random.key(0))
    with pytest.raises(ValueError, match="net has 4 inputs but the data have 3"):
        bantzis.product_inequality(regression(), net)


# --- Proposition 3.3: inputs of rank nearly one ----------------------------------------


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
    # Nor is a speed that is not s* seen, if it is closer than the bound.
    for part, verdict in (0.9, "HOLDS"), (1.1, "VIOLATED"):
        other = near_rank_one_speed(problem, best + part * loss, u, v)
        assert other.verdict == verdict
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


# --- Lemma A.6 -------------------------------------------------------------------------


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
