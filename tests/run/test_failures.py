"""Failures by their cause: each has a result of its own, and its remedy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf


def separable(depth=3):
    """Logistic regression by a deep linear net: its clock of the loss has an end."""
    x, y = np.asarray([[1.0, 0.2], [-0.8, 0.1]]), np.asarray([[1.0], [-1.0]])
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.logistic)
    net = gf.nets.MLP(
        [2, *[2] * (depth - 1), 1], key=jax.random.key(0), activation="identity"
    )
    return problem, net


def test_the_clock_of_the_loss_has_an_end_at_depth_three():
    problem, net = separable()
    flow = gf.GradientFlow(problem, clock="loss")
    traj = gf.solve(flow, net, t1=1e4, throw=False)
    assert traj.result == gf.RESULTS.clock_ended
    assert "RiskBelow" in traj.summary() and "clock='arc'" in traj.summary()
    # d log ‖θ‖/dτ → 1/(τ* − τ), so that with log t ~ ‖θ‖³ its end is where that says
    assert traj.final_log_time > 100
    assert traj.certificate.holds
    later = flow.log_time_rate(traj.final_position) - traj.final_log_time
    remaining = 3 * traj.final_log_time / jnp.exp(later)
    assert remaining < 0.05 * traj.final_time
    stopped = gf.solve(flow, net, t1=1e4, stop=gf.stopping.RiskBelow(1e-30))
    assert stopped.stopped_by == "RiskBelow"


@pytest.mark.parametrize("clock", ["loss", "arc"])
def test_clocks_without_an_end_go_on(clock):
    """At depth two the clock of the loss lasts, and that of arc length always does."""
    problem, net = separable(2 if clock == "loss" else 3)
    span = 6.0 if clock == "loss" else 12.0
    traj = gf.solve(gf.GradientFlow(problem, clock=clock), net, t1=span)
    assert traj.result == gf.RESULTS.successful and traj.final_log_time > 100


def test_descents_that_diverge_say_what_helps():
    problem, net = separable(2)
    with pytest.raises(gf.SolveError, match="descent diverged.*Lower the learning rate"):
        gf.descend(problem, net, 1e200, 50)
    traj = gf.descend(problem, net, 1e200, 50, throw=False)
    assert traj.result == gf.RESULTS.diverged
    assert "diverged" in traj.summary() and "certificate" not in traj.summary()


def test_a_flow_that_waits_at_the_saddle_says_so():
    problem, net = separable()
    flow = gf.GradientFlow(problem)
    small = jax.tree.map(lambda w: 1e-8 * w, net)
    waits = gf.solve(flow, small, t1=10.0)
    assert "hardly moved from the saddle at 0" in waits.summary()
    assert "gf.EscapeFlow(problem)" in waits.summary()
    assert "saddle" not in gf.solve(flow, net, t1=1.0).summary()
    escape = gf.solve(gf.EscapeFlow(problem), small, t1=1.0)
    assert "saddle" not in escape.summary()
    model = eqx.nn.MLP(2, 1, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    smooth = gf.nets.wrap(model)
    assert smooth.degree is None
    still = gf.solve(flow, jax.tree.map(lambda w: 1e-8 * w, smooth), t1=1e-8)
    assert "hardly moved from where all outputs are 0" in still.summary()


def test_under_jit_a_failure_says_the_same():
    problem, net = separable(2)
    flow = gf.GradientFlow(problem)

    def run(t1):
        return gf.solve(flow, net, t1=t1, max_steps=3).final_risk

    with pytest.raises(gf.SolveError) as eager:
        run(5.0)
    message = str(eager.value).partition(" (at t")[0]
    assert message.startswith("max_steps_reached: ")
    assert "maximum number of solver steps" in message
    with pytest.raises(RuntimeError) as jitted:
        jax.block_until_ready(jax.jit(run)(jnp.asarray(5.0)))
    assert message in str(jitted.value)
