"""Le & Jegelka: two opposed neurons, and sliding neurons, against closed forms."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import rows
from le_jegelka_cases import close, flowed, statements
from scipy.integrate import solve_ivp

import gfdyn as gf
from gfdyn.theory import le_jegelka as lj


# --- Two opposed neurons: the first version is false -----------------------------------


ANGLE, SQUARE = 2 * np.pi / 3, 0.25
TIMES = np.array([0.0, 1.0, 10.0, 100.0, 1000.0])


@pytest.fixture(scope="module")
def opposed():
    """The problem, and the nets at the times in closed form."""
    problem, net = lj.counterexample()
    ratio = jnp.sqrt(lj.counterexample_square(TIMES) / SQUARE)
    return problem, jax.vmap(lambda c: jax.tree.map(lambda w: c * w, net))(ratio)


def test_the_closed_form_of_the_counterexample(opposed):
    """The spec's numbers, SciPy's integrator, and the flow."""
    q = np.asarray(lj.counterexample_square(TIMES))
    np.testing.assert_allclose(
        q, [0.25, q[1], 2.5153195279, 6.1437070338, 8.9523576650], rtol=1e-10
    )
    solution = solve_ivp(
        lambda t, q: q / (1 + np.exp(q)), (0, 10), [1.0], "DOP853", rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(
        lj.counterexample_square(np.array([10.0]), 1.0)[0], solution.y[0, -1], rtol=1e-10
    )
    problem, nets = opposed
    x = np.asarray(problem.data.x)
    np.testing.assert_allclose(x[1], [-0.834512, 0.550990], atol=1e-6)
    flow = flowed(problem, rows(nets, 0))
    for end, closed in zip(flow.weights, nets.weights, strict=True):
        close(end[-1], closed[1], tolerance=1e-9)
    s = np.linalg.svd(nets.weights[0], compute_uv=False)
    close(s[:, 0] ** 2 / np.sum(s**2, axis=1), 0.75)
    close(s[:, 1] ** 2, q * (1 - abs(np.cos(ANGLE))))


def test_the_first_version_fails_on_it(opposed):
    """All that it assumes holds; M₁₂ = −q(1 + cos θ) moves, at a point and on the way."""
    problem, nets = opposed
    found = statements(problem, rows(nets, 0))
    assert found["matrix first"].verdict == found["pairs first"].verdict == "VIOLATED"
    drift = lj.matrix_wise_drift(problem, nets, version="first", tolerance=1e-9)
    assert drift.verdict == "VIOLATED"
    q = np.asarray(lj.counterexample_square(TIMES))
    close(drift.lhs[:, 1], -q * (1 + np.cos(ANGLE)))
    close(drift.lhs[:, [0, 3]], 0)
    seen = eqx.filter_jit(lj.regime)(problem, jnp.asarray(TIMES), nets)
    assert not np.any(seen.sign_changes) and not np.any(seen.gate_changes)
    assert seen.stable_signs_from == 0 and seen.smallest_limit > 0.2
    # θ stays on a ray, and R < ℓ(0)/N after some time.
    close(seen.distance, 0)
    assert lj.small_risk_separates(problem, rows(nets, -1)).verdict == "HOLDS"


def test_the_correction_holds_on_it(opposed):
    problem, nets = opposed
    found = statements(problem, rows(nets, 0))
    for version in ("corrected", "second"):
        assert found[f"pairs {version}"].verdict == "ASSUMPTIONS NOT MET"
        assert found[f"matrix {version}"].verdict == "HOLDS"
        drift = lj.matrix_wise_drift(problem, nets, version=version, tolerance=1e-9)
        assert drift.verdict == "HOLDS"
        np.testing.assert_array_equal(drift.applies, [[True, False, False, True]] * 5)
    assert found["vertices"].verdict == "HOLDS"
    assert lj.vertex_wise_drift(nets, tolerance=1e-9).verdict == "HOLDS"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: lj.counterexample(np.pi / 2), "angle=1.57"),
        (lambda: lj.counterexample(square=0.0), "square=0.0 must be positive"),
        (lambda: lj.counterexample_square(np.array([-1.0])), "the times ts 0 or more"),
    ],
)
def test_no_counterexample(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# --- Sliding neurons: the gap that the correction leaves -------------------------------


def nearly_sliding(seed):
    """Neuron 0 leaves x_2 for x_1 and is held at its kink; 1 sees both; 2 sees nothing."""
    x = np.array([[1.0, 0.0], [0.6, 0.8]])
    w1 = np.array([[0.8, -0.6], [1.2, 1.0], [-1.0, -1.0]])
    w1[0] += 0.005 * x[1]
    noise = 1 + 0.1 * np.random.default_rng(seed).uniform(-1, 1, size=4)
    w1[:2] *= noise[:2, None]
    net = gf.nets.MLP.from_weights([w1, np.array([[0.5, 0.5, 0.3]]) * noise[2]])
    problem = gf.Problem(
        gf.Dataset(x, np.array([[3.0], [-1.0]]) * noise[3]), gf.losses.squared
    )
    return problem, net


END, SAVES = 0.2, 13


@eqx.filter_jit
def slid(problem, net, ts):
    """The nets at the saves, and what happened at kinks."""
    traj = gf.solve(
        gf.GradientFlow(problem),
        net,
        ts=ts,
        kinks=8,
        solver=gf.solvers.ExactKinks(rtol=1e-10),
    )
    assert traj.kinks is not None
    return traj.net, traj.kinks


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_gap_of_the_correction(seed):
    """As printed it counts z = 0 as active: neurons 0 and 1 are alike while 0 slides, and
    the pair moves. With its gate counted all that is claimed holds."""
    problem, start = nearly_sliding(seed)
    nets, kinks = slid(problem, start, jnp.linspace(0, END, SAVES))
    assert not np.any(kinks.sliding[0][0])
    np.testing.assert_array_equal(
        np.argwhere(kinks.sliding[0][-1]), [[1, 0]], "neuron 0, on the second point"
    )
    before, after = (
        (rows(nets, i), tuple(gate[i] for gate in kinks.gates)) for i in (0, -1)
    )

    second = statements(problem, *before)["pairs second"]
    assert second.verdict == "HOLDS"
    np.testing.assert_array_equal(second.applies, [True, False, False])
    close(second.lhs[0], second.rhs[0], float(abs(second.lhs[0])))

    net, gates = after
    found = statements(problem, net, gates)
    second = found["pairs second"]
    assert second.applies[0] and second.verdict == "VIOLATED"
    # The gate, and the drift, by hand: z₀ at x₂ does not move
    w1, w2 = (np.asarray(w) for w in net.weights)
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)[:, 0]
    z = np.maximum(x @ w1.T, 0)
    r = (z @ w2[0] - y) / 2
    gate = -r[0] * (x[0] @ x[1]) / r[1]
    assert 0.1 < gate < 0.9
    close(gates[0][1], [gate, 1, 0], tolerance=1e-8)
    gap = (1 - gate) * r[1] * w2[0, 0] * z[1, 1]
    assert abs(gap) > 1e-2
    close(second.lhs[0] - second.rhs[0], -gap, tolerance=1e-8)

    assert not np.any(found["pairs corrected"].applies)
    assert found["matrix corrected"].verdict == "HOLDS"
    assert found["vertices"].verdict == "HOLDS"
    # Without gates, a neuron at a kink is alone.
    assert not np.any(statements(problem, net)["pairs corrected"].applies)


def test_the_gap_along_the_way():
    problem, net = nearly_sliding(0)
    nets, kinks = slid(problem, net, jnp.linspace(0, END, SAVES))
    drift = None
    for version in ("first", "second", "corrected"):
        drift = lj.matrix_wise_drift(problem, nets, kinks.gates, version, tolerance=1e-8)
        expected = "HOLDS" if version == "corrected" else "VIOLATED"
        assert drift.verdict == expected, version
    assert drift is not None
    # From where the two differ on, nothing is claimed of them.
    sliding = np.asarray(kinks.sliding[0][:, 1, 0])
    np.testing.assert_array_equal(drift.applies[:, 1], np.cumsum(sliding) == 0)
    vertices = lj.vertex_wise_drift(nets, tolerance=1e-8)
    assert vertices.lhs.shape == (SAVES, 3) and vertices.verdict == "HOLDS"
    # A step of gradient descent is no flow.
    step = jax.tree.map(
        lambda w, g: jnp.stack([w, w - g]), net, jax.grad(problem.risk)(net)
    )
    assert lj.vertex_wise_drift(step).verdict == "VIOLATED"


def test_the_drift_law_integrated():
    """By Gauss's rule before and after the neuron is caught, where the law jumps."""
    problem, net = nearly_sliding(0)
    _, kinks = slid(problem, net, jnp.linspace(0, END, SAVES))
    ends = np.array([0.0, float(kinks.time[0]), END])
    assert 0 < ends[1] < END
    points, weights = np.polynomial.legendre.leggauss(SAVES // 2)
    half, middle = np.diff(ends)[:, None] / 2, (ends[1:] + ends[:-1])[:, None] / 2
    ts = np.append(middle + half * points, END)
    nets, kinks = slid(problem, net, jnp.asarray(ts))

    @jax.jit
    @jax.vmap
    def law(net, gates):
        return gf.diagnostics.gram_drift(problem, net, gates)["layer 1"]

    rates = np.asarray(law(nets, kinks.gates))[:-1]
    integral = np.einsum("t,tuv->uv", (half * weights).ravel(), rates)
    moved = rows(nets, -1).conserved()[0].matrix - net.conserved()[0].matrix
    close(integral, moved, tolerance=1e-8)
    assert abs(moved[0, 1]) > 1e-3
