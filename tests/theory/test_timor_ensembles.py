"""Timor, Vardi & Shamir, section 3: ensembles of the flow, and arguments."""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from timor_cases import net_of, problem_at

import gfdyn as gf
from gfdyn.theory import timor
from gfdyn.theory.timor import _ensemble


# Runs a chunk, the same everywhere: one program.
CHUNK = 128
TIME = 300.0


def run(problem, seed, runs=2 * CHUNK, **radii):
    starts = timor.random_pairs(jax.random.key(seed), runs, **radii)
    return starts, timor.flow_ends(problem, starts, TIME, chunk=CHUNK)


@eqx.filter_jit
def check(statement, problem, *nets):
    """The statement on each net of a stack."""
    return jax.vmap(partial(statement, problem))(*nets)


# --- Ensembles of the flow -------------------------------------------------------------


@pytest.fixture(scope="module", params=[95.0, 135.0])
def far(request):
    """Starts of Theorem 3."""
    radius = timor.far_radius(np.deg2rad(request.param))
    problem = problem_at(request.param, np.pi / 2)
    return problem, *run(problem, 0, w_radius=radius, v_radius=0.0)


@pytest.fixture(scope="module", params=[(105.0, 2.8), (150.0, 0.3)])
def small(request):
    """Starts of Theorem 2."""
    phi, psi = request.param
    radius = timor.rank_two_radius(np.deg2rad(phi))
    radii = {"w_radius": radius, "v_radius": 0.4999, "in_disc": True}
    problem = problem_at(phi, psi)
    return problem, *run(problem, 1, **radii)


def losses(problem, ends):
    """The paper's, in NumPy."""
    W, V = (np.asarray(w) for w in ends.net.weights)
    outputs = V @ np.maximum(W @ np.asarray(problem.data.x).T, 0)
    return np.sum((outputs - np.asarray(problem.data.y).T) ** 2, axis=(1, 2)) / 2


def test_theorem_3(far):
    problem, starts, ends = far
    assert np.all(ends.ok)
    fitted = losses(problem, ends) < 1e-10
    claims = check(timor.limit_is_far_from_rank_one, problem, ends.net, starts)
    assert claims.verdict == "HOLDS"
    matched = np.asarray(jax.vmap(partial(timor.is_matched, problem))(starts))
    np.testing.assert_array_equal(claims.applies.all(axis=1), matched)
    assert 20 <= matched.sum() < fitted.sum()
    # Not of every start; of one that has not moved it fails at once.
    assert not np.all(np.asarray(claims.holds)[~matched])
    still = check(timor.limit_is_far_from_rank_one, problem, starts, starts)
    assert still.verdict == "VIOLATED" and not still.holds[matched, 0].any()
    rank = check(gf.diagnostics.stable_rank, problem, ends.net)[matched, 0]
    assert np.min(rank) >= timor.far_stable_rank(timor.inputs_angle(problem))
    law = check(timor.limit_is_the_closed_form, problem, ends.net, starts)
    assert law.verdict == "HOLDS" and law.lhs.shape == (256, 9)


def test_theorem_2_and_lemmas_3_to_8(small):
    problem, starts, ends = small
    assert np.all(ends.ok)
    fitted = losses(problem, ends) < 1e-10
    assert 30 <= fitted.sum() <= 100
    claims = check(timor.limit_has_rank_two, problem, ends.net, starts)
    assert claims.verdict == "HOLDS"
    np.testing.assert_array_equal(claims.applies, fitted)
    assert np.min(np.asarray(claims.rhs)[fitted]) > 0.01
    for statement in (timor.matched_limit_bounds, timor.lone_neurons_are_reachable):
        found = check(statement, problem, ends.net, starts)
        assert found.verdict == "HOLDS", statement
        assert check(statement, problem, _scaled(ends.net, 9.0), starts).verdict == (
            "VIOLATED"
            if statement is timor.lone_neurons_are_reachable
            # No longer of zero loss
            else "ASSUMPTIONS NOT MET"
        )
    for statement in (timor.fitted_neuron_norms, timor.fit_has_no_dead_neuron):
        assert check(statement, problem, ends.net).verdict == "HOLDS", statement
    opposed = check(timor.low_rank_fit_is_opposed, problem, ends.net)
    assert opposed.verdict == "ASSUMPTIONS NOT MET"
    along = check(timor.lone_neurons_move_along_their_point, problem, starts)
    assert along.verdict == "HOLDS"


def _scaled(net, factor):
    return eqx.tree_at(lambda n: n.matrices[0], net, factor * net.matrices[0])


def test_lemma_5(small):
    """Neurons that are dead stay dead, and cost what one live neuron cannot fit."""
    problem, starts, ends = small
    frozen = check(timor.dead_neurons_are_frozen, problem, ends.net, starts)
    assert frozen.verdict == "HOLDS" and frozen.applies.sum() >= 4 * 10
    assert (
        check(
            timor.dead_neurons_are_frozen, problem, _scaled(ends.net, 2.0), starts
        ).verdict
        == "VIOLATED"
    )
    cost = check(timor.dead_neurons_cost, problem, ends.net)
    assert cost.verdict == "HOLDS" and cost.applies.sum() >= 50
    # It is reached, where the live neuron sees both points.
    gap = np.asarray(cost.rhs - cost.lhs)[np.asarray(cost.applies)]
    assert np.min(gap) <= 1e-8


def test_negative_control():
    """At the network of Theorem 1 the flow stands still: the bounds on the start matter."""
    problem = problem_at(120)
    net = timor.rank_one_net(problem)
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf] * CHUNK), net)
    ends = timor.flow_ends(problem, stack, TIME, chunk=CHUNK)
    for end, start in zip(ends.net.weights, stack.weights, strict=True):
        np.testing.assert_allclose(end, start, atol=1e-12)
    claim = timor.limit_has_rank_two(problem, net, net)
    assert claim.verdict == "ASSUMPTIONS NOT MET" and not claim.holds
    assert timor.low_rank_fit_is_opposed(problem, net).verdict == "HOLDS"
    twins = net_of(np.ones((2, 2)), np.ones((2, 2)))
    assert not timor.low_rank_fit_is_opposed(problem, twins).holds


def test_lemma_7_sees_a_kink():
    """Neurons that see both points may go anywhere; then it does not apply."""
    problem = problem_at(120)
    both = net_of([[0.5, 1.0], [0.1, 1.0]], [[1.0, 0.2], [0.3, -1.0]])
    claim = timor.lone_neurons_move_along_their_point(problem, both)
    assert claim.verdict == "ASSUMPTIONS NOT MET" and not np.any(claim.holds)


def test_balance(far):
    """Conserved by the flow, and decaying with the weights; by descent at first order."""
    problem, starts, ends = far
    balanced = partial(timor.neurons_stay_balanced, tolerance=1e-7)
    assert check(balanced, problem, ends.net, starts).verdict == "HOLDS"
    assert check(balanced, problem, _scaled(ends.net, 1.01), starts).verdict == "VIOLATED"
    start = net_of([[0.3, -0.2], [-0.4, 0.1]], [[0.2, 0.1], [0.0, 0.3]])
    decay, rate, steps = 0.05, 1e-3, 3000
    end: Any = gf.descend(
        problem, start, rate, steps, weight_decay=decay, save_every=steps
    ).final
    balanced = partial(
        timor.neurons_stay_balanced, problem, end, start, time=rate * steps, tolerance=1e-3
    )
    assert balanced(weight_decay=decay).verdict == "HOLDS"
    assert balanced(weight_decay=1.2 * decay).verdict == "VIOLATED"
    linear = gf.nets.MLP.from_weights([jnp.ones((2, 2))])
    with pytest.raises(ValueError, match="net has no hidden layer, and so no neuron"):
        timor.neurons_stay_balanced(problem, linear, linear)
    wider = gf.nets.MLP([2, start.weights[0].shape[0] + 1, 2], key=jax.random.key(0))
    with pytest.raises(ValueError, match="give the net that the flow started from"):
        timor.neurons_stay_balanced(problem, end, wider)
    with pytest.raises(ValueError, match="tolerance=-1.0 must be 0 or more"):
        timor.neurons_stay_balanced(problem, end, start, tolerance=-1.0)


def test_ends_are_those_of_single_solves(far):
    """Of the first and the last chunk, which overlaps the one before."""
    problem, starts, _ = far
    some = jax.tree.map(lambda leaf: leaf[: CHUNK + 3], starts)
    before = programs()
    ends = timor.flow_ends(problem, some, TIME, chunk=CHUNK)
    assert programs() == before == 1
    assert len(ends.risk) == CHUNK + 3 and set(ends.stats) >= {"num_steps", "num_slides"}
    solver = gf.solvers.ExactKinks(rtol=1e-8, atol=1e-12)
    for i in (0, CHUNK - 1, CHUNK + 2):
        traj = gf.solve(
            gf.GradientFlow(problem),
            jax.tree.map(lambda leaf, i=i: leaf[i], starts),
            ts=[20.0, 40.0, 60.0],
            solver=solver,
        )
        for one, all_ in zip(traj.final.weights, ends.net.weights, strict=True):
            np.testing.assert_allclose(all_[i], one, atol=1e-5)
    with pytest.raises(ValueError, match="chunk=0 must be 1 or more runs at once"):
        timor.flow_ends(problem, some, TIME, chunk=0)


def programs() -> int:
    """How often the flow of a chunk was compiled."""
    jitted: Any = _ensemble._flow_chunk
    return jitted._cached._cache_size()


def test_descent_is_that_of_numpy():
    problem = problem_at(120)
    starts = timor.random_pairs(jax.random.key(0), 4, w_radius=0.4, v_radius=0.3)
    W, V = (np.asarray(w) for w in starts.weights)
    x, y = np.asarray(problem.data.x).T, np.asarray(problem.data.y).T
    for _ in range(300):
        hidden = np.maximum(W @ x, 0)
        residual = V @ hidden - y
        slope_W = ((W @ x > 0) * (V.swapaxes(1, 2) @ residual)) @ x.T
        W, V = W - 0.01 * slope_W, V - 0.01 * residual @ hidden.swapaxes(1, 2)
    ends = timor.descent_ends(problem, starts, 0.01, 300)
    np.testing.assert_allclose(ends.weights[0], W, atol=1e-12)
    np.testing.assert_allclose(ends.weights[1], V, atol=1e-12)


def test_random_pairs():
    nets = timor.random_pairs(jax.random.key(0), 4000, w_radius=0.5, v_radius=2.0)
    W, V = (np.asarray(w) for w in nets.weights)
    np.testing.assert_allclose(np.linalg.norm(W, axis=2), 0.5, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(V, axis=1), 2.0, rtol=1e-12)
    assert np.all(np.abs(np.mean(W, axis=0)) <= 4 * 0.5 / np.sqrt(2 * 4000))
    discs = timor.random_pairs(
        jax.random.key(0), 4000, w_radius=0.5, v_radius=2.0, in_disc=True
    )
    squares = np.sum(np.asarray(discs.weights[0]) ** 2, axis=2) / 0.25
    assert abs(np.mean(squares) - 0.5) <= 4 / np.sqrt(12 * 8000)


# --- Arguments -------------------------------------------------------------------------


def test_random_pairs_ask_for_a_key_and_a_number(unhooked):
    pairs: Any = partial(timor.random_pairs, w_radius=0.5, v_radius=2.0)
    for runs in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"runs={runs} must be an integer of at least"):
            pairs(jax.random.key(0), runs)
    with pytest.raises(TypeError, match="key=7 is not one random key"):
        pairs(7, 3)


def test_other_settings_are_refused():
    problem = problem_at(120)
    wide = gf.nets.MLP([2, 3, 2], key=jax.random.key(0))
    leaky = gf.nets.MLP([2, 2, 2], key=jax.random.key(0), activation="leaky_relu(0.1)")
    for net in (wide, leaky):
        with pytest.raises(ValueError, match="is about two hidden ReLU neurons"):
            timor.cones(problem, net)
    three = gf.Problem(gf.Dataset(np.ones((3, 2)), np.ones((3, 2))), gf.losses.squared)
    with pytest.raises(ValueError, match=r"problem has inputs \(3, 2\), targets \(3, 2\)"):
        timor.data_assumptions(three)
    labels = gf.Problem(gf.Dataset(np.eye(2), np.ones((2, 1))), gf.losses.logistic)
    with pytest.raises(ValueError, match=r"targets \(2, 1\) and the loss"):
        timor.inputs_angle(labels)


def test_assumptions_on_the_data():
    def met(x, y):
        problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
        return {name: bool(ok) for name, ok in timor.data_assumptions(problem).items()}

    x, y = problem_at(120).data.x, problem_at(120).data.y
    assert met(x, y) == {"A1": True, "A2": True}
    assert met(2 * x, 2 * y) == {"A1": False, "A2": False}
    assert met(x, np.array([[1.0, 0], [-1, 0]])) == {"A1": False, "A2": True}
    for phi in (80.0, 180.0):
        assert met(problem_at(phi).data.x, y) == {"A1": True, "A2": False}
    problem = problem_at(120, 0.7)
    np.testing.assert_allclose(timor.inputs_angle(problem), np.deg2rad(120))
    np.testing.assert_allclose(timor.targets_angle(problem), 0.7)


def test_points_turn():
    """Figure 1's: the rotation turns the inputs alone."""
    expected = np.array([[1, 0.99], [-1, 0.99]]) / np.hypot(1, 0.99)
    phi = np.arccos(expected[0] @ expected[1])
    data = gf.data.two_points(phi, np.pi / 2, rotation=np.arctan(0.99))
    np.testing.assert_allclose(data.x, expected, atol=1e-15)
    np.testing.assert_allclose(data.y, np.eye(2), atol=1e-15)
    with pytest.raises(ValueError, match="rotation=inf must be finite: give it in radians"):
        gf.data.two_points(2.0, 1.0, math.inf)


def test_single_precision():
    """What goes in in float32 comes out so, and the checks hold."""
    problem = problem_at(120.0, dtype=np.float32)
    x = problem.data.x
    start = gf.nets.MLP.from_weights([0.1 * (x - x[::-1]), jnp.zeros((2, 2), np.float32)])

    @jax.jit
    def claims_of(problem, start):
        limit = timor.matched_limit(problem, start)
        return limit, [
            timor.limit_is_far_from_rank_one(problem, limit, start),
            timor.matched_limit_bounds(problem, limit, start),
            timor.lone_neurons_are_reachable(problem, limit, start),
            timor.fitted_neuron_norms(problem, limit),
            timor.limit_is_the_closed_form(problem, limit, start),
            timor.rank_one_net_fits(problem),
        ]

    limit, claims = claims_of(problem, start)
    assert limit.weights[0].dtype == np.float32
    for claim in claims:
        assert claim.verdict == "HOLDS" and claim.lhs.dtype == np.float32, claim
    assert math.isfinite(timor.escape_time(np.float32(1e-4), np.float32(0.5)))
