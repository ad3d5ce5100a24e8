"""Batch normalisation: against NumPy, and with statistics that stay; the named nets."""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import reference
from fixtures import float_dtypes

import gfdyn as gf
from gfdyn.nets import architecture, batch_norm, conv, dense, sequential
from gfdyn.run._serialise import decode, encode


N = 7


def moved(net, seed=0):
    """The net with all parameters changed: γ and β are not 1 and 0."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda w: w + 0.3 * rng.normal(size=w.shape), net)


def chain(affine: Any = "channel", detach=True, eps=0.1):
    """4 → 5 → 6 → 3, both hidden layers normalised."""
    norm = batch_norm(affine, detach=detach, eps=eps)
    blocks = [dense(5, norm=norm), dense(6, norm=norm), dense(3, "identity")]
    return moved(sequential(4, blocks, key=jr.key(0)))


def regression(inputs=4, outputs=3, n=N, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, inputs)), rng.normal(size=(n, outputs))
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared)


def parts(net):
    """Weights, γ and β of each hidden layer, in NumPy."""
    norms = [layer.norm for layer in net.layers[:-1]]
    gains = [1.0 if norm.gain is None else np.asarray(norm.gain) for norm in norms]
    shifts = [0.0 if norm.shift is None else np.asarray(norm.shift) for norm in norms]
    return [np.asarray(w) for w in net.weights], gains, shifts


# --- The layer ------------------------------------------------------------------------


@pytest.mark.parametrize("affine", ["channel", "scalar", None])
@pytest.mark.parametrize("detach, eps", [(True, 0.1), (False, 0.1), (False, 0.0)])
def test_outputs_and_gradients_by_hand(affine, detach, eps):
    """Through the scale, or with the scale as a constant."""
    problem, net = regression(), chain(affine, detach, eps)
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    gradient = jax.jit(jax.grad(problem.risk))(net)
    outputs = reference.batch_norm_forward(*parts(net), x, eps)[0]
    np.testing.assert_allclose(problem.outputs(net), outputs, rtol=1e-12)
    expected = reference.batch_norm_backprop(*parts(net), x, (outputs - y) / N, eps, detach)
    if affine == "scalar":
        expected = expected[0], *([g.sum() for g in each] for each in expected[1:])
    found = parts(gradient) if affine else (parts(gradient)[0],)
    for ours, theirs in zip(found, expected, strict=affine is not None):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14)


def test_channels_have_the_mean_and_variance_that_they_are_given():
    """β and γ², over samples and positions; what does not vary is β."""
    norm = batch_norm(eps=0.0)
    blocks = [conv(2, 2, norm=norm), dense(3, norm=norm), dense(1, "identity")]
    net = moved(sequential((3, 2), blocks, key=jr.key(0)))
    sites = jax.jit(lambda net, x: net.preactivations(x))
    first, second = sites(net, jr.normal(jr.key(1), (N, 6)))
    for layer, z in zip(net.layers, (first.reshape(-1, 2), second), strict=False):
        np.testing.assert_allclose(z.mean(axis=0), layer.norm.shift, rtol=1e-12)
        np.testing.assert_allclose(z.var(axis=0), layer.norm.gain**2, rtol=1e-12)
    constant = jnp.ones((N, 6))
    expected = np.tile(net.layers[1].norm.shift, (N, 1))
    np.testing.assert_array_equal(sites(net, constant)[1], expected)
    slopes = jax.jit(jax.grad(lambda net: jnp.sum(net(constant))))(net)
    assert all(bool(jnp.isfinite(w).all()) for w in jax.tree.leaves(slopes))


def test_only_weights_decay_and_only_they_are_weights():
    net = chain()
    names = ("W1", "gain1", "shift1", "W2", "gain2", "shift2", "W3")
    assert net.parameter_names == names
    found = dict(zip(names, jax.tree.leaves(gf.nets.weight_mask(net)), strict=True))
    assert found == {name: name.startswith("W") for name in names}
    assert [w.shape for w in net.weights] == [(5, 4), (6, 5), (3, 6)]
    assert chain(None).parameter_names == ("W1", "W2", "W3")
    assert net.degree is None


def test_it_can_be_written_to_a_file():
    net, arrays = chain(), {}
    again = decode(json.loads(json.dumps(encode(net, "net", arrays))), arrays, "net")
    assert jax.tree.structure(again) == jax.tree.structure(net)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(net), strict=True):
        np.testing.assert_array_equal(a, b)


def test_float32():
    net = architecture("RES-BN-1-4", 4, 3, key=jr.key(0), dtype=jnp.float32)
    x = jnp.ones((N, 4), jnp.float32).at[0].set(0)
    fixed = gf.nets.normalised_by(net, x)
    assert float_dtypes((net, fixed, net(x))) == {jnp.dtype("float32")}
    np.testing.assert_allclose(fixed(x), net(x), rtol=1e-4, atol=1e-5)


# --- Statistics that stay --------------------------------------------------------------


def test_statistics_of_the_training_set_by_hand():
    problem, net, rng = regression(), chain(), np.random.default_rng(1)
    x, other = np.asarray(problem.data.x), rng.normal(size=(5, 4))
    fixed = gf.nets.normalised_by(net, problem.data.x)
    weights, gains, shifts = parts(net)
    seen = reference.batch_norm_forward(weights, gains, shifts, x, 0.1)[2]
    a = other
    for w, gain, shift, (entering, _, scale, _) in zip(
        weights[:-1], gains, shifts, seen, strict=True
    ):
        mean = (entering @ w.T).mean(axis=0)
        a = np.maximum(gain * scale * (a @ w.T - mean) + shift, 0)
    np.testing.assert_allclose(fixed(jnp.asarray(other)), a @ weights[-1].T, rtol=1e-12)
    np.testing.assert_allclose(fixed(problem.data.x), net(problem.data.x), rtol=1e-12)
    # Samples no longer see each other, and have kinks.
    other = jnp.asarray(other)
    np.testing.assert_allclose(fixed(other[:1]), fixed(other)[:1], rtol=1e-13)
    assert fixed.parameter_names == ("W1", "b1", "W2", "b2", "W3")
    values = tuple(gate.value for gate in fixed.frozen_gates(other))
    assert all((norms > 0).all() for norms in fixed.gradient_norms(other, values))
    mlp = gf.nets.MLP([4, 3], key=jr.key(0))
    assert gf.nets.normalised_by(mlp, problem.data.x) is mlp


@pytest.mark.parametrize("affine", ["scalar", None])
def test_statistics_stay_in_every_connection(affine):
    """Convolutions, trained diagonals, skips, several sources."""
    norm, nets = batch_norm(affine), gf.nets
    kernel, w = jr.normal(jr.key(0), (2, 1, 2)), jr.normal(jr.key(1), (4, 4))
    relu = nets.relu()
    of = norm(2, float), norm(4, float)
    layers = [
        nets.Layer((nets.Conv(kernel, (3,), (1,), ((0, 0),)),), None, (0,), relu, (2, 2),
                   of[0]),
        nets.Layer((nets.Dense(w),), jnp.arange(2.0), (1,), relu, (2, 2), of[0]),
        nets.Layer((nets.Identity(), nets.Diagonal(w[0]), nets.Dense(w)), None, (1, 2, 2),
                   relu, (4,), of[1]),
        nets.Layer((nets.Dense(w[:2]),), None, (3,), nets.identity(), (2,)),
    ]  # fmt: skip
    net, x = moved(nets.LayeredNet((3, 1), layers)), jr.normal(jr.key(2), (N, 3))

    @jax.jit
    def outputs(net):
        fixed = gf.nets.normalised_by(net, x)
        return net(x), fixed(x), fixed(x[:2])

    expected, fixed, first = outputs(net)
    np.testing.assert_allclose(fixed, expected, rtol=1e-11)
    np.testing.assert_allclose(first, expected[:2], rtol=1e-11)


# --- What it refuses ------------------------------------------------------------------


def test_single_samples_and_kinks_are_refused():
    problem, net = regression(), chain()
    with pytest.raises(ValueError, match="batch normalisation of 1 sample, which has no"):
        net(problem.data.x[:1])
    with pytest.raises(ValueError, match="no sample has kinks of its own; use gf.descend"):
        gf.solve(gf.GradientFlow(problem), net, t1=1.0)
    with pytest.raises(ValueError, match="is no edge of a graph; fix its statistics"):
        gf.nets.as_dag(net)
    with pytest.raises(ValueError, match="that is not positively homogeneous"):
        gf.solve(gf.EscapeFlow(problem), net, t1=1.0)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: batch_norm("vector"), "affine='vector'; use 'channel', 'scalar' or None"),  # pyright: ignore
        (lambda: batch_norm(eps=-1.0), "eps=-1.0 must be 0 or positive"),
        (lambda: named("VGG-3-5"), "name='VGG-3-5' is unknown; use 'MLP-L-H', 'MLP-BN-"),
        (lambda: named("MLP-0-5"), "name='MLP-0-5' is unknown"),
        (lambda: named("RES-2-5", norm=batch_norm()), "norm is given, but name='RES-2-5'"),
        (
            lambda: gf.nets.Layer(
                (gf.nets.Identity(),), None, (0,), gf.nets.identity(), (3,),
                batch_norm()(2, float),
            ),
            "",
        ),
    ],
    ids=["affine", "eps", "name", "depth", "norm", "channels"],
)  # fmt: skip
def test_arguments(build, message, unhooked):
    if not message:
        layer = build()
        message = "layer 1 has 3 channels, but its norm has 2"
        build = lambda: gf.nets.LayeredNet((3,), [layer])  # noqa: E731
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


# --- The named nets --------------------------------------------------------------------


def named(name, **given):
    return architecture(name, 4, 3, key=jr.key(0), **given)


@pytest.mark.parametrize(
    "name, shapes",
    [
        ("MLP-2-5", [(5, 4), (5, 5), (3, 5)]),
        ("MLP-BN-2-5", [(5, 4), (5, 5), (3, 5)]),
        ("RES-2-5", [(5, 4), *[(5, 5)] * 4, (3, 5)]),
        ("RES-BN-2-5", [(5, 4), *[(5, 5)] * 4, (3, 5)]),
    ],
)
def test_named_nets_by_hand(name, shapes):
    net, x = moved(named(name)), np.random.default_rng(1).normal(size=(N, 4))
    assert [w.shape for w in net.weights] == shapes
    weights = [np.asarray(w) for w in net.weights]
    norms = [layer.norm for layer in getattr(net, "layers", ()) if layer.norm is not None]
    assert len(norms) == {"RES-BN-2-5": 4, "MLP-BN-2-5": 2}.get(name, 0)

    def unit(z):
        if norms:
            norm = norms.pop(0)
            z = (z - z.mean(axis=0)) / np.sqrt(z.var(axis=0) + 1e-5)
            z = z * np.asarray(norm.gain) + np.asarray(norm.shift)
        return np.maximum(z, 0)

    first, *middle, last = weights
    if name.startswith("MLP"):
        a = unit(unit(x @ first.T) @ middle[0].T)
    else:
        a = x @ first.T
        for inner, outer in zip(middle[::2], middle[1::2], strict=True):
            a = a + unit(unit(a @ inner.T) @ outer.T)
    found = jax.jit(lambda net, x: net(x))(net, jnp.asarray(x))
    np.testing.assert_allclose(found, a @ last.T, rtol=1e-12)


@pytest.mark.parametrize("name", ["MLP-1-40", "RES-1-40"])
def test_weights_are_uniform_within_their_bound(name):
    """Var = bound²/3, and as torch's and He's."""
    net, wide = (architecture(name, 90, 40, key=jr.key(0), scale=s) for s in (1.0, 6**0.5))
    for w, v in zip(net.weights, wide.weights, strict=True):
        scaled = np.asarray(w) * np.sqrt(w.shape[1])
        assert 0.99 < np.abs(scaled).max() <= 1
        np.testing.assert_allclose((scaled**2).mean(), 1 / 3, rtol=0.1)
        assert abs(scaled.mean()) < 5 / np.sqrt(3 * scaled.size)
        np.testing.assert_allclose(v, np.sqrt(6) * np.asarray(w), rtol=1e-13)
    single = architecture(name, 90, 40, key=jr.key(0), dtype=jnp.float32)
    for w, v in zip(net.weights, single.weights, strict=True):
        np.testing.assert_allclose(w, v, rtol=1e-6)


def test_seeds_side_by_side():
    keys = jr.split(jr.key(0), 3)
    nets = jax.vmap(lambda key: architecture("RES-BN-1-5", 4, 3, key=key))(keys)
    alone = architecture("RES-BN-1-5", 4, 3, key=keys[1])
    for w, v in zip(jax.tree.leaves(nets), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(w[1], v)


# --- What is conserved ----------------------------------------------------------------


def test_layers_without_normalisation_keep_their_balance():
    """Also before one with it, and with the pseudo-gradient; nothing else does."""
    blocks = [dense(5), dense(4, norm=batch_norm()), dense(4), dense(3, "identity")]
    problem, net = regression(), moved(sequential(4, blocks, key=jr.key(0)))
    assert [m.name for m in net.conserved()] == ["layer 1", "layer 3"]
    rates = jax.jit(gf.diagnostics.invariant_rates)(problem, net)
    assert max(float(jnp.abs(rate).max()) for rate in rates.values()) < 1e-13
    residual = named("RES-1-5")
    assert [m.name for m in residual.conserved()] == ["layer 2", "cuts 0, 4"]
    rates = jax.jit(gf.diagnostics.invariant_rates)(problem, residual)
    assert max(float(jnp.abs(rate).max()) for rate in rates.values()) < 1e-13
