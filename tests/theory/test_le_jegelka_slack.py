"""Le & Jegelka: Lemmas 9 to 11, and the slack of descent."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import reference
from fixtures import rows
from le_jegelka_cases import positive, spectral

import gfdyn as gf
from gfdyn.nets import conv, dense, sequential
from gfdyn.theory import le_jegelka as lj


slack_identity = jax.jit(lj.slack_identity, static_argnames="version")
slack_bound = jax.jit(lj.slack_bound, static_argnames="version")
product_bound = jax.jit(lj.product_bound)


# --- Lemmas 9 to 11 --------------------------------------------------------------------


def test_flattenings():
    rng = np.random.default_rng(0)
    for shape in [(2, 3, 4), (3, 2, 1), (1, 4, 2)]:
        t = rng.normal(size=shape)
        a, b, c = shape
        # Entry by entry: rows are output channels, columns input channels.
        first, second = np.zeros((c, a * b)), np.zeros((b * c, a))
        for i, j, k in np.ndindex(*shape):
            first[k, i * b + j] = second[j * c + k, i] = t[i, j, k]
        check = lj.flattening_inequality(jnp.asarray(t))
        np.testing.assert_allclose(check.lhs, spectral(first), rtol=1e-12)
        np.testing.assert_allclose(check.rhs, min(a, b) * spectral(second), rtol=1e-12)
        assert check.verdict == "HOLDS"
    equality = lj.flattening_inequality(jnp.eye(3)[:, :, None])
    np.testing.assert_allclose([equality.lhs, equality.rhs], [3, 3], rtol=1e-12)


def test_free_blocks():
    rng = np.random.default_rng(0)
    u, y, z = (rng.normal(size=s) for s in [(2, 3), (3, 4), (2, 4)])
    into, out = np.hstack([u, z]), np.vstack([y, z])
    block = jnp.asarray(u), jnp.asarray(y), jnp.asarray(z)
    sharp = lj.free_block_inequality(*block, form="sharp")
    printed = lj.free_block_inequality(*block, form="printed")
    for check, c, part in ((sharp, 1 / 2, 1 / 2), (printed, 1 / 8, 1 / 4)):
        lhs = c * spectral(into) - part * positive(u.T @ u - y @ y.T)
        np.testing.assert_allclose([check.lhs, check.rhs], [lhs, spectral(out)], rtol=1e-12)
        assert bool(check.holds)
    # 1/2 is tight: U and Z read and write apart in B, together in A.
    e = jnp.eye(2)
    check = lj.free_block_inequality(e[:1, :1], e[:1], e[1:])
    np.testing.assert_allclose([check.lhs, check.rhs], [1, 1], rtol=1e-12)


# --- Descent ---------------------------------------------------------------------------


def relu_problem(sigma):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(6, 3))
    y = np.sign(x @ rng.normal(size=3))[:, None]
    ws = reference.random_weights([3, 4, 3, 1], seed=2)
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.logistic)
    return problem, gf.nets.MLP.from_weights(ws, sigma)


@pytest.mark.parametrize("sigma", ["relu", "identity"])
def test_slack_of_descent(sigma):
    problem, net = relu_problem(sigma)
    rates = np.array([0.5, 0.1, 0.9, 0.3])
    # Steps by NumPy
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    slopes = [s.slope for s in net.activations]
    nets, ws = [], [np.asarray(w) for w in net.weights]
    slack = np.zeros((3, 3))
    for rate in [*rates, 0]:
        nets.append([jnp.asarray(w) for w in ws])
        g = reference.risk_gradient("logistic", ws, slopes, x, y)
        slack += rate**2 * (g[2].T @ g[2] - g[1] @ g[1].T)
        ws = [w - rate * v for w, v in zip(ws, g, strict=True)]
    steps = [gf.nets.MLP.from_weights(ws, sigma) for ws in nets]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps)
    check = slack_identity(problem, stack, rates)
    assert check.lhs.shape == (2,) and bool(jnp.all(check.lhs < 1e-14))
    assert check.verdict == "HOLDS"
    wrong = slack_identity(problem, stack, rates[::-1].copy())
    assert wrong.verdict == "VIOLATED"
    first = slack_identity(problem, stack, rates, "first")
    assert first.verdict == ("HOLDS" if sigma == "identity" else "VIOLATED")
    # What moved, by hand
    m = [w[2].T @ w[2] - w[1] @ w[1].T for w in (nets[0], nets[-1])]
    gap = np.asarray(m[1] - m[0]) - slack
    largest = np.abs(gap).max() if sigma == "identity" else np.abs(np.diag(gap)).max()
    assert largest < 1e-13


def test_slack_along_descend():
    blocks = [conv(2, 2, 1, 0, "relu"), dense(3, "identity"), dense(1, "identity")]
    net = sequential((4, 1), blocks, key=jr.key(3), scale=0.7)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(6, 4))
    data = gf.Dataset(x, np.sign(x[:, :1]))
    problem = gf.Problem(data, gf.losses.logistic)
    traj = gf.descend(problem, net, 0.2, 50, save_every=1)
    check = slack_identity(problem, traj.net, 0.2)
    assert bool(jnp.all(check.lhs < 1e-12)) and check.verdict == "HOLDS"
    bound = slack_bound(problem, traj.net, 0.2)
    np.testing.assert_allclose(bound.rhs, 2 * float(problem.risk(net)), rtol=1e-14)
    assert bound.verdict == "HOLDS" and bool(jnp.all(bound.lhs > 1e-5))
    before, after = (rows(traj.net, i).conserved()[1].matrix for i in (0, 50))
    assert bound.lhs[1] >= np.linalg.norm(np.asarray(after - before)) * (1 - 1e-12)
    products = product_bound(problem, traj.net, 0.2)
    slope = jax.jit(jax.grad(problem.risk))
    flat = [
        np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient)])
        for gradient in (slope(rows(traj.net, t)) for t in range(50))
    ]
    expected = np.abs(sum(0.04 * np.outer(g, g) for g in flat))
    np.testing.assert_allclose(products.lhs, expected, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(np.diag(products.rhs), 2 * float(problem.risk(net)))
    assert products.verdict == "HOLDS"


def test_slack_bound_asks_for_small_rates():
    problem, net = relu_problem("relu")
    stack = jax.tree.map(lambda w: jnp.stack([w, w]), net)
    check = slack_bound(problem, stack, 2.0)
    assert check.verdict == "ASSUMPTIONS NOT MET"
    assert "not rates of at most 1" in str(check)


def test_stacks_that_do_not_fit():
    problem, net = relu_problem("relu")
    with pytest.raises(
        ValueError, match="give one stack of two nets or more, such as traj"
    ):
        lj.slack_identity(problem, net, 0.1)
    stack = jax.tree.map(lambda w: jnp.stack([w, w, w]), net)
    with pytest.raises(ValueError, match=r"shape \(3,\), but 3 nets have 2 steps between"):
        lj.slack_identity(problem, stack, np.ones(3))
