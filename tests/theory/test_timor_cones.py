"""Timor, Vardi & Shamir, section 3: cones, sets, networks, the log of cones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from timor_cases import net_of, problem_at

import gfdyn as gf
from gfdyn.theory import timor


GOLDEN = "tests/golden_timor/fig1.npz"


# --- Cones and sets --------------------------------------------------------------------


@pytest.mark.parametrize("phi", [91, 120, 170])
def test_cones(phi):
    problem = problem_at(phi)
    nets = timor.random_pairs(jax.random.key(0), 5000, w_radius=1.0, v_radius=0.0)
    codes = np.asarray(jax.vmap(partial(timor.cones, problem))(nets))
    sees = np.einsum("rnd,pd->rnp", nets.weights[0], problem.data.x) > 0
    np.testing.assert_array_equal(codes, sees @ np.array([1, 2]))
    openings = np.asarray(timor.cone_openings(problem))
    np.testing.assert_allclose(np.rad2deg(openings), [180 - phi, phi, phi, 180 - phi])
    frequency = np.bincount(codes.ravel(), minlength=4) / codes.size
    expected = openings / (2 * np.pi)
    error = np.sqrt(expected * (1 - expected) / codes.size)
    assert np.all(np.abs(frequency - expected) <= 3 * error)
    matched = np.asarray(jax.vmap(partial(timor.is_matched, problem))(nets))
    np.testing.assert_array_equal(matched, np.sort(codes, axis=1) @ [10, 1] == 12)


@pytest.mark.parametrize("point", [0, 1])
def test_reachable_set_is_that_of_the_paper(point):
    """{w + λ x_i: w in T_i or U_i}, T_i = S_i ∩ ball, U_i = border of S_i without D."""
    problem, radius, phi = problem_at(110), 0.4, np.deg2rad(110)
    x = np.asarray(problem.data.x)
    own, other = x[point], x[1 - point]
    rng = np.random.default_rng(0)
    lam = rng.exponential(size=4000)[:, None]
    ball = radius * np.sqrt(rng.uniform(size=(4000, 1)))
    turns = rng.uniform(0, 2 * np.pi, size=4000)
    ball = ball * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    ball = ball[(ball @ own > 0) & (ball @ other <= 0)]
    # The ray orthogonal to the other point; the one orthogonal to x_i is in D.
    edge = own - (own @ other) * other
    ray = rng.exponential(size=(1000, 1)) * edge / np.linalg.norm(edge)
    starts = np.concatenate([ball, ray])
    reached = jnp.asarray(starts + lam[: len(starts)] * own)
    p, r = timor.point_coordinates(problem, reached, point)
    assert np.all(timor.in_reachable_set(p, r, phi=phi, radius=radius, slack=1e-12))
    # Of any point of the plane: going back along x_i, it meets the ball within S_i, or
    # leaves S_i elsewhere than into D.
    points = rng.normal(size=(1000, 2))
    back = points[:, None, :] - np.linspace(0, 6, 3001)[:, None] * own
    inside = (back @ own > 0) & (back @ other <= 0)
    meets = np.any(inside & (np.linalg.norm(back, axis=2) <= radius), axis=1)
    first_out = np.argmin(inside, axis=1)
    out = back[np.arange(len(points)), first_out]
    expected = inside[:, 0] & (meets | (out @ other > 0))
    p, r = timor.point_coordinates(problem, jnp.asarray(points), point)
    np.testing.assert_allclose(p, points @ own, atol=1e-14)
    got = np.asarray(timor.in_reachable_set(p, r, phi=phi, radius=radius))
    # The steps back are 0.002 long.
    clear = np.abs(np.abs(r) - radius) > 1e-2
    np.testing.assert_array_equal(got[clear], expected[clear])
    limits = timor.in_limit_set(p, r, phi=phi, radius=radius, imbalance=-0.19)
    np.testing.assert_array_equal(limits, got & (np.hypot(p, r) >= 0.9))


@pytest.mark.parametrize("w, v", [(0.5, 2.0), (2.0, 0.5), (0.95, 1.1), (0.5, 0.6)])
def test_the_limit_set_is_where_lemma_8_holds(w, v):
    """Norms |w_i| and |v_i|, with an imbalance beyond ±1 at first: it asks nothing then."""
    problem = problem_at(120)
    x, y = (np.asarray(a) for a in (problem.data.x, problem.data.y))
    net = net_of(w * x, v * y.T)
    expected = w**2 >= 1 - abs(w**2 - v**2)
    norms = timor.fitted_neuron_norms(problem, net).holds[:, 2]
    assert norms.tolist() == [expected, expected]
    for point in (0, 1):
        p, r = timor.point_coordinates(problem, net.weights[0][point], point)
        sets: dict[str, float] = {"phi": np.deg2rad(120), "radius": 0.1}
        assert timor.in_limit_set(p, r, imbalance=w**2 - v**2, **sets) == expected


@pytest.mark.parametrize("point", [-1, 2])
def test_there_are_two_points(point):
    with pytest.raises(ValueError, match=f"point={point} must be 0 or 1: x_1 or x_2"):
        timor.point_coordinates(problem_at(120), jnp.ones(2), point)


# --- Networks --------------------------------------------------------------------------


def test_rank_one_nets_fit_anything():
    """Theorem 1 on 1000 data sets; relu(WX) is the diagonal matrix of |x_j| (1 − cos φ)."""
    x, y = np.random.default_rng(0).normal(size=(2, 1000, 2, 2))

    @jax.jit
    @jax.vmap
    def build(x, y):
        problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
        return timor.rank_one_net(problem), timor.rank_one_net_fits(problem)

    nets, claims = build(x, y)
    assert claims.verdict == "HOLDS" and bool(jnp.all(claims.holds))
    W, V = (np.asarray(w) for w in nets.weights)
    assert np.all(np.linalg.matrix_rank(W, tol=1e-12) == 1)
    hidden = np.maximum(W @ x.swapaxes(1, 2), 0)
    residual = np.abs(V @ hidden - y.swapaxes(1, 2)).max(axis=(1, 2))
    assert np.all(residual <= 1e-12 * np.abs(V).max(axis=(1, 2)))
    lengths = np.linalg.norm(x, axis=2)
    cosine = np.sum(x[:, 0] * x[:, 1], axis=1) / lengths.prod(axis=1)
    diagonal = (lengths * (1 - cosine)[:, None])[..., None] * np.eye(2)
    np.testing.assert_allclose(hidden, diagonal, atol=1e-13 * lengths.max())


def test_rank_one_net_of_opposite_and_of_parallel_points():
    opposite = gf.Problem(gf.Dataset([[1.0, 2], [-2, -4]], np.eye(2)), gf.losses.squared)
    net = timor.rank_one_net(opposite)
    np.testing.assert_allclose(opposite.outputs(net), np.eye(2), atol=1e-15)
    for x in ([[1.0, 0], [2.0, 0]], [[0.0, 0], [1.0, 0]]):
        problem = gf.Problem(gf.Dataset(x, np.eye(2)), gf.losses.squared)
        with pytest.raises(ValueError, match="lie on one ray, or one of them at 0: no net"):
            timor.rank_one_net(problem)


def test_interpolating_net():
    """Lemma 2: three of five neurons see a sample alone; the others see what they see."""
    rng = np.random.default_rng(0)
    x = np.eye(3, 4) + 0.1 * rng.normal(size=(3, 4))
    own = np.linalg.solve(x @ x.T, 2 * np.eye(3) - np.ones((3, 3))) @ x
    first = jnp.asarray(np.concatenate([own, rng.normal(size=(2, 4))]))
    problem = gf.Problem(gf.Dataset(x, rng.normal(size=(3, 2))), gf.losses.squared)
    net = timor.interpolating_net(problem, first)
    np.testing.assert_allclose(problem.outputs(net), problem.data.y, atol=1e-12)
    with pytest.raises(ValueError, match="no row of first sees sample 1 alone; Lemma 2"):
        timor.interpolating_net(problem, first.at[1].set(first[0]))
    with pytest.raises(ValueError, match=r"first has shape \(5, 3\), must have 4 columns"):
        timor.interpolating_net(problem, first[:, 1:])


# --- The log of cones ------------------------------------------------------------------


def test_cone_log():
    """A run of Figure 1 that slides, another that crosses, against saves of a solve."""
    X = np.array([[1.0, -1.0], [0.99, 0.99]]) / np.hypot(1.0, 0.99)
    problem = gf.Problem(gf.Dataset(X.T, np.eye(2)), gf.losses.squared, reduction="sum")
    with np.load(GOLDEN) as file:
        starts = file["W_start"], file["V_start"]
    kinds = []
    for i in range(12):
        start = net_of(starts[0][i], starts[1][i])
        log = timor.cone_log(problem, start, 60.0, capacity=8)
        assert len(log.on) == len(log.time) + 1 == len(log.cones)
        assert np.all(np.diff(log.time) >= 0)
        # The masks of the start, and one change an event, of that neuron and point
        first = np.asarray(start.weights[0]) @ X > 0
        np.testing.assert_array_equal(log.on[0], first)
        state = np.asarray(log.on) + 0.5 * np.asarray(log.sliding)
        for event, change in enumerate(np.diff(state, axis=0)):
            where = np.argwhere(change)
            assert where.tolist() == [[log.neuron[event], log.point[event]]]
            slides = bool(np.asarray(log.sliding)[event + 1][tuple(where[0])])
            kind = gf.Kinks.kinds[int(log.kind[event])]
            assert slides == (kind == "slide")
            kinds.append(kind)
    assert {"crossing"} < set(kinds)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_cone_log_has_room_for_an_event(capacity):
    net = net_of(np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match=f"capacity={capacity} must be 1 or more events"):
        timor.cone_log(problem_at(120), net, 1.0, capacity=capacity)


def test_cone_log_as_text():
    log = timor.ConeLog(
        time=jnp.asarray([0.25, 0.5]),
        neuron=jnp.asarray([0, 0]),
        point=jnp.asarray([1, 1]),
        kind=jnp.asarray([1, 2]),
        on=jnp.asarray([[[1, 1], [0, 0]], [[1, 0], [0, 0]], [[1, 0], [0, 0]]], bool),
        sliding=jnp.asarray([[[0, 0], [0, 0]], [[0, 1], [0, 0]], [[0, 0], [0, 0]]], bool),
    )
    assert repr(log).splitlines() == [
        "start: B N",
        "t = 0.25: neuron 1, point 2, slide: 1|B N",
        "t = 0.5: neuron 1, point 2, release: 1 N",
    ]
