"""The log of events at kinks: against the oracle's events and gates."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import gfdyn as gf


T1 = 12.0
RTOL = 1e-9
SAVES = np.linspace(0, T1, 25)


@pytest.fixture(scope="module")
def theirs():
    rng = np.random.default_rng(3)
    problem = oracle.Problem([3, 8, 1], rng.normal(size=(3, 12)), rng.normal(size=(1, 12)))
    start = 0.6 * rng.normal(size=problem.P)
    return problem, start, oracle.integrate(problem, start, T1, 1e-10)


@pytest.fixture(scope="module")
def traj(theirs):
    problem, start, _ = theirs
    return solved(problem, start, ts=SAVES)


@pytest.fixture(scope="module")
def short(theirs):
    """With a short log, and accepted steps."""
    problem, start, _ = theirs
    return solved(problem, start, ts=gf.AcceptedSteps(16), kinks=5)


def ours(problem, start):
    flow = gf.GradientFlow(
        gf.Problem(gf.Dataset(problem.X.T, problem.Y.T), gf.losses.squared)
    )
    net = gf.nets.MLP.from_weights([jnp.asarray(w) for w in problem.weights(start)])
    return flow, net


def solved(problem, start, **options):
    return follow(*ours(problem, start), **options)


def follow(flow, net, kinks=500, rtol=RTOL, **options):
    solver = gf.solvers.ExactKinks(rtol=rtol)
    return gf.solve(flow, net, t1=T1, solver=solver, kinks=kinks, **options)


def kinks_of(traj):
    assert traj.kinks is not None
    return traj.kinks


def test_events_are_the_oracles(theirs, traj):
    problem, _, (_, sliding, count, path) = theirs
    kinks = kinks_of(traj)
    number = np.bincount(kinks.kind, minlength=3)
    assert number.tolist() == [count["crossings"], count["slides"], count["releases"]]
    assert number.tolist() == [
        int(traj.stats[f"num_{name}"]) for name in ("crossings", "slides", "releases")
    ]
    assert int(kinks.num_lost) == 0 and np.all(np.diff(kinks.time) >= 0)
    # At each crossing and slide the oracle's z vanishes, on its own path.
    times = np.array([t for t, _ in path])
    for time, unit, sample, kind in zip(
        kinks.time, kinks.unit, kinks.sample, kinks.kind, strict=True
    ):
        i = min(int(np.searchsorted(times, time)), len(path) - 1)
        (t0, y0), (t1, y1) = path[i - 1], path[i]
        part = (float(time) - t0) / (t1 - t0) if t1 > t0 else 1.0
        w = [problem.weights(y)[0][int(unit)] for y in (y0, y1)]
        z = [v @ problem.X[:, int(sample)] for v in w]
        if kinds_of(kind) != "release":
            # Linear interpolation over one of the oracle's steps
            slack = 1e-6 + abs(z[1] - z[0]) * (0.02 if t1 > t0 else 0)
            assert abs((1 - part) * z[0] + part * z[1]) <= slack
    ends = {(s[1], s[2]) for s in sliding}
    assert {(int(u), int(s)) for s, u in np.argwhere(kinks.sliding[0][-1])} == ends


def kinds_of(kind):
    return gf.Kinks.kinds[int(kind)]


def test_gates_carry_the_velocity(theirs, traj):
    """dθ/dt with the gates of the log is the slope of the oracle's own trajectory."""
    problem, start, (end, *_) = theirs
    h = 1e-4
    before, *_ = oracle.integrate(problem, start, T1 - h, 1e-10)
    kinks = kinks_of(traj)
    gates = np.asarray(kinks.gates[0][-1])
    assert np.any(kinks.sliding[0][-1])
    assert gates.min() >= 0 and gates.max() <= 1
    w, v = problem.weights(end)
    hidden = (problem.X.T @ w.T) * gates
    residual = (hidden @ v.T - problem.Y.T) / len(gates)
    slope_v = -residual.T @ hidden
    slope_w = -((residual @ v) * gates).T @ problem.X.T
    slope = np.concatenate([np.ravel(slope_w), np.ravel(slope_v)])
    assert np.linalg.norm((end - before) / h - slope) <= 1e-3 * np.linalg.norm(slope)


def test_time_spent_sliding_is_that_of_the_events(traj):
    kinks = kinks_of(traj)
    total = np.zeros((12, 8))
    for time, unit, sample, kind in zip(
        kinks.time, kinks.unit, kinks.sample, kinks.kind, strict=True
    ):
        sign = {"slide": -1, "release": 1, "crossing": 0}[kinds_of(kind)]
        total[int(sample), int(unit)] += sign * float(time)
    total += T1 * np.asarray(kinks.sliding[0][-1])
    assert np.allclose(total / T1, kinks.sliding_fraction[0], atol=1e-12)
    assert total.max() > 0.1 * T1


@pytest.mark.slow
def test_a_full_log_says_what_it_lost(traj, short):
    all_of_them, few = kinks_of(traj), kinks_of(short)
    assert few.time.shape == (5,)
    assert int(few.num_lost) == len(all_of_them.time) - 5
    assert np.array_equal(few.time, all_of_them.time[:5])


def test_accepted_steps_keep_the_gates(traj, short):
    gates = kinks_of(short).gates[0]
    assert gates.shape == (len(short.ts), 12, 8)
    assert np.allclose(gates[-1], kinks_of(traj).gates[0][-1], atol=1e-9)


def test_a_solve_that_ends_before_its_first_save_keeps_its_log(theirs, traj):
    """Looking for the gates at saves that there were none of, it raised an IndexError."""
    problem, start, _ = theirs
    early = solved(problem, start, ts=[T1], max_steps=40, throw=False)
    assert early.result == gf.RESULTS.max_steps_reached and len(early.ts) == 0
    kinks, whole = kinks_of(early), kinks_of(traj)
    assert len(kinks.time) > 0 and kinks.gates[0].shape == (0, 12, 8)
    np.testing.assert_allclose(kinks.time, whole.time[: len(kinks.time)], rtol=1e-6)


def test_files_keep_the_kinks(traj, tmp_path):
    traj.save(tmp_path / "run.nc")
    again = gf.load(tmp_path / "run.nc")
    assert np.array_equal(kinks_of(again).time, kinks_of(traj).time)
    assert np.array_equal(kinks_of(again).sliding[0], kinks_of(traj).sliding[0])
    labelled = again.to_xarray()
    assert labelled.kink_kind.dims == ("kink",)
    assert labelled.gate_1.dims == ("save", "sample", "neuron_1")
    assert set(labelled.kink_kind.values) == {"crossing", "slide", "release"}


@pytest.mark.slow
def test_a_batch_keeps_a_log_each(theirs):
    problem, start, _ = theirs
    flow, net = ours(problem, start)
    nets = jax.tree.map(lambda w: jnp.stack([w, 0.9 * w]), net)

    def events(net):
        kinks = kinks_of(follow(flow, net, rtol=1e-6, ts=SAVES))
        return kinks.time, kinks.unit

    times, units = jax.vmap(events)(nets)
    for i in range(2):
        one = jax.tree.map(lambda w, i=i: w[i], nets)
        kinks = kinks_of(follow(flow, one, rtol=1e-6, ts=SAVES))
        number = len(kinks.time)
        assert 0 < number < 500 and np.all(np.isnan(times[i][number:]))
        assert np.allclose(times[i][:number], kinks.time, rtol=1e-9)
        assert np.array_equal(units[i][:number], kinks.unit)


def test_solvers_that_follow_no_kinks_say_so(theirs):
    problem, start, _ = theirs
    flow, net = ours(problem, start)
    with pytest.raises(ValueError, match="kinks=9: Adaptive follows none"):
        gf.solve(flow, net, t1=1.0, kinks=9, solver=gf.solvers.Adaptive())
    with pytest.raises(ValueError, match="kinks=-1 must be 0 or more"):
        gf.solve(flow, net, t1=1.0, kinks=-1)
    linear = gf.nets.MLP.from_weights(net.weights, activation="identity")
    with pytest.raises(ValueError, match="ExactKinks follows none here"):
        gf.solve(flow, linear, t1=1.0, kinks=9, solver=gf.solvers.ExactKinks())
