"""Stacks of convolutions from Equinox, against Equinox itself and NumPy."""

import itertools
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.integrate
from jax.flatten_util import ravel_pytree
from net_cases import rows

import gfdyn as gf
from gfdyn.nets import AveragePool, ChannelsLast, Composed, Conv, LayeredNet, Wrapped, wrap
from gfdyn.run._serialise import decode, encode


nn = eqx.nn
RELU = nn.Lambda(jax.nn.relu)
LEAKY = nn.Lambda(lambda z: jax.nn.leaky_relu(z, 0.1))
FLAT = nn.Lambda(jnp.ravel)
KEYS = jr.split(jr.key(0), 20)


def stack(in_shape, *parts, dtype=jnp.float64, flat_to: int | None = 2):
    """The model of these parts, each a layer or what builds one from a key; with a linear
    layer behind them."""
    layers: list[Any] = [
        part if isinstance(part, eqx.Module) else part(key=key)
        for part, key in zip(parts, KEYS, strict=False)
    ]
    if flat_to is not None:
        (size,) = nn.Sequential(layers)(jnp.ones(in_shape)).shape
        layers.append(nn.Linear(size, flat_to, key=KEYS[-1]))
    return jax.tree.map(
        lambda w: w.astype(dtype) if eqx.is_inexact_array(w) else w, nn.Sequential(layers)
    )


def conv(dimensions, *arguments, **options):
    return lambda key: nn.Conv(dimensions, *arguments, **options, key=key)


def linear(*arguments, **options):
    return lambda key: nn.Linear(*arguments, **options, key=key)


# The shape of an input, and the parts.
MODELS = {
    "1d": ((2, 9), (conv(1, 2, 3, 3, 2), RELU, conv(1, 3, 2, 2, 1, 1), LEAKY, FLAT)),
    "2d": (
        (2, 6, 7),
        (
            conv(2, 2, 3, (3, 2), (1, 2), ((1, 0), (2, 1))),
            RELU,
            conv(2, 3, 4, 2, padding="SAME", use_bias=False),
            LEAKY,
            FLAT,
            linear(100, 3, use_bias=False),
            RELU,
        ),
    ),
    "same lower": (
        (3, 5, 4),
        (conv(2, 3, 2, 2, (2, 1), "SAME_LOWER"), RELU, nn.Lambda(lambda a: a.reshape(-1))),
    ),
    "3d": ((2, 3, 4, 2), (conv(3, 2, 3, 2, padding=1), RELU, FLAT)),
    "one channel": ((1, 5, 4), (conv(2, 1, 2, 3), RELU, FLAT)),
    "no bias": (
        (2, 4, 4),
        (conv(2, 2, 3, 2, use_bias=False), RELU, FLAT, linear(27, 4, use_bias=False)),
    ),
    "pools": (
        (2, 8, 8),
        (
            nn.AvgPool2d(2, 1),
            conv(2, 2, 3, 3, padding=1),
            RELU,
            nn.AvgPool2d((3, 2), (2, 1), ((1, 0), (1, 1))),
            conv(2, 3, 4, 2),
            LEAKY,
            nn.AvgPool2d(2, 2),
            nn.Identity(),
            FLAT,
        ),
    ),
    "pool to one": ((3, 6), (conv(1, 3, 4, 3), RELU, nn.AvgPool1d(4, 1), FLAT)),
    "vector to image": (
        (24,),
        (nn.Lambda(lambda a: a.reshape(2, 3, 4)), conv(2, 2, 3, 2), RELU, FLAT),
    ),
    "image to vector": ((2, 3, 4), (FLAT, linear(24, 5), RELU)),
}
models = pytest.mark.parametrize("name", MODELS)


def build(name, dtype=jnp.float64) -> tuple[Any, Any, jax.Array]:
    """The model, its net and images."""
    in_shape, parts = MODELS[name]
    model = stack(in_shape, *parts, dtype=dtype)
    images = jr.normal(jr.key(7), (5, *in_shape), dtype)
    return model, wrap(model, in_shape), images


@models
@pytest.mark.parametrize(("dtype", "precision"), [("float64", 1e-12), ("float32", 1e-5)])
def test_outputs_are_those_of_equinox(name, dtype, precision):
    model, net, images = build(name, jnp.dtype(dtype))
    expected = jax.vmap(model)(images)
    assert type(net) is LayeredNet and net.knows_kinks and net(rows(images)).dtype == dtype
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(net(rows(images)), expected, rtol=0, atol=precision)
    slopes: dict[Any, float] = {RELU.fn: 0.0, LEAKY.fn: 0.1}
    assert [sigma.slope for sigma in net.activations] == [
        slopes.get(getattr(after, "fn", None), 1.0)
        for part, after in itertools.pairwise(model.layers)
        if isinstance(part, nn.Conv | nn.Linear)
    ]


@models
def test_gradients_are_those_of_equinox(name):
    """Which parameter becomes which is told by the net of the gradients."""
    model, net, images = build(name)

    def cost(outputs):
        return jnp.sum(jnp.sin(3 * outputs))

    of_model = eqx.filter_grad(lambda model: cost(jax.vmap(model)(images)))(model)
    of_net = jax.grad(lambda net: cost(net(rows(images))))(net)
    expected = wrap(eqx.combine(of_model, model), images.shape[1:])
    assert jax.tree.structure(expected) == jax.tree.structure(of_net)
    for ours, theirs in zip(*map(jax.tree.leaves, (of_net, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@models
def test_parameters_are_those_of_equinox(name):
    model, net, _ = build(name)
    weights = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    for ours, theirs in zip(jax.tree.leaves(net), weights, strict=True):
        np.testing.assert_array_equal(np.sort(ours.ravel()), np.sort(theirs.ravel()))


def test_flow_with_exact_kinks_against_scipy():
    """Of Equinox's own gradient; kinks are met, and what is conserved stays."""
    shape, parts = (1, 4, 3), (conv(2, 1, 2, 2), RELU, nn.AvgPool2d(2, 1), FLAT)
    model = stack(shape, *parts)
    net, images = wrap(model, shape), jr.normal(jr.key(7), (5, *shape))
    y = jnp.sign(jr.normal(jr.key(9), (5, 2)))
    flow = gf.GradientFlow(gf.Problem(gf.Dataset(rows(images), y), gf.losses.squared))
    t1 = 2.0
    trajectory = gf.solve(flow, net, t1=t1, solver=gf.solvers.ExactKinks(rtol=1e-8))
    start, back = ravel_pytree(eqx.filter(model, eqx.is_inexact_array))

    def risk(theta):
        there = eqx.combine(back(theta), model)
        return 0.5 * jnp.mean(jnp.sum((jax.vmap(there)(images) - y) ** 2, axis=1))

    velocity = jax.jit(lambda theta: -jax.grad(risk)(theta))
    expected = scipy.integrate.solve_ivp(
        lambda _, theta: np.asarray(velocity(jnp.asarray(theta))),
        (0, t1),
        np.asarray(start),
        method="DOP853",
        rtol=1e-9,
        atol=1e-10,
    )
    there = wrap(eqx.combine(back(jnp.asarray(expected.y[:, -1])), model), images.shape[1:])
    # Along a kink an integrator that does not know it would not get on.
    assert trajectory.stats["num_crossings"] == 3 and trajectory.stats["num_slides"] == 0
    for ours, theirs in zip(*map(jax.tree.leaves, (trajectory.final, there)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert len(net.conserved()) == len(net.activations)
    for now, before in zip(trajectory.final.invariants(), net.invariants(), strict=True):
        np.testing.assert_allclose(now, before, rtol=0, atol=1e-7)


# --- What weights come after -----------------------------------------------------------


POOL = AveragePool((5, 4, 2), (2, 3), (2, 1), ((1, 0), (0, 1)))


def test_means_by_hand():
    a = np.random.default_rng(0).normal(size=(3, 5, 4, 2))
    padded = np.pad(a, [(0, 0), (1, 0), (0, 1), (0, 0)])
    expected = np.zeros((3, 3, 3, 2))
    for i, j in itertools.product(range(3), range(3)):
        expected[:, i, j] = padded[:, 2 * i : 2 * i + 2, j : j + 3].mean(axis=(1, 2))
    assert (POOL.in_units, POOL.out_units, POOL.out_positions) == (40, 18, (3, 3))
    np.testing.assert_allclose(POOL(rows(jnp.asarray(a))), rows(expected), atol=1e-15)


@pytest.mark.parametrize("step", [POOL, ChannelsLast((2, 5, 4))])
def test_squared_coefficients(step):
    units = jnp.eye(step.in_units)
    np.testing.assert_allclose(step.of_squares(units), step(units) ** 2, rtol=1e-14)


def test_channels_last():
    a = np.arange(40.0).reshape(2, 2, 5, 2)
    got = ChannelsLast((2, 5, 2))(jnp.asarray(a.reshape(2, -1)))
    np.testing.assert_array_equal(got, np.transpose(a, (0, 2, 3, 1)).reshape(2, -1))


def test_gradient_norms_behind_means():
    """Exact in the first layer; 0 where a mean is, though its pixels are not."""
    model = stack(
        (1, 4, 4), nn.AvgPool2d(2, 2), conv(2, 1, 3, 1, use_bias=False), RELU, FLAT
    )
    net = wrap(model, (1, 4, 4))
    images = np.random.default_rng(1).normal(size=(3, 4, 4))
    images[0, :2, :2] = [[1.0, -2.0], [3.0, -2.0]]
    x = jnp.asarray(images.reshape(3, -1))
    values = tuple(gate.value for gate in net.frozen_gates(x))
    (ours,) = net.gradient_norms(x, values)
    jacobian = jax.jacrev(lambda net: net.preactivations(x)[0])(net)
    squares = [
        jnp.sum(leaf.reshape(*ours.shape, -1) ** 2, axis=-1)
        for leaf in jax.tree.leaves(jacobian)
    ]
    np.testing.assert_allclose(ours, jnp.sqrt(sum(squares)), rtol=1e-13)
    assert (ours[0, :3] == 0).all() and (ours[0, 3:] > 0).all()


def test_connections_that_are_composed():
    kernel = jr.normal(KEYS[0], (2, 2, 2, 3))
    plain = Conv(kernel, (3, 3), (1, 1), ((0, 0), (0, 0)))
    both = Composed((POOL,), plain)
    a = jr.normal(KEYS[1], (4, 40))
    np.testing.assert_allclose(both(a), plain(POOL(a)), rtol=1e-14)
    factor = jnp.array([1.0, -2.0, 0.5])
    expected = both(a).reshape(-1, 3) * factor[None]
    np.testing.assert_allclose(both.scaled(factor)(a).reshape(-1, 3), expected, rtol=1e-13)
    assert both.mixes and both.trained and both.out_units(40) == plain.out_units(18)
    with pytest.raises(ValueError, match="AveragePool of 40 units comes from 12"):
        both.out_units(12)
    with pytest.raises(ValueError, match=r"window \(6, 1\) does not fit.*\(5, 4\)"):
        AveragePool((5, 4, 2), (6, 1), (1, 1), ((0, 0), (0, 0)))


@models
def test_nets_from_images_are_saved(name):
    net, arrays = build(name)[1], {}
    again = decode(encode(net, "net", arrays), arrays, "net")
    assert jax.tree.structure(again) == jax.tree.structure(net)
    jax.tree.map(np.testing.assert_array_equal, again, net)


def test_graphs_of_nets_from_images():
    _, net, images = build("2d")
    x = rows(images)
    np.testing.assert_allclose(gf.nets.as_dag(net)(x), net(x), rtol=1e-11, atol=1e-13)
    with pytest.raises(ValueError, match="net has average pooling"):
        gf.nets.as_dag(build("pools")[1])


# --- What stays as it is ---------------------------------------------------------------


IMAGE = (2, 4, 4)
UNKNOWN = {
    "max pool": ((conv(2, 2, 3, 2), RELU, nn.MaxPool2d(2), FLAT), "MaxPool2d is no"),
    "dilation": ((conv(2, 2, 3, 2, dilation=2), RELU, FLAT), r"Conv.*dilation=\(2, 2\)"),
    "groups": ((conv(2, 2, 4, 2, groups=2), RELU, FLAT), "Conv.*groups=2"),
    "circular": ((conv(2, 2, 3, 2, padding_mode="CIRCULAR"), FLAT), "Conv.*'CIRCULAR'"),
    "ceil": (
        (conv(2, 2, 3, 2), RELU, nn.AvgPool2d(2, 2, use_ceil=True), FLAT),
        "AvgPool2d has use_ceil=True",
    ),
    "smooth": ((conv(2, 2, 3, 2), nn.Lambda(jax.nn.gelu), FLAT), "gelu is neither"),
    "first": ((RELU, conv(2, 2, 3, 2), FLAT), "relu does not follow a layer with weights"),
    "mean, then relu": (
        (conv(2, 2, 3, 2), nn.AvgPool2d(2), RELU, FLAT),
        "relu does not follow",
    ),
    "twice": ((conv(2, 2, 3, 2), LEAKY, RELU, FLAT), r"relu follows leaky_relu\(0\.1\)"),
    "within": (
        (conv(2, 2, 3, 2), nn.Lambda(lambda a: jnp.reshape(a, (9, 3, 1))), FLAT),
        r"\(3, 3, 3\) within the model is reshaped to \(9, 3, 1\)",
    ),
    "back": (
        (
            FLAT,
            linear(32, 12),
            RELU,
            nn.Lambda(lambda a: a.reshape(3, 2, 2)),
            conv(2, 3, 2, 2),
            FLAT,
        ),
        r"within the model is reshaped to \(3, 2, 2\)",
    ),
    "another order": (
        (conv(2, 2, 3, 2), RELU, nn.Lambda(lambda a: a.T.ravel())),
        "<lambda> is neither linear",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_images_are_taken_as_they_are_and_why(name):
    parts, reason = UNKNOWN[name]
    model = stack(IMAGE, *parts)
    net, images = wrap(model, IMAGE), jr.normal(jr.key(1), (5, *IMAGE))
    assert isinstance(net, Wrapped) and not net.knows_kinks and net.in_shape == IMAGE
    assert net.reason is not None and re.search(reason, net.reason)
    np.testing.assert_array_equal(net(rows(images)), jax.vmap(model)(images))


def test_an_image_is_no_vector_of_outputs():
    model = stack(IMAGE, conv(2, 2, 3, 2), FLAT, flat_to=None)
    net, images = wrap(model, IMAGE), jr.normal(jr.key(1), (5, *IMAGE))
    assert isinstance(net, Wrapped) and "its output is an image" in str(net.reason)
    np.testing.assert_array_equal(net(rows(images)), jax.vmap(model)(images))
    # One channel: the order is the same.
    model = stack(IMAGE, conv(2, 2, 1, 2), FLAT, flat_to=None)
    assert type(wrap(model, IMAGE)) is LayeredNet
    with pytest.raises(ValueError, match=r"Sequential was tried.*Give in_shape="):
        wrap(stack(IMAGE, conv(2, 2, 3, 2), flat_to=None), IMAGE)


def test_the_size_of_images_must_be_told():
    model = stack(IMAGE, conv(2, 2, 3, 2), RELU, FLAT)
    with pytest.raises(ValueError, match=r"Give in_shape=.*\(channels, height, width\)"):
        wrap(model)
    with pytest.raises(ValueError, match=r"tried with inputs of shape \(2, 4, 5\)"):
        wrap(model, (2, 4, 5))


@pytest.mark.slow
def test_flow_of_a_wrapped_model_of_images():
    parts = (conv(2, 2, 3, 2), nn.Lambda(jnp.tanh), nn.MaxPool2d(2), FLAT)
    net = wrap(stack(IMAGE, *parts), IMAGE)
    x = jr.normal(jr.key(1), (6, *IMAGE)).reshape(6, -1)
    problem = gf.Problem(gf.Dataset(x, jnp.ones((6, 2))), gf.losses.squared)
    trajectory = gf.solve(gf.GradientFlow(problem), net, t1=0.5)
    descent = gf.descend(problem, net, 1e-3, 500)
    assert trajectory.certificate.holds
    assert problem.risk(trajectory.final) < 0.5 * problem.risk(net)
    np.testing.assert_allclose(descent.final(x), trajectory.final(x), rtol=0, atol=5e-3)
