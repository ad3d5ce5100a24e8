"""What is conserved on which architecture: Le & Jegelka's table, corrected."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from invariant_cases import activations, rate_of

import gfdyn as gf
from gfdyn.diagnostics import (
    gram_drift,
    gram_velocities,
    invariant_rates,
    invariants,
)
from gfdyn.nets import (
    conv,
    dense,
    densely_connected,
    resnet_diagonal,
    resnet_free,
    resnet_identity,
    sequential,
)


LOSSES = [gf.losses.logistic, gf.losses.exponential, gf.losses.squared]


# Input shape, blocks, and the form that each hidden layer has where its units are linear:
# every row of the table meets in one of these.
NETS = {
    # FC, with biases, and DenseNet
    "dense": lambda s: (
        (3,),
        [
            dense(4, s, bias=True),
            densely_connected([3, 2], s, bias=True),
            dense(1, "identity"),
        ],
        {"layer 1": "full", "layer 2": "full", "layer 3": "full"},
    ),
    # conv–conv with strides and padding, conv–FC, and with biases
    "conv": lambda s: (
        (6, 2),
        [conv(3, 3, 1, 1, s, bias=True), conv(2, 3, 2, [(2, 1)], s), dense(1, "identity")],
        {"layer 1": "full", "layer 2": "full"},
    ),
    # 2-D; conv–Free, inside Free, Free–Free, Free–FC
    "conv-free": lambda s: (
        (3, 4, 2),
        [
            conv(3, (2, 3), (1, 2), "SAME", s),
            resnet_free(3, 4, s),
            resnet_free(3, 2, s),
            dense(1, "identity"),
        ],
        {f"layer {i}": "full" for i in range(1, 6)},
    ),
    # FC–Identity–Diagonal–Diagonal–FC, and inside each
    "residual": lambda s: (
        (3,),
        [
            dense(4, s),
            resnet_identity(3, s),
            resnet_diagonal(5, s),
            resnet_diagonal(3, s),
            dense(1, "identity"),
        ],
        {
            "layer 2": "full",
            "layer 4": "full",
            "layer 5": "diagonal",
            "layer 6": "full",
            "layer 7": "diagonal",
            # Not of layers 1 and 3, before and behind a constant skip
            "cuts 0, 3": "norms",
        },
    ),
}
nets = pytest.mark.parametrize("name", NETS)
POINTS, SAMPLES = 50, 5


@functools.cache
def points(name, sigma):
    """Random nets, stacked; inputs; and ∇C of each of the losses there."""
    shape, blocks, forms = NETS[name](sigma)
    net = sequential(shape, blocks, key=jr.key(0), scale=0.7)
    leaves, tree = jax.tree.flatten(net)
    rng = np.random.default_rng(len(leaves))
    stack = [jnp.asarray(0.7 * rng.normal(size=(POINTS, *w.shape))) for w in leaves]
    x = jnp.asarray(rng.normal(size=(SAMPLES, net.in_size)))
    y = np.sign(rng.normal(size=(SAMPLES, 1)))

    @jax.jit
    def cotangents(stacked):
        outputs = jax.vmap(lambda net: net(x))(stacked)
        problems = [gf.Problem(gf.Dataset(x, jnp.asarray(y)), loss) for loss in LOSSES]
        return jnp.stack([jax.vmap(p.cost_gradient)(outputs) for p in problems])

    stacked = jax.tree.unflatten(tree, stack)
    return net, stacked, x, cotangents(stacked), forms


@functools.cache
def measured(name, sigma):
    """At all points and for all losses: rates, velocities of the Gram matrices and the
    drift law. A loss enters through its gradient only, so that of a linear one will do."""
    _, stacked, x, cotangents, _ = points(name, sigma)

    @jax.jit
    def measure(cotangents):
        def of(net, cotangent):
            problem = gf.Problem(
                gf.Dataset(x, -cotangent), gf.losses.linear, reduction="sum"
            )
            return (
                invariant_rates(problem, net),
                gram_velocities(problem, net),
                gram_drift(problem, net),
            )

        over_nets = jax.vmap(of)
        return jax.vmap(lambda c: over_nets(stacked, c))(cotangents)

    return measure(cotangents)


def largest(a):
    return np.abs(np.asarray(a)).reshape(len(LOSSES), POINTS, -1).max(axis=-1)


@activations
@nets
def test_forms(name, sigma):
    net, *_, linear = points(name, sigma)
    forms = {m.name: m.form for m in invariants(net)}
    if sigma != "identity":
        linear = {k: "blocks" if form == "full" else form for k, form in linear.items()}
    assert forms == linear
    values = net.invariants()
    for m, value in zip(invariants(net), values, strict=True):
        np.testing.assert_array_equal(m.value, value)
        square = m.outgoing.T @ m.outgoing - m.incoming @ m.incoming.T
        whole = m.form == "full"
        np.testing.assert_allclose(value, square if whole else np.diag(square), atol=1e-14)


@activations
@nets
def test_what_is_conserved_does_not_move(name, sigma):
    """d/dt along the gradient of each loss, at random nets."""
    rates, grams, _ = measured(name, sigma)
    *_, forms = points(name, sigma)
    assert set(rates) == set(forms)
    speeds = {key: largest(gram.incoming) for key, gram in grams.items()}
    speeds["cuts 0, 3"] = sum(speeds.values())
    for key, rate in rates.items():
        scale = speeds[key]
        assert np.all(largest(rate) <= 1e-12 * np.maximum(scale, 1e-3)), key
        assert np.median(scale) > 1e-3, key


@activations
@nets
def test_the_rest_moves_by_the_drift_law(name, sigma):
    """And it does move, but of linear units."""
    _, grams, drifts = measured(name, sigma)
    *_, forms = points(name, sigma)
    matrices = {key for key, form in forms.items() if form == "full"}
    assert set(drifts) == matrices
    for key, form in forms.items():
        if form == "norms":
            continue
        moved = np.asarray(grams[key].outgoing - grams[key].incoming)
        scale = np.maximum(largest(grams[key].incoming), 1e-3)
        if key in matrices:
            assert np.all(largest(moved - drifts[key]) <= 1e-12 * scale), key
        if key in matrices and sigma == "identity":
            assert np.all(largest(moved) <= 1e-12 * scale), key
        else:
            # Some point has gates that differ, even of few neurons.
            assert np.max(largest(moved) / scale) > 1e-2, key


def test_wrong_flattenings_move():
    """Each way to flatten that Le & Jegelka print, or that one could take it for."""
    net, stacked, x, _, _ = points("conv", "identity")
    y = jnp.asarray(np.sign(np.random.default_rng(5).normal(size=(SAMPLES, 1))))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.logistic)
    positions, channels = net.layers[1].shape

    def gram(w):
        return w.T @ w

    def blocks(net):
        first, second, last = net.layers
        bias, kernel = first.bias[None, :], first.connections[0].kernel.reshape(-1, 3)
        after_first = second.connections[0].kernel
        into_second = after_first.reshape(-1, channels)
        after_second = last.connections[0].weight
        out_of_first = jnp.moveaxis(after_first, 1, 2).reshape(-1, 3)
        swapped = after_second.reshape(channels, positions).T
        into_first = gram(jnp.concatenate([kernel, bias]))
        return {
            "right 1": gram(out_of_first) - into_first,
            "right 2": gram(after_second.reshape(-1, channels)) - gram(into_second),
            "channels not kept": gram(after_first.reshape(-1, 3)) - into_first,
            "no bias": gram(out_of_first) - gram(kernel),
            "positions and channels swapped": gram(swapped) - gram(into_second),
        }

    @jax.jit
    def rates(stacked):
        return jax.vmap(lambda net: rate_of(problem, net, blocks))(stacked)

    for key, rate in rates(stacked).items():
        size = np.abs(np.asarray(rate)).max(axis=(1, 2))
        if key.startswith("right"):
            assert np.all(size <= 1e-13), key
        else:
            assert np.max(size) >= 1e-2, key
