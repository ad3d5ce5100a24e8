"""Section 3 of Timor, Vardi & Shamir: statements, sets and closed forms.

Against NumPy, SciPy's integrator and optimisers, the paper's definitions, and ensembles of
the exact flow. Each check is also made to fail once, by a wrong number in the right place.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq, minimize_scalar

import gfdyn as gf
from gfdyn.theory import timor
from gfdyn.theory.timor import _ensemble


GOLDEN = "tests/golden_timor/fig1.npz"
# Runs a chunk, the same everywhere: one program.
CHUNK = 128
TIME = 300.0


def problem_at(phi: float, psi: float = 1.0, dtype=None) -> gf.Problem:
    """The points at an angle in degrees, their targets at one in radians."""
    data = gf.data.two_points(np.deg2rad(phi), psi, dtype=dtype)
    return gf.Problem(data, gf.losses.squared, reduction="sum")


def net_of(W, V) -> gf.nets.MLP:
    return gf.nets.MLP.from_weights([jnp.asarray(W, float), jnp.asarray(V, float)])


def run(problem, seed, runs=2 * CHUNK, **radii):
    starts = timor.random_pairs(jax.random.key(seed), runs, **radii)
    return starts, timor.flow_ends(problem, starts, TIME, chunk=CHUNK)


@eqx.filter_jit
def check(statement, problem, *nets):
    """The statement on each net of a stack."""
    return jax.vmap(partial(statement, problem))(*nets)


# --- Closed forms ---------------------------------------------------------------------


def integrate(s, ts, eta=None):
    """p and b by SciPy, from p = s and b = 0; and when pb = η."""

    def rates(t, state):
        p, b = state
        return [b * (1 - p * b), p * (1 - p * b)]

    def fitted(t, state):
        return state[0] * state[1] - (0.5 if eta is None else eta)

    solution = solve_ivp(
        rates,
        (0, ts[-1]),
        [s, 0.0],
        method="DOP853",
        t_eval=ts,
        rtol=1e-13,
        atol=1e-20,
        events=fitted,
    )
    return solution.y, solution.t_events[0][0]


@pytest.mark.parametrize("s", [1e-6, 1e-2, 0.5])
def test_growth_and_escape_time_are_those_of_the_equations(s):
    ts = np.array([1e-8, 1e-3, 0.5, 2.0, 8.0, 16.0, 40.0])
    (p, b), _ = integrate(s, ts)
    got_p, got_b = timor.matched_growth(s, ts)
    np.testing.assert_allclose(got_p, p, rtol=3e-12)
    np.testing.assert_allclose(got_b, b, rtol=3e-12)
    for eta in (1e-3, 0.5, 0.99):
        _, time = integrate(s, ts, eta)
        np.testing.assert_allclose(timor.escape_time(s, eta), time, atol=1e-9)
        p, b = timor.matched_growth(s, timor.escape_time(s, eta))
        np.testing.assert_allclose(p * b, eta, rtol=1e-12)


def test_nothing_underflows():
    """From s = 1e-200, whose square is 0: the escape is at ln(2/s) up to s²."""
    tiny, late = 1e-200, 1000.0
    p, b = timor.matched_growth(tiny, late)
    np.testing.assert_allclose([p, b], 1, rtol=1e-14)
    half = timor.escape_time(tiny, 0.5)
    np.testing.assert_allclose(half, np.log(2) - np.log(tiny), rtol=1e-14)
    p, b = timor.matched_growth(tiny, half)
    np.testing.assert_allclose(p * b, 0.5, rtol=1e-11)
    assert timor.matched_growth(np.float32(1e-30), np.float32(1e3))[0] == 1


@pytest.mark.parametrize("s", [1e-3, 0.1, 0.5, 2.0])
def test_limits_agree(s):
    """The late trajectory, the formula, and the root of Lemma 13's equation for any w."""
    limit = timor.matched_limit_growth(s**2)
    np.testing.assert_allclose(timor.matched_growth(s, 200.0)[0], limit, rtol=1e-13)
    # w = (s, u), x = (1, 0), v ≠ 0: |v|² − |w|² is conserved
    for u, v in ((0.0, 0.0), (-0.3, 0.2), (-2.0, 1.5)):
        C = v**2 - s**2 - u**2
        root: Any = brentq(
            lambda p, u=u, C=C: p**2 * (C + p**2 + u**2) - 1, 1e-9, 9, xtol=1e-15
        )
        np.testing.assert_allclose(
            timor.matched_limit_growth(s**2 - v**2), root, rtol=1e-12
        )


def test_growth_refuses():
    with pytest.raises(ValueError, match=r"^s=0.0 must be positive: w\(0\)·x of a neuron"):
        timor.matched_growth(0.0, 1.0)
    with pytest.raises(ValueError, match=r"^eta=1.0 must lie in \(0, 1\)"):
        timor.escape_time(0.1, 1.0)
    problem, net = problem_at(120), net_of([[0.5, 1], [0.1, 1]], np.zeros((2, 2)))
    with pytest.raises(ValueError, match="^net is not matched: each of its neurons"):
        timor.matched_limit(problem, net)
    matched = net_of(problem.data.x - problem.data.x[::-1], np.eye(2))
    with pytest.raises(ValueError, match="^net has V != 0; the trajectory has a closed"):
        timor.matched_trajectory(problem, matched, jnp.ones(2))


def test_matched_trajectory_knows_which_neuron_sees_which_point():
    """The flow of neurons in the other order, against the formula and its limit."""
    problem = problem_at(120)
    x = np.asarray(problem.data.x)
    start = net_of(0.1 * (x - x[::-1])[::-1], np.zeros((2, 2)))
    ts = jnp.asarray([1.0, 3.0, 30.0])
    traj = gf.solve(
        gf.GradientFlow(problem), start, ts=ts, solver=gf.solvers.ExactKinks(rtol=1e-11)
    )
    law = timor.matched_trajectory(problem, start, ts)
    limit = timor.matched_limit(problem, start)
    for got, expected, end in zip(
        traj.net.weights, law.weights, limit.weights, strict=True
    ):
        np.testing.assert_allclose(got, expected, atol=1e-9)
        np.testing.assert_allclose(expected[-1], end, atol=1e-12)
    law = timor.matched_trajectory(problem, start, jnp.asarray([0.0, 3.0, 30.0]))
    checks = timor.matched_block_invariants(problem, law, slack=1e-14)
    assert checks.lhs.shape == (2, 2, 5) and checks.verdict == "HOLDS"
    backwards = jax.tree.map(lambda leaf: leaf[::-1], law)
    assert timor.matched_block_invariants(problem, backwards).verdict == (
        "ASSUMPTIONS NOT MET"
    )
    first, middle, last = (jax.tree.map(lambda w, i=i: w[i], law) for i in range(3))
    for now in (first, middle):
        assert timor.gradient_domination(problem, now, first).verdict == "HOLDS"
    # With a K from later on, which is smaller, it need not hold.
    assert timor.gradient_domination(problem, first, last).verdict == "VIOLATED"
    assert timor.limit_is_the_closed_form(problem, limit, start, 1e-12).verdict == "HOLDS"
    assert timor.limit_is_the_closed_form(problem, middle, start).verdict == "VIOLATED"


def test_matched_block_invariants_can_fail():
    """A loss that grows, and weights that leave their lines."""
    problem = problem_at(120)
    x = np.asarray(problem.data.x)
    start = net_of(0.1 * (x - x[::-1]), np.zeros((2, 2)))
    law = timor.matched_trajectory(problem, start, jnp.asarray([0.0, 2.0, 30.0]))
    for wrong in (np.array([0, 2, 1]), np.array([0, 1, 1])):
        nets = jax.tree.map(lambda leaf, i=wrong: leaf[i], law)
        verdict = timor.matched_block_invariants(problem, nets).verdict
        assert verdict == ("HOLDS" if wrong[1] == 1 else "VIOLATED")
    turned = eqx.tree_at(lambda n: n.matrices[1], law, 1.01 * law.matrices[1] + 1e-3)
    turned = jax.tree.map(lambda a, b: a.at[1:].set(b[1:]), law, turned)
    claims = timor.matched_block_invariants(problem, turned)
    assert not claims.holds[..., 3].any() and claims.holds[..., 4].all()


def test_overlapping_limit():
    """Zero loss, balanced, and where a flow with such neurons goes from a small start."""
    data = gf.Dataset(np.eye(2), np.eye(2))
    problem = gf.Problem(data, gf.losses.squared, reduction="sum")
    start = net_of(
        1e-7 * np.array([[1, 0.5], [0.3, -1]]), 1e-7 * np.array([[1, 1], [1, 0]])
    )
    traj = gf.solve(gf.GradientFlow(problem), start, ts=[20.0, 40.0, 60.0])
    end: Any = traj.final
    W, V = (np.asarray(w) for w in end.weights)
    seen = np.maximum(W, 0)
    assert [timor.CONES[i] for i in timor.cones(problem, end)] == ["B", "1"]
    limit = timor.overlapping_limit(seen[0, 0] / seen[0, 1])
    expected_W, expected_V = (np.asarray(w) for w in limit.weights)
    np.testing.assert_allclose(seen, expected_W, atol=1e-5)
    np.testing.assert_allclose(V, expected_V, atol=1e-5)
    np.testing.assert_allclose(expected_V @ expected_W, np.eye(2), atol=1e-14)
    np.testing.assert_allclose(
        gf.diagnostics.neuron_balance(problem, limit)[0], 0, atol=1e-14
    )
    singular = np.linalg.svd(expected_W, compute_uv=False)
    rho = seen[0, 0] / seen[0, 1]
    expected = 2 / (1 + rho / np.hypot(1, rho))
    np.testing.assert_allclose(np.sum(singular**2) / singular[0] ** 2, expected, rtol=1e-12)


def test_ranks_of_two_rows():
    rng = np.random.default_rng(0)
    for angle in (1e-9, 0.3, 2.0, np.pi - 1e-9):
        a, b = rng.uniform(0.1, 3, 2)
        rows = np.array([[a, 0], [b * np.cos(angle), b * np.sin(angle)]])
        s = np.linalg.svd(rows, compute_uv=False)
        np.testing.assert_allclose(
            timor.stable_rank_of_rows(a, b, angle), np.sum(s**2) / s[0] ** 2, rtol=1e-14
        )
        np.testing.assert_allclose(
            timor.singular_ratio_of_rows(a, b, angle), s[1] / s[0], rtol=1e-6
        )


# --- Bounds ---------------------------------------------------------------------------

# φ in degrees; probability, ρ_3, the bound of Theorem 2, U, angles, sr, σ_2/σ_1 in the
# event of Theorem 3, and those from a vanishing start.
TABLE = [
    (90.5758, 0.12660, 0.00870, 0.5, 1.25836, 89.42, 135.29, 1.1404, 0.3747, 1.9801, 0.99),
    (95, 0.13927, 0.07548, 0.5, 1.26235, 85, 137.5, 1.1259, 0.3548, 1.83966, 0.91633),
    (105, 0.17014, 0.22414, 0.5, 1.29579, 75, 142.5, 1.0948, 0.3079, 1.58879, 0.76733),
    (120, 0.22222, 0.22414, 0.43301, 1.424, 60, 150, 1.0548, 0.2342, 1.33333, 0.57735),
    (135, 0.28125, 0.16895, 0.33141, 1.70783, 45, 157.5, 1.025, 0.1582, 1.17157, 0.41421),
    (150, 0.34722, 0.11304, 0.22414, 2.36291, 30, 165, 1.0071, 0.0842, 1.0718, 0.26795),
    (170, 0.44599, 0.03778, 0.07548, 6.66843, 10, 175, 1.0001, 0.0111, 1.00765, 0.08749),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row[0]))
def test_table_of_bounds(row):
    phi = np.deg2rad(row[0])
    low, high = timor.far_norms(phi)
    angles = np.rad2deg(np.stack(timor.far_angles(phi)))
    numbers = [
        timor.far_probability(phi),
        timor.far_radius(phi),
        timor.rank_two_radius(phi),
        high,
        timor.far_stable_rank(phi),
        timor.far_singular_ratio(phi),
        timor.stable_rank_of_rows(1.0, 1.0, phi),
        timor.singular_ratio_of_rows(1.0, 1.0, phi),
    ]
    np.testing.assert_allclose(numbers, (*row[1:5], *row[7:]), atol=1e-4)
    np.testing.assert_allclose(angles, row[5:7], atol=5e-3)
    assert low == np.sqrt(3) / 2
    # Lemma 6 at the largest start of Theorem 3 is within its event.
    radius = timor.far_radius(phi)
    assert timor.limit_norms(phi, radius)[1] <= high * (1 + 1e-12)
    widest = timor.limit_angles(phi, radius)
    assert widest[0] == timor.far_angles(phi)[0]
    assert widest[1] <= timor.far_angles(phi)[1] * (1 + 1e-12)


def test_lemma_6_in_numpy():
    phi, radius = 2.0, 0.45
    spread = np.arcsin(2 * radius / np.sqrt(3))
    np.testing.assert_allclose(timor.limit_angles(phi, radius)[1], phi + 2 * spread)
    expected = np.sqrt(0.25 + 4 / (3 * np.cos(max(spread, phi - np.pi / 2)) ** 2))
    np.testing.assert_allclose(timor.limit_norms(phi, radius)[1], expected)


@pytest.mark.parametrize("bound", ["rank_two_radius", "far_probability", "far_stable_rank"])
def test_bounds_ask_for_an_obtuse_angle(bound):
    for phi in (1.5, np.pi, 120.0):
        message = rf"phi={phi} must lie in \(pi/2, pi\), assumption A2: give it in radians"
        with pytest.raises(ValueError, match=message):
            getattr(timor, bound)(phi)


@pytest.mark.parametrize("psi", [0.3, 1.0, np.pi / 2, 2.0, 2.8])
def test_dead_neuron_loss(psi):
    """The best of all nets with one live neuron: outputs s_j v, s_j ≥ 0, |v| = 1."""
    y = np.array([[1, 0], [np.cos(psi), np.sin(psi)]])

    def least(angle):
        along = np.maximum(y @ np.array([np.cos(angle), np.sin(angle)]), 0)
        return np.sum(1 - along**2) / 2

    grid = np.linspace(0, 2 * np.pi, 200)
    start = grid[np.argmin([least(angle) for angle in grid])]
    best = minimize_scalar(least, bracket=(start - 0.03, start + 0.03), tol=1e-12)
    np.testing.assert_allclose(timor.dead_neuron_loss(psi), best.fun, atol=1e-10)


def test_type_probabilities():
    """The heuristic's assumption, integrated over both directions."""
    number = 2000
    angles = 2 * np.pi * (np.arange(number) + 0.5) / number
    w = np.stack([np.cos(angles), np.sin(angles)])
    alive = (w[:, :, None] > 0) & (w[:, :, None] + w[:, None, :] > 0)
    codes = alive[0] + 2 * alive[1]
    neuron = timor.heuristic_neuron_probabilities()
    for code, name in enumerate(timor.CONES):
        assert abs(np.mean(codes == code) - neuron[name]) <= 2 / number
    types = timor.heuristic_type_probabilities()
    assert sum(types.values()) == sum(neuron.values()) == 1
    assert timor.heuristic_fit_probability() == 17 / 64
    assert (types["1N"] if "1N" in types else types["N1"]) == 3 / 16
    assert types["NN"] == 9 / 64 and types["NB"] == 3 / 32 and types["12"] == 1 / 8


# --- Cones and sets -------------------------------------------------------------------


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


# --- Networks -------------------------------------------------------------------------


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


# --- Ensembles of the flow ------------------------------------------------------------


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


# --- The log of cones -----------------------------------------------------------------


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


# --- Arguments ------------------------------------------------------------------------


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
