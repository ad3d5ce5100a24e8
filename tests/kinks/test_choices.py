"""Kinks that turn from attracting to repelling, where the flow is not unique."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf
from gfdyn.solvers._first_event import Leaving


T1 = 5.0
OFF, ON = gf.Kinks.sides.index("off"), gf.Kinks.sides.index("on")
# One neuron with v = (1, start) and w = -0.3; x₁ = (0, 1) and x₂ = (1, b), labels 1. Along
# the kink of x₁ its gate stands at λ = -b (1 - w v₁), at -b as w passes 0.
SIDES = pytest.mark.parametrize(
    "b, start, side, other", [(-0.3, 0.02, OFF, ON), (-0.7, 0.002, ON, OFF)]
)


def turning(b, start):
    data = gf.Dataset(jnp.asarray([[0.0, 1.0], [1.0, b]]), jnp.ones((2, 1)))
    net = gf.nets.MLP.from_weights([jnp.asarray([[1.0, start]]), jnp.asarray([[-0.3]])])
    return gf.Problem(data, gf.losses.squared), net


def row(net):
    return np.concatenate([np.ravel(w) for w in net.weights])


@functools.cache
def descended(b, start, rate):
    """Where plain gradient descent is at T1."""
    problem, net = turning(b, start)
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    w, v = (np.array(weights) for weights in net.weights)
    for _ in range(round(T1 / rate)):
        z = x @ w.T
        residual = (np.maximum(z, 0) @ v.T - y) / len(x)
        step = ((residual @ v) * (z > 0)).T @ x, residual.T @ np.maximum(z, 0)
        w, v = w - rate * step[0], v - rate * step[1]
    return np.concatenate([w.ravel(), v.ravel()])


def solved(problem, net, t1=T1):
    flow, solver = gf.GradientFlow(problem), gf.solvers.ExactKinks(rtol=1e-9)
    traj = gf.solve(flow, net, ts=[t1], solver=solver, kinks=8)
    assert traj.kinks is not None
    return traj, traj.kinks


@jax.jit
def flow_map(b, parameters):
    """The parameters at T1 and their derivative in v₂ and w at the start."""

    def end(start, w):
        problem, net = turning(b, start)
        net = gf.nets.MLP.from_weights([net.weights[0], jnp.reshape(w, (1, 1))])
        solver = gf.solvers.ExactKinks(rtol=1e-11)
        flow = gf.GradientFlow(problem)
        traj = gf.solve(flow, net, ts=[T1], solver=solver, derivatives="forward")
        final = jnp.concatenate([jnp.ravel(w) for w in traj.final.weights])
        return final, final

    slopes, final = jax.jacfwd(end, (0, 1), has_aux=True)(*parameters)
    return final, slopes


@SIDES
def test_two_descents_end_on_two_sides(b, start, side, other):
    """The flow goes to that on which its gate stands for most of the time: as most descents
    do, of which the others go to the other one."""
    end = row(solved(*turning(b, start))[0].final)
    rates = 1e-3 * np.arange(10, 0, -1)
    gaps = {rate: np.abs(descended(b, start, rate) - end).max() for rate in rates}
    there = [rate for rate in rates if gaps[rate] < 2 * rate]
    elsewhere = [rate for rate in rates if gaps[rate] > 0.5]
    assert len(there) + len(elsewhere) == len(rates)
    assert len(there) > len(elsewhere) >= 1
    # First order in the rate
    assert gaps[there[-1]] / there[-1] < 2 * gaps[there[0]] / there[0]


@SIDES
def test_a_choice_is_logged_with_both_sides(b, start, side, other):
    traj, log = solved(*turning(b, start))
    (choice,) = np.flatnonzero(np.asarray(log.kind) == gf.Kinks.kinds.index("choice"))
    site = int(log.layer[choice]), int(log.unit[choice]), int(log.sample[choice])
    assert site == (1, 0, 0)
    assert log.side is not None and log.other_side is not None
    assert (int(log.side[choice]), int(log.other_side[choice])) == (side, other)
    assert np.all(np.delete(np.asarray(log.other_side), choice) == -1)
    assert int(traj.certificate.choices) == 1
    assert "choices          1" in traj.summary()
    named = traj.to_xarray()
    assert named.kink_other_side.values[choice] == gf.Kinks.sides[other]
    assert set(np.delete(named.kink_other_side.values, choice)) <= {""}


@SIDES
def test_the_other_side_is_a_flow_as_well(b, start, side, other):
    """It is what descents to that side converge to; started by next to nothing beyond the
    kink as the output weight passes 0, the flow takes it."""
    problem, net = turning(b, start)
    _, log = solved(problem, net)
    choice = np.asarray(log.kind) == gf.Kinks.kinds.index("choice")
    turn = float(np.asarray(log.time)[choice][0])
    w, v = solved(problem, net, turn)[0].final.weights
    beyond = w.at[0, 1].set(1e-7 if other == ON else -1e-7)
    net = gf.nets.MLP.from_weights([beyond, jnp.full_like(v, 1e-7)])
    end = row(solved(problem, net, T1 - turn)[0].final)
    rates = 1e-3 * np.arange(10, 0, -1)
    gaps = [np.abs(descended(b, start, rate) - end).max() / rate for rate in rates]
    assert min(gaps) < 2


@SIDES
def test_derivatives_through_a_turn(b, start, side, other):
    """Against central differences of the flow map, on one side."""
    at = start, -0.3
    _, slopes = flow_map(b, at)
    for which in (0, 1):
        size = 1e-4 * abs(at[which])
        moved = [list(at), list(at)]
        moved[0][which] += size
        moved[1][which] -= size
        ends = [flow_map(b, tuple(parameters))[0] for parameters in moved]
        difference = (ends[0] - ends[1]) / (2 * size)
        np.testing.assert_allclose(slopes[which], difference, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "before, now, missed",
    [(2.0, -1.0, 0.5), (-1.0, -2.0, 6.0), (-1.0, -1.0, np.inf), (np.inf, -1.0, np.inf)],
)
def test_what_is_missed_by_letting_go_late(before, now, missed):
    """Ψ falls in a line for 3 units of time: the area of the triangle below 0. Where it is
    not known to have fallen, anything may have been missed."""

    def leaving(psi):
        nobody = jnp.zeros(1, jnp.int8)
        yes, first, room = jnp.asarray(True), jnp.asarray(0), jnp.asarray(-1.0)
        return Leaving(nobody, yes, nobody, first, room, jnp.asarray([psi]))

    late = leaving(now).missed(leaving(before), jnp.asarray(3.0))
    np.testing.assert_allclose(late, missed)
