"""Lanes that run in turn: loops of known result; exact flows and their derivatives."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf
from gfdyn.run._lanes import lanes_in_turn


X, ROUNDS = np.array([0.5, -1.5, 2.0]), np.array([3, 0, 5])


def powers(loop_kind):
    """x of its own, squared in rounds; counts the rounds that are taken, of all lanes."""
    rounds = []

    def square(carry):
        x, left = carry
        jax.debug.callback(lambda: rounds.append(None))
        return x**2, left - 1

    def function(x, left, name):
        power, _ = eqxi.while_loop(
            lambda c: c[1] > 0, square, (x, left), max_steps=8, kind=loop_kind
        )
        return {"power": power, "name": name}

    return lanes_in_turn(function, loop_kind), rounds


@pytest.fixture(params=["lax", "checkpointed"])
def loop_kind(request):
    return request.param


def test_each_lane_takes_its_own_rounds(loop_kind):
    function, rounds = powers(loop_kind)
    x, left = jnp.asarray(X), jnp.asarray(ROUNDS)
    both = eqx.filter_vmap(lambda x, left: function(x, left, "square"))(x, left)
    jax.effects_barrier()
    assert both["name"] == "square"
    np.testing.assert_allclose(both["power"], X ** (2**ROUNDS), rtol=1e-14)
    assert len(rounds) == ROUNDS.sum()


@pytest.mark.parametrize("jitted", [False, True])
def test_derivatives_in_all_orders_of_transformations(loop_kind, jitted):
    function, _ = powers(loop_kind)

    def power(x, left):
        return function(x, left, None)["power"]

    def summed(x):
        return jax.vmap(power)(x, jnp.asarray(ROUNDS)).sum()

    reverse = loop_kind == "checkpointed"
    derivative = jax.grad if reverse else jax.jacfwd
    jacobian = jax.jacrev if reverse else jax.jacfwd
    jit = jax.jit if jitted else lambda f: f
    x, left = jnp.asarray(X), jnp.asarray(ROUNDS)
    expected = 2**ROUNDS * X ** (2**ROUNDS - 1)
    single = jit(derivative(power))
    for i in range(3):
        np.testing.assert_allclose(single(x[i], left[i]), expected[i], rtol=1e-13)
    np.testing.assert_allclose(jit(jax.vmap(derivative(power)))(x, left), expected, 1e-13)
    np.testing.assert_allclose(jit(derivative(summed))(x), expected, 1e-13)
    lanes = jit(jacobian(lambda x: jax.vmap(power)(x, left)))(x)
    np.testing.assert_allclose(lanes, np.diag(expected), rtol=1e-13)


@pytest.mark.parametrize("jitted", [False, True])
def test_integers_have_no_tangents(loop_kind, jitted):
    """What cannot be differentiated takes them."""
    function, _ = powers(loop_kind)
    jit = jax.jit if jitted else lambda f: f

    def checked(x, left):
        found = jit(lambda x, left: function(x, left, left))(x, left)
        return found["power"] + eqxi.unvmap_max(found["name"]).astype(x.dtype)

    derivative = jax.grad if loop_kind == "checkpointed" else jax.jacfwd
    slope = derivative(checked)(jnp.asarray(0.5), jnp.asarray(2))
    np.testing.assert_allclose(slope, 4 * 0.5**3, rtol=1e-14)


def test_lanes_without_a_difference_stay_one(loop_kind):
    """What does not depend on the lane has none, as `out_axes` says; under two vmaps."""
    function, _ = powers(loop_kind)
    x, left = jnp.asarray(X), jnp.asarray(ROUNDS)
    table = jax.vmap(lambda left: jax.vmap(lambda x: function(x, left, None)["power"])(x))(
        left
    )
    np.testing.assert_allclose(table, X[None] ** (2 ** ROUNDS[:, None]), rtol=1e-14)


@pytest.mark.slow
def test_lanes_of_exact_flows_and_their_gradients():
    """Against finite differences of the flow map, through kinks."""
    data = gf.data.teacher(6, [2, 2, 1], key=jax.random.key(3))
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    nets = [gf.nets.MLP([2, 3, 1], key=jax.random.key(s)) for s in range(3)]
    stack = jax.tree.map(lambda *w: jnp.stack(w), *nets)
    solver = gf.solvers.ExactKinks(rtol=1e-9)

    @eqx.filter_jit
    def final_risk(scale, net):
        start = jax.tree.map(lambda w: scale * w, net)
        traj = gf.solve(flow, start, t1=3.0, ts=[3.0], solver=solver, throw=False)
        return traj.final_risk, traj.stats["num_crossings"] + traj.stats["num_slides"]

    ones = jnp.ones(3)
    gradient = jax.vmap(jax.grad(final_risk, has_aux=True))
    slopes, events = gradient(ones, stack)
    assert events.min() > 0
    for i, net in enumerate(nets):
        ahead, behind = (final_risk(1.0 + h, net)[0] for h in (1e-4, -1e-4))
        assert abs(slopes[i] - (ahead - behind) / 2e-4) <= 1e-5 * abs(slopes[i])
