"""Nets deepened and rebalanced, against loops."""

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
    deepen,
    rebalance,
)


# --- Deeper nets -----------------------------------------------------------------------


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


# --- Balanced nets ---------------------------------------------------------------------


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
