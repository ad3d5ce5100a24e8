"""Timor, Vardi & Shamir, section 3: closed forms and bounds."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq, minimize_scalar
from timor_cases import net_of, problem_at

import gfdyn as gf
from gfdyn.theory import timor


# --- Closed forms ----------------------------------------------------------------------


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


@pytest.mark.parametrize("rho", [-0.1, np.nan])
def test_a_neuron_that_sees_both_points_has_no_negative_ratio(rho):
    with pytest.raises(ValueError, match=f"rho={rho} must be 0 or more: w·x_1 over w·x_2"):
        timor.overlapping_limit(rho)


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


# --- Bounds ----------------------------------------------------------------------------


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
