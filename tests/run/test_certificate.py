"""The certificate: small on smooth problems, large where a solver chatters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import Calls, all_active, linear_problem, sliding, tight

import gfdyn as gf


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("kind", ["physical", "loss", "arc", "escape", "localized"])
def test_small_on_kink_free_problems(kind, rtol):
    problem, net = all_active(3, noise=0.3)
    net = gf.nets.scaled_to_norm(net, 1.0)
    labels = gf.Dataset(problem.data.x, jnp.ones_like(problem.data.y))
    flow = {
        "physical": gf.GradientFlow(problem),
        "loss": gf.GradientFlow(gf.Problem(labels, gf.losses.logistic), clock="loss"),
        "arc": gf.GradientFlow(problem, clock="arc"),
        "escape": gf.EscapeFlow(problem),
        "localized": gf.EscapeFlow(problem, localized=True),
    }[kind]
    # Beyond these times the loss clock and the arc length end: t = ∞ is finitely far.
    t1 = {"arc": 0.4, "loss": 0.3}.get(kind, 3.0)
    certificate = gf.solve(flow, net, t1=t1, solver=tight(rtol)).certificate
    assert certificate.energy_residual <= 100 * rtol
    assert certificate.balance_drift <= 10 * rtol
    assert certificate.risk_increase <= 100 * rtol


def test_large_where_the_solver_chatters():
    """Neurons that slide: the field's own dissipation is not what the trajectory loses."""
    problem, net = sliding()
    with pytest.warns(gf.CertificateWarning, match=r"use gf.solvers.ExactKinks\(\)"):
        traj = gf.solve(gf.GradientFlow(problem), net, t1=30.0, solver=tight(1e-4))
    assert traj.certificate.energy_residual >= 1e-2
    assert not traj.certificate.holds
    assert "the energy identity fails" in traj.summary()
    problem, net = all_active(3, noise=0.3)
    net = gf.nets.scaled_to_norm(net, 1.0)
    smooth = gf.solve(gf.GradientFlow(problem), net, t1=3.0, solver=tight(1e-4))
    assert "energy identity fails" not in smooth.summary()
    assert smooth.certificate.holds and smooth.to_xarray().attrs["certificate_holds"] == 1


@pytest.mark.parametrize(
    "rtol, dtype, limit",
    [
        (1e-8, "float64", 2e-3),
        (5e-6, "float64", 5e-3),
        (1e-4, "float64", 1e-2),
        (1e-6, "float32", 2e-3),
    ],
)
def test_what_the_tolerance_promises(rtol, dtype, limit):
    """1000 rtol: at most a per cent, and no less than what is left of an energy that is
    measured along the steps."""
    problem, net = jax.tree.map(lambda a: a.astype(dtype), all_active(3, noise=0.3))
    flow, solver = gf.GradientFlow(problem), gf.solvers.Adaptive(rtol=rtol)
    certificate = gf.solve(flow, net, t1=0.1, ts=[0.1], solver=solver).certificate
    np.testing.assert_allclose(float(certificate.residual_limit), limit, rtol=1e-6)
    assert certificate.holds
    bad = [2 * limit, float("nan")]
    for residual in bad:
        worse = eqx.tree_at(lambda c: c.energy_residual, certificate, residual)
        assert not worse.holds


def test_a_descent_is_told_to_take_shorter_steps():
    problem, net = sliding()
    traj = gf.descend(problem, net, 0.3, 50)
    assert traj.certificate.residual_limit == 2e-3
    assert not traj.certificate.holds
    assert "lower the learning rate" in traj.summary()


def test_whether_kinks_were_verified():
    """A good residual does not tell: both ways past kinks have one."""
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    trajs = [
        gf.solve(flow, net, t1=1.0, solver=gf.solvers.ExactKinks(verified=verified))
        for verified in (None, False)
    ]
    for traj, verified in zip(trajs, (True, False), strict=True):
        assert int(traj.stats["num_slides"]) >= 1 and traj.certificate.holds
        assert bool(traj.certificate.verified) == verified
        assert ("not verified" in traj.summary()) == (not verified)
        assert traj.to_xarray().attrs["verified"] == verified


def test_what_has_no_kinks_is_verified():
    problem, _ = linear_problem()
    net = gf.nets.MLP([4, 2], key=jax.random.key(0))
    flow, solver = gf.GradientFlow(problem), gf.solvers.Adaptive()
    assert gf.solve(flow, net, t1=0.1, ts=[0.1]).certificate.verified
    assert gf.solve(flow, net, t1=0.1, ts=[0.1], solver=solver).certificate.verified
    assert gf.descend(problem, net, 0.1, 2).certificate.verified
    # What was wrapped as it is may have some.
    opaque = gf.nets.wrap(Calls(net))
    assert not gf.solve(flow, opaque, t1=0.1, ts=[0.1]).certificate.verified


def test_drift_is_what_numpy_finds_over_the_saves():
    """On a chattering problem with a save at every step, both see the same drift."""
    problem, net = sliding()
    with pytest.warns(gf.CertificateWarning):
        traj = gf.solve(
            gf.GradientFlow(problem),
            net,
            t1=10.0,
            ts=gf.AcceptedSteps(4096),
            solver=tight(1e-3),
        )
    assert len(traj.ts) == int(traj.stats["num_steps"]) + 1
    w1, w2 = (np.asarray(w) for w in traj.net.weights)
    balance = (w2**2).sum(axis=1) - (w1**2).sum(axis=2)
    square = (w1**2).sum(axis=(1, 2)) + (w2**2).sum(axis=(1, 2))
    drift = np.abs(balance - balance[0]).max(axis=1)
    # Relative to the largest norm met so far, then kept relative to the largest of all.
    expected = drift.max() / square.max()
    np.testing.assert_allclose(traj.certificate.balance_drift, expected, rtol=1e-9)
    risks = np.asarray(traj.measure(gf.diagnostics.risk))
    rise = max(np.diff(risks).max(), 0.0)
    np.testing.assert_allclose(traj.certificate.risk_increase, rise, atol=1e-15)


def test_risk_increase_sees_a_rise():
    """Gradient descent with too long a step makes the risk rise."""
    problem, _ = linear_problem()
    net = gf.nets.MLP([4, 2], key=jax.random.key(0))
    traj = gf.descend(problem, net, 2.5, 5, save_every=1)
    risks = np.asarray(traj.measure(gf.diagnostics.risk))
    assert risks[1] > risks[0]
    np.testing.assert_allclose(
        traj.certificate.risk_increase, np.diff(risks).max(), rtol=1e-12
    )


def test_scale_of_the_drift_survives_tiny_norms():
    """At r = e^−100 the balance is e^−200: relative to the largest norm, not lost to it."""
    problem, net = all_active(3, noise=0.3)
    net = gf.nets.scaled_to_norm(net, float(np.exp(-100)))
    flow = gf.EscapeFlow(problem, localized=True)
    traj = gf.solve(flow, net, t1=2.0, solver=tight(1e-8))
    assert 0 < traj.certificate.balance_drift <= 10 * 1e-8
    assert bool(jnp.isfinite(traj.certificate.energy_residual))
