"""Gradient flow against closed forms: balance, decay, clocks, normalisation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import (
    all_active,
    biased_net,
    distance,
    float_dtypes,
    linear_problem,
    rows,
    sliding,
    tight,
)

import gfdyn as gf
from gfdyn.theory.le_jegelka import counterexample


def linear_net(depth: int = 3, seed: int = 0) -> gf.nets.MLP:
    widths = [4, *[3] * (depth - 1), 2]
    net = gf.nets.MLP(widths, key=jax.random.key(seed), activation="identity")
    return gf.nets.scaled_to_norm(net, 1.5)


def test_one_layer_has_a_closed_form():
    """W(t) − W* = (W(0) − W*) e^{−Σt}, Σ = XᵀX/N, for linear regression."""
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), rng.normal(size=(2, 3))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    net = gf.nets.MLP.from_weights([w])
    traj = gf.solve(gf.GradientFlow(problem), net, ts=[0.5, 2.0], solver=tight())
    covariance = x.T @ x / 9
    values, vectors = np.linalg.eigh(covariance)
    best = np.linalg.solve(covariance, x.T @ y / 9).T
    for i, t in enumerate((0.5, 2.0)):
        decay = vectors @ np.diag(np.exp(-t * values)) @ vectors.T
        expected = best + (w - best) @ decay
        np.testing.assert_allclose(traj.net.weights[0][i], expected, rtol=1e-8, atol=1e-9)


# At 1e-4 the energy is off by per cents, the balance is not.
@pytest.mark.filterwarnings("ignore::gfdyn.CertificateWarning")
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
def test_neuron_balance_is_conserved(rtol):
    problem, net = all_active(3, noise=0.3)
    flow = gf.GradientFlow(problem)
    traj = gf.solve(flow, net, t1=5.0, solver=tight(rtol))
    assert traj.certificate.balance_drift <= 10 * rtol


@pytest.mark.parametrize("decay", [0.01, 0.1])
def test_balance_decays_with_weight_decay(decay):
    """The neuron balance falls as e^{−4λt} under the penalty λ‖θ‖²."""
    problem, net = all_active(3, noise=0.3)
    flow = gf.GradientFlow(problem, weight_decay=decay)
    record = {"balance": gf.diagnostics.neuron_balance}
    traj = gf.solve(flow, net, t1=5.0, record=record, solver=tight(1e-8))
    for balance in traj.records["balance"]:
        expected = np.exp(-4 * decay * np.asarray(traj.ts))[:, None] * np.asarray(
            balance[:1]
        )
        np.testing.assert_allclose(balance, expected, atol=10 * 1e-8 * 3)
    assert traj.certificate.balance_drift <= 10 * 1e-8


def test_full_balance_is_conserved_for_linear_nets_only():
    problem, _ = linear_problem()
    record = {"balance": gf.diagnostics.balance}
    traj = gf.solve(
        gf.GradientFlow(problem), linear_net(), t1=5.0, record=record, solver=tight(1e-8)
    )
    for matrices in traj.records["balance"]:
        assert np.abs(np.asarray(matrices - matrices[:1])).max() <= 1e-6
    problem, net = sliding()
    traj = gf.solve(
        gf.GradientFlow(problem), net, t1=5.0, record=record, solver=tight(1e-4)
    )
    off_diagonal = np.asarray(
        traj.records["balance"][0][-1] - traj.records["balance"][0][0]
    )
    assert np.abs(off_diagonal - np.diag(np.diag(off_diagonal))).max() >= 1e-2
    assert np.abs(np.diag(off_diagonal)).max() <= 1e-2


def test_sum_only_rescales_time():
    problem, net = all_active(3, noise=0.3)
    total = gf.Problem(problem.data, gf.losses.squared, reduction="sum")
    n = problem.data.x.shape[0]
    mean = gf.solve(gf.GradientFlow(problem), net, ts=[0.7, 4.0], solver=tight())
    sum_ = gf.solve(gf.GradientFlow(total), net, ts=[0.7 / n, 4.0 / n], solver=tight())
    for i in range(2):
        assert distance(rows(mean.net, i), rows(sum_.net, i)) <= 1e-8


@pytest.mark.parametrize("clock", ["loss", "arc"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_clocks_agree_with_physical_time(clock, decay):
    problem, net = all_active(2, noise=0.3)
    problem = gf.Problem(
        gf.Dataset(problem.data.x, jnp.ones_like(problem.data.y)), gf.losses.logistic
    )
    flow = gf.GradientFlow(problem, weight_decay=decay, clock=clock)
    other = gf.solve(flow, net, ts=jnp.linspace(0, 0.4, 5), solver=tight())
    times = jnp.exp(other.log_time)
    physical = gf.solve(
        gf.GradientFlow(problem, weight_decay=decay), net, ts=times, solver=tight()
    )
    for i in range(5):
        assert distance(rows(other.net, i), rows(physical.net, i)) <= 1e-7
    if clock == "arc":
        fine = gf.solve(flow, net, ts=jnp.linspace(0, 0.4, 400), solver=tight(1e-8))
        steps = jax.tree.map(lambda w: jnp.diff(w, axis=0), fine.net)
        length = np.sqrt(sum(np.sum(w**2, axis=(1, 2)) for w in steps.weights)).sum()
        assert abs(length - 0.4) <= 1e-4


def test_loss_clock_reaches_margins_of_ten_thousand():
    """One sample, one weight, exponential loss: w(t) = log(t + e^{w₀}), so that log R = −w.

    In the clock of the loss log R falls at rate 1: a risk of e^−10000 is reached.
    """
    problem = gf.Problem(gf.Dataset([[1.0]], [[1.0]]), gf.losses.exponential)
    net = gf.nets.MLP.from_weights([jnp.asarray([[0.5]])])
    flow = gf.GradientFlow(problem, clock="loss")
    record = {"log_risk": gf.diagnostics.log_risk}
    ts = jnp.asarray([1.0, 100.0, 1e4])
    traj = gf.solve(flow, net, ts=ts, record=record, solver=tight())
    np.testing.assert_allclose(traj.records["log_risk"], -0.5 - np.asarray(ts), rtol=1e-9)
    # t = e^{w(τ)} − e^{w₀}, in logs.
    np.testing.assert_allclose(
        traj.log_time, 0.5 + np.asarray(ts) + np.log1p(-np.exp(-np.asarray(ts))), rtol=1e-9
    )
    assert traj.certificate.energy_residual <= 1e-8


@pytest.mark.parametrize("loss", ["logistic", "exponential", "squared", "linear"])
def test_arc_length_in_logs_is_that_of_the_gradient(loss):
    """Where nothing underflows: −∇E/‖∇E‖, at the rate ‖∇E‖ at which E falls."""
    problem, net = all_active(3, noise=0.3)
    signs = gf.Dataset(problem.data.x, jnp.ones_like(problem.data.y))
    problem = gf.Problem(signs, getattr(gf.losses, loss))

    @jax.jit
    def of_both(net):
        flows = [gf.GradientFlow(problem, decay, clock="arc") for decay in (0.0, 0.3)]
        return [
            (jax.grad(flow.risk)(net), flow.velocity(net), flow.log_time_rate(net))
            for flow in flows
        ]

    for gradient, velocity, rate in of_both(net):
        size = gf.nets.norm(gradient)
        expected = jax.tree.map(lambda g, size=size: -g / size, gradient)
        assert distance(velocity.position, expected) <= 1e-13
        np.testing.assert_allclose(velocity.dissipated, size, rtol=1e-13)
        np.testing.assert_allclose(rate, -np.log(size), rtol=1e-12)


def test_arc_length_reaches_risks_of_e_to_the_minus_ten_thousand():
    """Two opposed neurons, on a ray: ‖θ‖ = 2√q grows with τ, t = log q + Ei(q) − c."""
    problem, net = counterexample()
    flow, ts = gf.GradientFlow(problem, clock="arc"), jnp.asarray([20.0, 199.0])
    traj = gf.solve(flow, net, ts=ts, solver=tight())
    q = (0.5 + np.asarray(ts) / 2) ** 2
    for i in range(2):
        exact = jax.tree.map(lambda w, i=i: np.sqrt(q[i] / 0.25) * w, net)
        assert distance(rows(traj.net, i), exact) <= 1e-9
    # Ei(q) = e^q/q (1 + 1/q + 2/q² + …)
    series = [sum(math.factorial(k) / value**k for k in range(12)) for value in q.tolist()]
    np.testing.assert_allclose(traj.log_time, q - np.log(q) + np.log(series), rtol=1e-9)
    log_risk = jax.vmap(problem.log_risk)(traj.net)
    np.testing.assert_allclose(log_risk, -q, rtol=1e-9)
    assert log_risk[-1] < -9900


def test_float32_keeps_its_dtype_and_its_accuracy():
    problem, net = all_active(3, noise=0.3)
    net = gf.nets.scaled_to_norm(net, 1.0)
    exact = gf.solve(gf.GradientFlow(problem), net, ts=[1.0, 3.0], solver=tight())
    single = gf.Problem(problem.data.astype(jnp.float32), gf.losses.squared)
    net = jax.tree.map(lambda w: w.astype(jnp.float32), net)
    for flow in (
        gf.GradientFlow(single),
        gf.GradientFlow(single, clock="loss"),
        gf.GradientFlow(single, clock="arc", weight_decay=0.1),
    ):
        traj = gf.solve(flow, net, ts=[0.1, 0.3], solver=gf.solvers.Adaptive(rtol=1e-5))
        assert float_dtypes(traj) == {jnp.dtype(jnp.float32)}
        assert traj.certificate.energy_residual <= 100 * 1e-5
        assert traj.certificate.balance_drift <= 10 * 1e-5
    traj = gf.solve(
        gf.GradientFlow(single), net, ts=[1.0, 3.0], solver=gf.solvers.Adaptive(rtol=1e-5)
    )
    wide = jax.tree.map(lambda w: w.astype(jnp.float64), rows(traj.net, 1))
    assert distance(wide, rows(exact.net, 1)) <= 1e-4


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("clock", ["Physical", "tau"])
def test_unknown_clock(clock):
    problem, _ = linear_problem()
    with pytest.raises(ValueError, match=f"clock='{clock}'.*'physical', 'loss' or 'arc'"):
        gf.GradientFlow(problem, clock=clock)


def test_negative_weight_decay():
    problem, _ = linear_problem()
    with pytest.raises(ValueError, match="weight_decay=-0.1 must be 0 or positive"):
        gf.GradientFlow(problem, weight_decay=-0.1)


def test_any_net_written_against_gates_flows():
    """A biased net, which keeps ‖w_out‖² − ‖w_in‖² − b² of each neuron."""
    rng = np.random.default_rng(0)
    data = gf.Dataset(rng.normal(size=(6, 3)), rng.normal(size=(6, 2)))
    problem, net = gf.Problem(data, gf.losses.squared), biased_net((3, 4, 2))
    traj = gf.solve(gf.GradientFlow(problem), net, t1=1.0, solver=tight(1e-8))
    assert traj.certificate.balance_drift <= 10 * 1e-8
    assert traj.final_risk < 0.8 * traj.initial_risk
    assert "b1" in traj.to_xarray()


def test_a_flow_may_be_made_inside_jit():
    problem, net = sliding()

    @jax.jit
    def speed(net):
        flow = gf.GradientFlow(problem, weight_decay=0.1)
        return gf.nets.norm(flow.velocity(net).position)

    outside = gf.GradientFlow(problem, weight_decay=0.1).velocity(net).position
    np.testing.assert_allclose(speed(net), gf.nets.norm(outside), rtol=1e-12)
