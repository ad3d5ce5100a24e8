"""Risk and norm at the steps of a solve, however few saves it has."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import sliding

import gfdyn as gf
from gfdyn.run._course import course_from, without_rest


EVERY_STEP = gf.AcceptedSteps(4096)
# Whose course is there
solve: Any = gf.solve
joined: Any = gf.concatenate


@pytest.mark.parametrize(
    "coordinates",
    [
        gf.GradientFlow,
        pytest.param(
            lambda problem: gf.GradientFlow(problem, clock="arc"), marks=pytest.mark.slow
        ),
        gf.EscapeFlow,
    ],
)
def test_it_holds_what_is_measured_at_every_step(coordinates):
    problem, net = sliding()
    flow = coordinates(problem)
    few = solve(flow, net, ts=[2.0]).course
    record = {"risk": gf.diagnostics.risk, "norm": lambda _, net: gf.nets.norm(net)}
    every = solve(flow, net, t1=2.0, ts=EVERY_STEP, record=record)
    assert len(few.ts) == int(every.stats["num_steps"]) + 1
    np.testing.assert_array_equal(few.ts, every.ts)
    np.testing.assert_array_equal(few.log_time, every.log_time)
    np.testing.assert_allclose(few.risk, every.records["risk"], rtol=1e-12)
    np.testing.assert_allclose(np.exp(few.log_norm), every.records["norm"], rtol=1e-12)


@pytest.mark.parametrize("steps", [3, 511, 512, 513, 1300, 5000])
def test_a_long_one_is_thinned_evenly_between_its_ends(steps):
    def point(step):
        return step * jnp.arange(1.0, 5.0)

    number = jnp.asarray(steps)
    begun = course_from(point(0.0))
    run = jax.jit(
        lambda n: jax.lax.fori_loop(1, n + 1, lambda i, c: c.after(i, point(i)), begun)
    )
    course = without_rest(run(number).until(number, point(number)))
    stride = 1
    while steps // stride >= 512:
        stride *= 2
    kept = [*range(0, steps, stride), steps]
    np.testing.assert_array_equal(course.ts, kept)
    np.testing.assert_array_equal(course.log_norm, 4.0 * np.asarray(kept))


def test_jitted_and_batched_its_rest_is_no_number():
    problem, net = sliding()
    flow = gf.GradientFlow(problem)

    def course(scale):
        start = jax.tree.map(lambda w: scale * w, net)
        return solve(flow, start, ts=[1.0])

    batch = jax.vmap(course)(jnp.asarray([0.5, 1.0]))
    alone = course(jnp.asarray(1.0))
    assert batch.course.ts.shape == (2, 513)
    np.testing.assert_allclose(batch.lane(1).course.risk, alone.course.risk, rtol=1e-12)
    written = len(alone.course.ts)
    assert np.all(np.isnan(batch.course.risk[1, written:]))


def test_parts_are_joined_where_they_meet():
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    first = solve(flow, net, t1=2.0, max_steps=9, throw=False)
    whole = joined([first, solve(flow, first, t1=2.0)])
    once = solve(flow, net, t1=2.0)
    np.testing.assert_array_equal(whole.course.ts, once.course.ts)
    np.testing.assert_array_equal(whole.course.risk, once.course.risk)


def test_a_descent_has_none():
    problem, net = sliding()
    assert gf.descend(problem, net, 1e-3, 5).course is None


def test_a_figure_of_two_saves_shows_every_step():
    problem, net = sliding()
    traj = solve(gf.GradientFlow(problem), net, ts=[1.0, 2.0])
    axes = gf.plot(traj, layers=(), caption=False).axes
    (times, risk), (_, norm) = (np.transpose(ax.lines[0].get_xydata()) for ax in axes[:2])
    np.testing.assert_array_equal(times, np.union1d(traj.ts, traj.course.ts))
    at_steps = np.isin(times, traj.course.ts)
    np.testing.assert_allclose(risk[at_steps], traj.course.risk, rtol=1e-12)
    np.testing.assert_allclose(norm[at_steps], np.exp(traj.course.log_norm), rtol=1e-12)
