"""Exact kinks: against the oracle, against closed forms, against exact speeds."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from fixtures import (
    all_active,
    distance,
    example_one,
    float_dtypes,
    linear_problem,
    sliding,
    tight,
)
from golden_files import GOLDEN, read_golden
from jaxtyping import Array

import gfdyn as gf


# Solves of one golden file all save so many times, so that they share a compiled program.
SAVES = np.linspace(0, 1, 101)
# Files of flows like those of others
SLOW = pytest.mark.slow
ALIKE = ("flow_2out", "sphere_2layer", "sphere_circle", "sphere_3layer")
ORACLES = [pytest.param(f, marks=SLOW if f.stem in ALIKE else ()) for f in GOLDEN]


@pytest.mark.parametrize("rtol, bound", [(1e-6, 1e-5), (1e-8, 1e-6)], ids=["1e-6", "1e-8"])
@pytest.mark.parametrize("path", ORACLES, ids=lambda path: path.stem)
def test_meets_the_oracle(path, rtol, bound):
    flow, net, t1, expected = read_golden(path, rtol)
    solver = gf.solvers.ExactKinks(rtol=rtol)
    traj = gf.solve(flow, net, t1=t1, ts=t1 * SAVES, solver=solver)
    got = np.concatenate([np.ravel(w) for w in traj.final_direction.weights])
    if isinstance(flow, gf.EscapeFlow):
        got = got / np.linalg.norm(got)
    assert np.linalg.norm(got - expected) <= bound * np.linalg.norm(expected)
    assert int(traj.stats["num_steps"]) <= 1500
    # The energy identity and the balance hold through all its slides.
    assert int(traj.stats["num_slides"]) >= 20
    assert traj.certificate.energy_residual <= 1000 * rtol
    assert traj.certificate.balance_drift <= 100 * rtol
    assert traj.certificate.risk_increase <= 1e-12


@pytest.mark.parametrize(
    "dims, samples, t1, scale, seed",
    [
        pytest.param([3, 8, 8, 8, 1], 15, 15.0, 0.6, 4, marks=SLOW),
        ([3, 6, 6, 6, 6, 2], 12, 15.0, 0.7, 1),
        pytest.param([3, 10, 1], 40, 20.0, 0.5, 2, marks=SLOW),
    ],
    ids=["4-layers", "5-layers-2-outputs", "40-samples"],
)
def test_meets_the_oracle_where_it_is_run_here(dims, samples, t1, scale, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(dims[0], samples)), rng.normal(size=(dims[-1], samples))
    theirs = oracle.Problem(dims, x, y)
    start = scale * rng.normal(size=theirs.P)
    expected, *_ = oracle.integrate(theirs, start, t1, 1e-9)
    problem = gf.Problem(gf.Dataset(x.T, y.T), gf.losses.squared)
    net = gf.nets.MLP.from_weights([jnp.asarray(w) for w in theirs.weights(start)])
    solver = gf.solvers.ExactKinks(rtol=1e-8)
    traj = gf.solve(gf.GradientFlow(problem), net, t1=t1, ts=[t1], solver=solver)
    got = np.concatenate([np.ravel(w) for w in traj.final.weights])
    assert np.linalg.norm(got - expected) <= 1e-6 * np.linalg.norm(expected)


def test_the_error_follows_the_tolerance():
    """And the number of steps grows slowly with the digits."""
    path = next(p for p in GOLDEN if p.stem == "polar_3layer")
    flow, net, t1, expected = read_golden(path, 1e-3)
    steps = []
    for rtol in (1e-3, 1e-5, 1e-7, 1e-9):
        solver = gf.solvers.ExactKinks(rtol=rtol)
        traj = gf.solve(flow, net, t1=t1, ts=t1 * SAVES, solver=solver)
        got = np.concatenate([np.ravel(w) for w in traj.final_direction.weights])
        got /= np.linalg.norm(got)
        # The file is good to some 1e-9 itself.
        assert np.linalg.norm(got - expected) <= 10 * rtol + 2e-8
        assert traj.certificate.energy_residual <= 1000 * rtol
        steps.append(int(traj.stats["num_steps"]))
    assert steps[-1] < 10 * steps[0], steps


def test_saves_inside_steps_are_as_accurate_as_their_ends():
    path = next(path for path in GOLDEN if path.stem == "flow_2layer")

    def nets(rtol):
        flow, net, t1, _ = read_golden(path, rtol)
        solver = gf.solvers.ExactKinks(rtol=rtol)
        traj = gf.solve(flow, net, t1=t1, ts=t1 * SAVES, solver=solver)
        assert distance(jax.tree.map(lambda w: w[-1], traj.net), traj.final) == 0
        weights = [np.asarray(w).reshape(101, -1) for w in traj.net.weights]
        return np.concatenate(weights, axis=1)

    loose, tight = nets(1e-6), nets(1e-9)
    errors = np.linalg.norm(loose - tight, axis=1) / np.linalg.norm(tight, axis=1)
    assert errors.max() <= 5e-6


def wide_problem():
    """Some thousands of gates, on which hundreds of kinks are met."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(60, 6)), rng.normal(size=(60, 2))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    weights = [rng.normal(size=s) / np.sqrt(s[1]) for s in ((48, 6), (48, 48), (2, 48))]
    return problem, gf.nets.MLP.from_weights([jnp.asarray(w) for w in weights])


@pytest.mark.slow
def test_one_step_crosses_many_kinks_of_a_large_network():
    problem, net = wide_problem()
    flow, t1 = gf.GradientFlow(problem), 2.0

    def end(rtol):
        solver = gf.solvers.ExactKinks(rtol=rtol)
        return gf.solve(flow, net, t1=t1, ts=[t1], solver=solver)

    coarse, fine = end(1e-4), end(1e-8)
    crossings = int(coarse.stats["num_crossings"])
    assert crossings > 150
    assert crossings > 4 * int(coarse.stats["num_steps"])
    assert distance(coarse.final, fine.final) <= 20 * 1e-4
    with pytest.warns(gf.CertificateWarning):
        plain = gf.solve(flow, net, t1=t1, ts=[t1], solver=tight(1e-6))
    assert distance(fine.final, plain.final) <= 1e-4
    assert fine.certificate.energy_residual <= 1000 * 1e-8


def test_separable_logistic_runs_meet_their_closed_form():
    """Le & Jegelka, the two-neuron refutation of their first Corollary 1 at 120°:
    dq/dt = q/(1 + e^q), values of ln q + Ei(q) = t + const to ten digits."""
    angle = 2 * np.pi / 3
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    first = np.array([2.0, 1.0]) / np.sqrt(5)
    x = np.stack([first, turn @ first])
    problem = gf.Problem(gf.Dataset(x, np.array([[1.0], [-1.0]])), gf.losses.logistic)
    net = gf.nets.MLP.from_weights([0.5 * x, 0.5 * np.array([[1.0, -1.0]])])
    times, q = [10.0, 100.0, 1000.0], [2.5153195279, 6.1437070338, 8.9523576650]
    traj = gf.solve(
        gf.GradientFlow(problem), net, ts=times, solver=gf.solvers.ExactKinks(rtol=1e-11)
    )
    first_layer, last_layer = traj.net.weights
    np.testing.assert_allclose(np.sum(first_layer**2, axis=(1, 2)) / 2, q, rtol=1e-9)
    np.testing.assert_allclose(last_layer[:, 0, 0] ** 2, q, rtol=1e-9)
    singular = np.linalg.svd(np.asarray(first_layer), compute_uv=False)
    share = singular[:, 0] ** 2 / np.sum(singular**2, axis=1)
    np.testing.assert_allclose(share, 0.75, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", [dfx.Dopri8(), dfx.Heun()])
def test_any_explicit_pair_will_do(method):
    problem, net = sliding(1)
    flow = gf.GradientFlow(problem)
    solver = gf.solvers.ExactKinks(rtol=1e-6, method=method)
    traj = gf.solve(flow, net, t1=2.0, ts=[2.0], solver=solver)
    exact = gf.solve(flow, net, t1=2.0, ts=[2.0], solver=gf.solvers.ExactKinks(rtol=1e-10))
    assert distance(traj.final, exact.final) <= 1e-4
    assert int(traj.stats["num_slides"]) == int(exact.stats["num_slides"])


def test_an_implicit_method_is_refused():
    root_finder = dfx.VeryChord(rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match=r"method=Kvaerno5\(\) is not an explicit Runge"):
        gf.solvers.ExactKinks(method=dfx.Kvaerno5(root_finder=root_finder))


class Troubled(gf.solvers.AbstractSolver):
    """A solver whose steps report what is asked of it."""

    steps: gf.solvers.Adaptive
    converged: Array
    instant: Array

    @property
    def tolerance(self):
        return self.steps.tolerance

    def init(self, flow, state, dt0):
        return self.steps.init(flow, state, dt0)

    def with_scan_kind(self, kind):
        return self

    def check(self, flow, net):
        pass

    def follows_kinks(self, net):
        return False

    def gates_of(self, solver_state):
        return None

    def verifies(self, solver_state):
        return False

    def step(self, flow, state, size, solver_state):
        step = self.steps.step(flow, state, size, solver_state)
        taken = jnp.where(self.instant, 0.0, step.size)
        return eqx.tree_at(lambda s: (s.converged, s.size), step, (self.converged, taken))


@pytest.mark.parametrize(
    "converged, instant, name",
    [(False, False, "projection_failed"), (True, True, "event_cascade")],
)
def test_what_goes_wrong_at_kinks_has_a_name(converged, instant, name):
    problem, net = sliding()
    steps = gf.solvers.Adaptive()
    solver = Troubled(steps, jnp.asarray(converged), jnp.asarray(instant))
    flow = gf.GradientFlow(problem)
    traj = gf.solve(flow, net, t1=1.0, ts=[0.0, 1.0], solver=solver, throw=False)
    assert bool(traj.result == getattr(gf.RESULTS, name))
    with pytest.raises(gf.SolveError, match="loosen rtol|Loosen rtol"):
        gf.solve(flow, net, t1=1.0, ts=[0.0, 1.0], solver=solver)


def test_example_one_ends_at_its_exact_speeds():
    """Bantzis et al., Example 1 at depth 3: speeds ½ and √2−1, never above ½."""
    problem = example_one()
    flow = gf.EscapeFlow(problem, localized=True)
    solver = gf.solvers.ExactKinks(rtol=1e-8)
    seen = set()
    for seed in (0, 1, 3, 5):
        net = gf.nets.MLP([2, 16, 16, 1], key=jax.random.key(seed))
        traj = gf.solve(flow, net, t1=1500.0, ts=[1500.0], solver=solver)
        speed = -float(traj.final_risk)
        assert speed <= 0.5 + 1e-9
        near = [s for s in (0.5, np.sqrt(2) - 1) if abs(speed - s) <= 1e-6]
        assert near, (seed, speed)
        # Of multipliers that were rounding alone, some runs stood still.
        assert int(traj.stats["num_steps"]) <= 1000
        seen |= set(near)
    assert 0.5 in seen


@pytest.mark.slow
def test_a_direction_at_rest_can_be_waited_for():
    """Small neurons die out around it, and kinks of products of two of them are left by
    rounding alone: to be put back on them would move the weights by more than rtol."""
    problem = example_one()
    flow = gf.EscapeFlow(problem, localized=True)
    solver = gf.solvers.ExactKinks(rtol=1e-8)
    # All of them stalled, from tau = 140 to 340. They take 500 to 620 steps.
    for seed in (4, 5, 6, 9):
        net = gf.nets.MLP([2, 8, 8, 1], key=jax.random.key(seed))
        traj = gf.solve(flow, net, t1=1500.0, ts=[1500.0], solver=solver)
        assert abs(-float(traj.final_risk) - (np.sqrt(2) - 1)) <= 1e-9
        assert int(traj.stats["num_steps"]) <= 1000


def test_chatter_is_gone():
    """Where Adaptive's energy identity fails by per cents, this one's holds."""
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    solver = gf.solvers.ExactKinks(rtol=1e-6)
    exact = gf.solve(flow, net, t1=30.0, ts=[30.0], solver=solver)
    with pytest.warns(gf.CertificateWarning):
        chatter = gf.solve(flow, net, t1=30.0, ts=[30.0], solver=tight(1e-4))
    assert exact.certificate.energy_residual <= 1e-5
    assert chatter.certificate.energy_residual >= 1e-2
    assert "energy identity fails" not in exact.summary()
    assert int(exact.stats["num_steps"]) < int(chatter.stats["num_steps"])


def test_smooth_flows_need_no_events():
    problem, _ = linear_problem()
    net = gf.nets.MLP([4, 3, 2], key=jax.random.key(0), activation="identity")
    flow = gf.GradientFlow(problem)
    exact = gf.solve(flow, net, t1=3.0, solver=gf.solvers.ExactKinks(rtol=1e-9))
    plain = gf.solve(flow, net, t1=3.0, solver=tight(1e-9))
    # Without a kink it is the ordinary solve.
    assert distance(exact.final, plain.final) == 0
    assert int(exact.stats["num_steps"]) == int(plain.stats["num_steps"])
    assert int(exact.stats["num_crossings"]) == 0
    # In the shape of a golden file, whose program it shares
    problem, net = all_active(3, noise=0.1, width=10, samples=20)
    flow, solver = gf.EscapeFlow(problem), gf.solvers.ExactKinks(rtol=1e-9)
    exact = gf.solve(flow, net, t1=3.0, ts=3.0 * SAVES, solver=solver)
    assert int(exact.stats["num_crossings"] + exact.stats["num_slides"]) == 0


def test_float32():
    path = next(p for p in GOLDEN if p.stem == "flow_2out")
    flow, net, t1, expected = read_golden(path, 1e-4)
    data = flow.problem.data.astype(jnp.float32)
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
    solver = gf.solvers.ExactKinks(rtol=1e-4)
    traj = gf.solve(flow, net, t1=t1, ts=np.asarray([t1], np.float32), solver=solver)
    assert float_dtypes(traj) == {jnp.dtype(jnp.float32)}
    got = np.concatenate([np.ravel(w) for w in traj.final.weights])
    assert np.linalg.norm(got - expected) <= 1e-2 * np.linalg.norm(expected)


def test_vmap_equals_single_runs():
    problem, _ = sliding()
    flow = gf.GradientFlow(problem)
    nets = [gf.nets.MLP([3, 8, 1], key=jax.random.key(s), scale=0.5) for s in range(64)]

    def run(net):
        solver = gf.solvers.ExactKinks(rtol=1e-6)
        return gf.solve(flow, net, t1=5.0, ts=[5.0], solver=solver, throw=False)

    batched = jax.vmap(run)(jax.tree.map(lambda *w: jnp.stack(w), *nets))
    for i, net in enumerate(nets):
        single, mine = run(net), jax.tree.map(lambda a, i=i: a[i], batched)
        assert distance(mine.final, single.final) <= 1e-9
        for name in ("num_crossings", "num_slides", "num_releases"):
            assert int(mine.stats[name]) == int(single.stats[name])
