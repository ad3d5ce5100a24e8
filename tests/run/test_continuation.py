"""Trajectories that go on from where they ended, and their parts put together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import distance, sliding

import gfdyn as gf


RECORD = {"risk": gf.diagnostics.risk}


def equal(a, b):
    """Bitwise, leaf by leaf."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(p, q, equal_nan=True) for p, q in pairs)


def interrupted(flow, net, steps, **options):
    """A solve that ends between two of its steps."""
    return gf.solve(flow, net, max_steps=steps, throw=False, **options)


@pytest.mark.parametrize(
    "coordinates, exact",
    [
        (gf.GradientFlow, True),
        pytest.param(gf.EscapeFlow, True, marks=pytest.mark.slow),
        (gf.GradientFlow, False),
        (gf.EscapeFlow, False),
    ],
)
def test_between_two_steps_it_goes_on_to_the_last_bit(coordinates, exact):
    problem, net = sliding()
    flow = coordinates(problem)
    kinds = (gf.solvers.ExactKinks, gf.solvers.Adaptive)
    solver = kinds[0](rtol=1e-7) if exact else kinds[1](rtol=1e-4)
    ts = jnp.linspace(0.0, 3.0, 31)
    options: Any = dict(solver=solver, kinks=100 if exact else 0, record=RECORD)
    whole = gf.solve(flow, net, ts=ts, max_steps=4000, **options)
    attempts = whole.stats["num_steps"] + whole.stats["num_rejected"]
    first = interrupted(flow, net, int(attempts) // 2, ts=ts, **options)
    assert first.result == gf.RESULTS.max_steps_reached and 0 < len(first.ts) < len(ts)
    rest = ts[len(first.ts) :]
    then = gf.solve(flow, first, ts=rest, t1=3.0, max_steps=4000, **options)
    joined = gf.concatenate([first, then])
    assert equal(joined.ts, ts) and equal(joined.positions, whole.positions)
    assert equal(joined.final_position, whole.final_position)
    assert equal(joined.certificate, whole.certificate)
    assert equal(joined.log_time, whole.log_time)
    np.testing.assert_allclose(joined.log_interval, whole.log_interval, atol=1e-9)
    assert equal(joined.records, whole.records)
    assert equal(joined.initial_risk, whole.initial_risk)
    assert equal(joined.checkpoint, whole.checkpoint)
    assert joined.initial_time == 0 and joined.final_time == 3
    for name in ("num_steps", "num_rejected", "num_field_evaluations", "num_crossings"):
        assert equal(joined.stats[name], whole.stats[name]), name
    if exact:
        assert whole.kinks is not None and joined.kinks is not None
        for name in ("time", "layer", "unit", "sample", "kind", "side", "gates", "sliding"):
            assert equal(getattr(joined.kinks, name), getattr(whole.kinks, name)), name
        for a, b in zip(
            joined.kinks.sliding_fraction, whole.kinks.sliding_fraction, strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-14)
        assert max(float(jnp.max(part)) for part in whole.kinks.sliding_fraction) > 0.1


def test_from_its_end_it_goes_on_within_the_tolerance():
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    whole = gf.solve(flow, net, t1=3.0)
    first = gf.solve(flow, net, t1=1.0)
    then = gf.solve(flow, first, t1=3.0)
    assert then.initial_time == 1 and then.ts[0] == 1
    assert distance(then.final, whole.final) < 1e-5
    joined = gf.concatenate([first, then])
    assert len(joined.ts) == len(first.ts) + len(then.ts) - 1
    assert np.all(np.diff(joined.ts) > 0)
    # Of the whole: initial risk, energy, drift
    np.testing.assert_allclose(
        joined.certificate.energy_residual, whole.certificate.energy_residual, atol=1e-5
    )
    assert joined.certificate.holds


def test_from_underflow_it_goes_on():
    problem, net = sliding()
    small = jax.tree.map(lambda w: 1e-160 * w, net)
    flow = gf.EscapeFlow(problem)
    first = gf.solve(flow, small, t1=5.0)
    then = gf.solve(flow, first, t1=20.0)
    whole = gf.solve(flow, small, t1=20.0)
    np.testing.assert_allclose(then.log_radius[-1], whole.log_radius[-1], rtol=1e-5)
    np.testing.assert_allclose(then.final_log_time, whole.final_log_time, rtol=1e-5)


def test_a_file_goes_on(tmp_path):
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    first = interrupted(flow, net, 60, t1=2.0)
    first.save(tmp_path / "first.nc")
    loaded = gf.load(tmp_path / "first.nc")
    a, b = (gf.solve(flow, traj, t1=2.0) for traj in (first, loaded))
    assert equal(a.positions, b.positions) and equal(a.certificate, b.certificate)


@pytest.mark.slow
def test_lanes_go_on():
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    nets = jax.vmap(lambda s: jax.tree.map(lambda w: s * w, net))(jnp.asarray([0.5, 1.0]))
    first = jax.vmap(lambda net: gf.solve(flow, net, t1=0.5))(nets)
    then = jax.vmap(lambda traj: gf.solve(flow, traj, t1=1.0))(first)
    single = gf.solve(flow, gf.solve(flow, net, t1=0.5), t1=1.0)
    np.testing.assert_allclose(then.final_risk[1], single.final_risk, rtol=1e-9)


def test_a_second_continuation_does_not_compile_again():
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    first = gf.solve(flow, net, t1=0.5)
    then = gf.solve(flow, first, t1=0.7)
    again = gf.solve(flow, then, t1=0.9)
    assert again.stats["num_compilations"] == 0


def test_descents_are_put_together():
    problem, net = sliding()
    whole = gf.descend(problem, net, 0.01, 40, save_every=10, record=RECORD)
    first = gf.descend(problem, net, 0.01, 20, save_every=10, record=RECORD)
    then = gf.descend(problem, first.checkpoint, 0.01, 20, save_every=10, record=RECORD)
    joined = gf.concatenate([first, then])
    assert equal(joined.ts, whole.ts) and equal(joined.positions, whole.positions)
    assert equal(joined.records, whole.records)


def wrong():
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    traj = gf.solve(flow, net, t1=0.1)
    other = gf.GradientFlow(problem, weight_decay=0.1)
    adaptive = gf.solvers.Adaptive()
    descent = gf.descend(problem, net, 0.01, 2)
    recorded = gf.solve(flow, traj, t1=0.2, record=RECORD)
    lanes = jax.vmap(lambda w: gf.solve(flow, w, t1=0.1))(
        jax.tree.map(lambda w: w[None], net)
    )
    return {
        "of another flow.*traj.final": lambda: gf.solve(other, traj, t1=0.2),
        "by another solver": lambda: gf.solve(flow, traj, t1=0.2, solver=adaptive),
        "leave t0 out": lambda: gf.solve(flow, traj, t1=0.2, t0=0.1),
        "must be a time that does not lie before": lambda: gf.solve(flow, traj, t1=0.05),
        "goes on by gf.descend": lambda: gf.solve(flow, descent, t1=0.2),
        r"trajectories\[1\] does not go on from": lambda: gf.concatenate([traj, traj]),
        r"has records \['risk'\]": lambda: gf.concatenate([traj, recorded]),
        "must be trajectories in one list": lambda: gf.concatenate([]),
        r"trajectories\[0\] is a batch": lambda: gf.concatenate([lanes]),
    }


def test_wrong_parts():
    for text, call in wrong().items():
        with pytest.raises((ValueError, TypeError), match=text):
            call()
