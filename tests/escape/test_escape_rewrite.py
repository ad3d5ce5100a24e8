"""Growth along escape directions against an ODE solver; nets deepened and rebalanced."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.integrate
import scipy.optimize
from fixtures import biased_net

import gfdyn as gf
from gfdyn.escape import (
    blow_up_time,
    deepen,
    escape_time,
    explosion_radius,
    log_blow_up_time,
    log_escape_time,
    log_explosion_radius,
    rebalance,
    tau_of_unit_sphere_time,
    unit_sphere_speed,
    unit_sphere_time,
)


DEGREE: Any = 3.0
DEPTHS = pytest.mark.parametrize("depth", [2, 3, 4, 5, 6])


# --- Growth ---------------------------------------------------------------------------


@DEPTHS
def test_radius_and_time_against_an_ode_solver(depth):
    """dr/dt = s r^{L−1}, up to 95 % of the time to the blow-up (or to r = 20)."""
    speed, r0 = 0.7, 0.3
    end = float(blow_up_time(depth, speed, r0))
    end = 0.95 * end if depth > 2 else 6.0
    times = np.linspace(0, end, 9)
    r = scipy.integrate.solve_ivp(
        lambda _, r: speed * r ** (depth - 1),
        (0, end),
        [r0],
        method="DOP853",
        t_eval=times,
        rtol=1e-13,
        atol=1e-15,
    ).y[0]
    np.testing.assert_allclose(explosion_radius(depth, speed, r0, times), r, rtol=1e-8)
    np.testing.assert_allclose(escape_time(depth, speed, r0, r), times, rtol=1e-8)
    assert r[-1] > 2 * r0


@DEPTHS
def test_printed_law_is_another(depth):
    """The paper's norm at time t solves the ODE of a speed that is L^{L/2} too large, and
    its escape times are off by the measured ratios."""
    speed, first, last = 0.7, 0.3, 0.9
    true = float(escape_time(depth, speed, first / depth**0.5, last / depth**0.5))
    if depth == 2:
        printed = math.log(last / first) / (2 * speed)
    else:
        powers = first ** (2.0 - depth) + last ** (2.0 - depth)
        printed = powers / ((depth - 2) * depth * speed)
    ratios = {2: 0.5, 3: 0.385, 4: 0.078, 5: 0.0193, 6: 0.00474}
    assert printed / true == pytest.approx(ratios[depth], rel=0.01)
    t = 0.3 * true * depth ** (-depth / 2)
    if depth == 2:
        printed = first * math.exp(2 * speed * t)
    else:
        power = first ** (2.0 - depth) + (2 - depth) * depth * speed * t
        printed = power ** (1 / (2.0 - depth))
    fast = explosion_radius(depth, speed * depth ** (depth / 2), first / depth**0.5, t)
    assert float(fast) * depth**0.5 == pytest.approx(printed, rel=1e-12)


def test_small_radii_do_not_overflow():
    assert log_blow_up_time(6, 0.5, -200.0) == pytest.approx(800 - math.log(2), rel=1e-15)
    assert log_blow_up_time(2, 0.5, -200.0) == math.inf
    # From e^-200 to e^-100, nearly all of the time has gone.
    assert log_escape_time(6, 0.5, -200.0, -100.0) == log_blow_up_time(6, 0.5, -200.0)
    assert log_escape_time(2, 0.5, -200.0, -100.0) == pytest.approx(math.log(200))
    tiny = math.exp(-200)
    assert escape_time(3, 0.5, tiny, 1.0) == pytest.approx(2 * math.exp(200), rel=1e-12)
    assert escape_time(6, 0.5, tiny, 1.0) == math.inf
    assert explosion_radius(6, 0.5, tiny, 1e300) == tiny
    # A relative growth below the precision of r is still a time.
    later = log_escape_time(4, 0.5, -200.0, np.nextafter(-200.0, 0))
    assert later == pytest.approx(400 + math.log(2) + math.log(np.spacing(200.0)), rel=1e-4)


@DEPTHS
def test_time_inverts_radius(depth):
    radii = jnp.linspace(-199.9, -197, 30)
    times = log_escape_time(depth, 0.3, -200.0, radii)
    back = log_explosion_radius(depth, 0.3, -200.0, times)
    np.testing.assert_allclose(back + 200, radii + 200, rtol=1e-6)


def test_limits():
    end = float(blow_up_time(4, 2.0, 0.5))
    assert end == pytest.approx(1.0, rel=1e-14)
    radii = explosion_radius(4, 2.0, 0.5, np.array([0.0, end / 2, 1.01 * end, np.inf]))
    np.testing.assert_allclose(radii, [0.5, 0.5 * 2**0.5, np.inf, np.inf], rtol=1e-14)
    assert blow_up_time(2, 2.0, 0.5) == np.inf
    assert escape_time(4, 2.0, 0.5, np.inf) == pytest.approx(end, rel=1e-14)
    assert escape_time(4, 2.0, 0.5, 0.4) == escape_time(2, 2.0, 0.5, 0.5) == 0


@DEPTHS
def test_clocks_and_speeds_of_the_unit_sphere(depth):
    """ds = ‖θ‖^{L−2} dt and dτ = r^{L−2} dt; −L₀ at ‖θ‖ = 1."""
    norm, dt = 0.37, 0.01
    tau = (norm / depth**0.5) ** (depth - 2) * dt
    assert unit_sphere_time(tau, depth) == pytest.approx(norm ** (depth - 2) * dt)
    assert tau_of_unit_sphere_time(unit_sphere_time(tau, depth), depth) == pytest.approx(
        tau
    )
    if depth == 6:
        assert tau_of_unit_sphere_time(36.0, 6) == pytest.approx(1.0, rel=1e-14)
    problem = gf.Problem(gf.data.circle(8), gf.losses.squared)
    net = gf.nets.MLP([2, *[3] * (depth - 1), 1], key=jax.random.key(0))
    speed = gf.diagnostics.escape_speed(problem, net)
    unit = problem.localized_risk(gf.nets.scaled_to_norm(net, 1.0))
    assert unit_sphere_speed(speed, depth) == pytest.approx(float(-unit), rel=1e-12)


def test_growth_keeps_float32_and_works_under_jit_and_grad():
    r0 = jnp.asarray([0.1, 0.2], jnp.float32)
    assert escape_time(3, 0.5, r0, 1.0).dtype == jnp.float32
    assert explosion_radius(3, 0.5, r0, 1.0).dtype == jnp.float32
    times = jax.jit(jax.vmap(lambda r: escape_time(3, 0.5, r, 1.0)))(r0)
    np.testing.assert_allclose(times, 2 * (1 / np.asarray(r0) - 1), rtol=1e-6)
    # dt/ds = −t/s, dr/dt = s r^{L−1}
    slope = jax.grad(lambda s: escape_time(4, s, 0.1, 1.0))(0.5)
    assert slope == pytest.approx(-float(escape_time(4, 0.5, 0.1, 1.0)) / 0.5, rel=1e-12)
    slope = jax.grad(lambda t: explosion_radius(4, 0.5, 0.1, t))(50.0)
    r = float(explosion_radius(4, 0.5, 0.1, 50.0))
    assert slope == pytest.approx(0.5 * r**3, rel=1e-12)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: blow_up_time(1, 0.5, 0.1), ValueError, "degree=1 must be at least 2"),
        (lambda: blow_up_time(DEGREE, 0.5, 0.1), TypeError, "degree=3.0 must be an inte"),
        (lambda: escape_time(3, 0.0, 0.1, 1.0), ValueError, "speed=0.0 must be positive"),
        (lambda: log_blow_up_time(3, -1.0, 0.1), ValueError, "speed=-1.0 must be posi"),
        (lambda: explosion_radius(3, 1, 0.0, 1.0), ValueError, "initial_radius=0.0 must"),
        (lambda: escape_time(3, 1.0, 0.1, -1.0), ValueError, "radius=-1.0 must be posi"),
        (lambda: explosion_radius(3, 1.0, 0.1, -2.0), ValueError, "time=-2.0 must not be"),
        (lambda: unit_sphere_time(1.0, 0), ValueError, "degree=0 must be at least 2"),
    ],
)
def test_growth_names_wrong_arguments(unhooked, call, error, text):
    with pytest.raises(error, match=text):
        call()


# --- Deeper nets ----------------------------------------------------------------------


def regression(seed=0, outputs=2):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(7, 3)), rng.normal(size=(7, outputs))
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared)


def reference_deepened(weights, x, g, k):
    """The construction, in loops over hidden neurons; not scaled up at the end."""
    depth = len(weights)
    size = np.sqrt(sum(np.sum(w**2) for w in weights))
    weights = [np.asarray(w) * np.sqrt(depth) / size for w in weights]
    entering = x
    for w in weights[:-2]:
        entering = np.maximum(entering @ w.T, 0)
    values, total = [], 0.0
    for i in range(len(weights[-2])):
        row, column = weights[-2][i], weights[-1][:, i]
        a, b = np.linalg.norm(row), np.linalg.norm(column)
        total += a * b
        outputs = np.outer(np.maximum(entering @ (row / a), 0), column / b)
        values.append(np.sum(g * outputs))
    i = int(np.argmin(values))
    incoming, outgoing = np.zeros_like(weights[-2]), np.zeros_like(weights[-1])
    incoming[0] = np.sqrt(total) * weights[-2][i] / np.linalg.norm(weights[-2][i])
    outgoing[:, 0] = np.sqrt(total) * weights[-1][:, i] / np.linalg.norm(weights[-1][:, i])
    one = np.zeros((len(incoming), len(incoming)))
    one[0, 0] = 1.0
    return [*weights[:-2], incoming, *[one] * k, outgoing]


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_deepen_against_loops(depth):
    problem = regression()
    x, g = np.asarray(problem.data.x), -np.asarray(problem.data.y) / 7
    for seed in range(5):
        weights = reference.random_weights([3, *[4] * (depth - 1), 2], seed)
        for k in (0, 2):
            found = deepen(problem, gf.nets.MLP.from_weights(weights), k)
            assert found.degree == depth + k
            expected = reference_deepened(weights, x, g, k)
            square = sum(np.sum(w**2) for w in expected)
            assert square <= (depth + k) * (1 + 1e-14)
            for w, e in zip(found.weights, expected, strict=True):
                np.testing.assert_allclose(w, e * np.sqrt((depth + k) / square), atol=1e-13)


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_deepening_never_loses_speed(depth):
    """On some 300 nets at once that escape, for k = 0, …, 3."""
    problem = regression(depth)
    widths = [3, *[4] * (depth - 1), 2]
    rng = np.random.default_rng(depth)
    shapes = zip(widths[1:], widths[:-1], strict=True)
    weights = [rng.normal(size=(600, *shape)) for shape in shapes]

    def one(*weights):
        net = gf.nets.MLP.from_weights(weights)
        speeds = [gf.diagnostics.escape_speed(problem, net)]
        deeper = [deepen(problem, net, k) for k in range(4)]
        speeds += [gf.diagnostics.escape_speed(problem, d) for d in deeper]
        return jnp.stack(speeds), jnp.stack([gf.nets.norm(d) for d in deeper])

    speeds, norms = jax.jit(jax.vmap(one))(*weights)
    escaping = speeds[:, 0] > 0
    assert np.sum(escaping) >= 260
    before, after = speeds[escaping, :1], speeds[escaping, 1:]
    assert np.min(after - before) >= -1e-12
    np.testing.assert_allclose(
        norms, np.broadcast_to(np.sqrt(depth + np.arange(4)), norms.shape), rtol=1e-14
    )
    # And not only for nothing.
    assert np.median(after / before) > 1.2


def test_deep_layers_have_rank_one_and_are_linear():
    problem = regression()
    net = gf.nets.MLP([3, 5, 4, 4, 2], key=jax.random.key(3), scale=1e-150)
    deeper = deepen(problem, net, 3)
    assert deeper.degree == 7
    assert [w.shape for w in deeper.weights] == [
        *[w.shape for w in net.weights[:3]],
        *[(4, 4)] * 3,
        (2, 4),
    ]
    ranks = [np.linalg.matrix_rank(w) for w in deeper.weights]
    assert ranks == [3, 4, 1, 1, 1, 1, 1]
    z = deeper.preactivations(problem.data.x)
    for zl in z[3:]:
        np.testing.assert_array_equal(zl, np.maximum(zl, 0))
    # The scale of the net does not matter.
    bigger = jax.tree.map(lambda w: w * 1e155, net)
    for a, b in zip(deeper.weights, deepen(problem, bigger, 3).weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_deepen_linear_leaky_dead_and_float32():
    problem = regression(outputs=1)
    linear = gf.nets.MLP([3, 4, 1], key=jax.random.key(0), activation="identity")
    speed = gf.diagnostics.escape_speed
    found = deepen(problem, linear, 2)
    assert [sigma.name for sigma in found.activations] == ["identity"] * 3
    assert speed(problem, found) >= abs(float(speed(problem, linear)))
    leaky = gf.nets.MLP([3, 4, 4, 1], key=jax.random.key(1), activation="leaky_relu(0.1)")
    sign = 1 if speed(problem, leaky) > 0 else -1
    leaky = eqx.tree_at(lambda n: n.matrices[-1], leaky, replace_fn=lambda w: sign * w)
    assert speed(problem, deepen(problem, leaky, 0)) >= speed(problem, leaky) > 0
    # A dead neuron is not chosen, though others only cost.
    x = problem.data.x
    g = problem.cost_gradient_at_zero
    costs = jnp.sum(g * jax.nn.relu(x), axis=0, keepdims=True)
    last = jnp.sign(costs).at[0, 0].set(0.0)
    losing = gf.nets.MLP.from_weights([jnp.eye(3), last])
    assert speed(problem, losing) < 0
    assert np.linalg.norm(deepen(problem, losing, 1).weights[0]) > 0.5
    single = gf.Problem(problem.data.astype("float32"), gf.losses.squared)
    net = gf.nets.MLP([3, 4, 1], key=jax.random.key(0), dtype=jnp.float32)
    assert {w.dtype for w in deepen(single, net, 2).weights} == {np.dtype("float32")}


def test_deepen_names_wrong_arguments(unhooked):
    problem = regression()
    net = gf.nets.MLP([3, 4, 2], key=jax.random.key(0))
    with pytest.raises(ValueError, match="k=-1 must be at least 0"):
        deepen(problem, net, -1)
    with pytest.raises(TypeError, match="k=1.5 must be an integer"):
        deepen(problem, net, 1.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="one weight matrix and no hidden layer"):
        deepen(problem, gf.nets.MLP([3, 2], key=jax.random.key(0)), 1)
    leaky = gf.nets.MLP([3, 4, 2], key=jax.random.key(0), activation="leaky_relu(0.1)")
    with pytest.raises(ValueError, match=r"last activation 'leaky_relu\(0.1\)'"):
        deepen(problem, leaky, 1)
    with pytest.raises(TypeError, match="net is a BiasedNet"):
        deepen(problem, biased_net((3, 4, 2)), 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="net has 4 inputs but the data have 3"):
        deepen(problem, gf.nets.MLP([4, 4, 2], key=jax.random.key(0)), 1)
    stack = jax.vmap(lambda s: jax.tree.map(lambda w: s * w, net))(jnp.ones(2))
    with pytest.raises(ValueError, match="stack of nets"):
        deepen(problem, stack, 1)


# --- Balanced nets --------------------------------------------------------------------


def squares(net):
    return sum(float(np.sum(np.asarray(w) ** 2)) for w in net.weights)


def norms_of_neurons(net):
    """Incoming and outgoing norms of all hidden neurons."""
    pairs = list(zip(net.weights[:-1], net.weights[1:], strict=True))
    incoming = np.concatenate([np.linalg.norm(before, axis=1) for before, _ in pairs])
    outgoing = np.concatenate([np.linalg.norm(after, axis=0) for _, after in pairs])
    return incoming, outgoing


def uneven(widths, seed=0, activation="relu"):
    """Weights over several orders of magnitude."""
    rng = np.random.default_rng(seed)
    weights = [
        rng.normal(size=(m, n)) * np.exp(1.5 * rng.normal(size=(m, n)))
        for m, n in zip(widths[1:], widths[:-1], strict=True)
    ]
    return gf.nets.MLP.from_weights(weights, activation)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu(0.2)", "identity"])
@pytest.mark.parametrize("widths", [[3, 5, 2], [3, 4, 4, 4, 4, 2], [3, 6, 2, 6, 1]])
def test_rebalance(widths, activation):
    net = uneven(widths, activation=activation)
    found = rebalance(net)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(20, 3)))
    np.testing.assert_allclose(found(x), net(x), rtol=1e-12, atol=1e-11)
    incoming, outgoing = norms_of_neurons(found)
    np.testing.assert_allclose(incoming, outgoing, rtol=1e-13)
    sizes = [np.linalg.norm(w) for w in found.weights]
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-13)
    assert squares(found) < squares(net)
    assert found.activations == net.activations


def test_rebalanced_net_is_the_least_of_its_kind():
    """Against minimisation over the logarithms of all scales."""
    net = uneven([3, 4, 3, 2])
    weights = [np.asarray(w) for w in net.weights]

    def value(logs):
        scales = [np.ones(3), np.exp(logs[:4]), np.exp(logs[4:]), np.ones(2)]
        scaled = [
            w * after[:, None] / before
            for w, before, after in zip(weights, scales[:-1], scales[1:], strict=True)
        ]
        return sum(np.sum(w**2) for w in scaled)

    least = scipy.optimize.minimize(value, np.zeros(7), method="BFGS", tol=1e-12)
    assert squares(rebalance(net)) == pytest.approx(least.fun, rel=1e-10)
    assert least.fun < 0.7 * value(np.zeros(7))


def test_rebalance_at_all_scales():
    """Layers of very different size, and of sizes whose squares underflow."""
    net = uneven([3, 4, 4, 2])
    x = jnp.asarray(np.random.default_rng(1).normal(size=(20, 3)))
    scales = (1e-250, 1e150, 1e120)
    far = gf.nets.MLP.from_weights(
        [s * w for s, w in zip(scales, net.weights, strict=True)]
    )
    factor = 1e20 ** (1 / 3)
    for a, b in zip(rebalance(far).weights, rebalance(net).weights, strict=True):
        np.testing.assert_allclose(a, factor * b, rtol=1e-10)
    tiny = jax.tree.map(lambda w: 1e-200 * w, net)
    for a, b in zip(rebalance(tiny).weights, rebalance(net).weights, strict=True):
        np.testing.assert_allclose(a * 1e200, b, rtol=1e-10)
    assert np.all(np.isfinite(rebalance(far)(x)))


def test_rebalance_drops_what_is_dead():
    """Neurons cut off on one side, and those that only such neurons would use."""
    net = uneven([3, 5, 5, 5, 2])
    w = [np.array(v) for v in net.weights]
    w[3][:, 0] = 0.0
    # The last two lead to the first only
    w[2][1:, 3:] = 0.0
    # No input reaches this one.
    w[0][1] = 0.0
    net = gf.nets.MLP.from_weights(w)
    found = rebalance(net)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(20, 3)))
    np.testing.assert_allclose(found(x), net(x), rtol=1e-12, atol=1e-11)
    incoming, outgoing = norms_of_neurons(found)
    np.testing.assert_allclose(incoming, outgoing, rtol=1e-13, atol=0)
    assert np.flatnonzero(incoming == 0).tolist() == [1, 8, 9, 10]
    dead = eqx.tree_at(lambda n: n.matrices[1], net, jnp.zeros((5, 5)))
    assert all(np.all(v == 0) for v in rebalance(dead).weights)


def test_rebalance_float32_stacks_and_one_layer():
    net = gf.nets.MLP([30, 40, 40, 40, 2], key=jax.random.key(0), dtype=jnp.float32)
    found = rebalance(net)
    assert {w.dtype for w in found.weights} == {np.dtype("float32")}
    incoming, outgoing = norms_of_neurons(found)
    np.testing.assert_allclose(incoming, outgoing, rtol=1e-5)
    linear = gf.nets.MLP([3, 2], key=jax.random.key(0))
    np.testing.assert_allclose(rebalance(linear).weights[0], linear.weights[0], rtol=1e-14)
    one = uneven([3, 4, 2])
    stack = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), one)
    both = jax.jit(jax.vmap(rebalance))(stack)
    np.testing.assert_allclose(both.weights[0][1], 2 * both.weights[0][0], rtol=1e-12)


def test_rebalance_names_wrong_arguments(unhooked):
    with pytest.raises(ValueError, match="tolerance=0.0 must be positive"):
        rebalance(uneven([3, 4, 2]), tolerance=0.0)
    with pytest.raises(TypeError, match="net is a BiasedNet"):
        rebalance(biased_net((3, 4, 2)))  # pyright: ignore[reportArgumentType]


def test_rebalance_says_where_it_gives_up():
    """A tolerance below rounding is never met."""
    with pytest.raises(RuntimeError, match="after 10000 sweeps; pass a larger tolerance="):
        rebalance(uneven([3, 40, 40, 2]), tolerance=1e-20)
