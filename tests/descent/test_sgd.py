"""SGD: batches, heavy ball and decay against NumPy; resumed, vmapped, collapsed."""

import itertools
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from fixtures import biased_net, float_dtypes

import gfdyn as gf
from gfdyn.descent._sampling import draw_epoch, uniform_subsets
from gfdyn.descent._sgd import advance


N, SIZE, STEPS = 12, 5, 11
BETA, DECAY = 0.9, 0.01


@pytest.fixture(scope="module")
def problem():
    """Classes of Gaussian data: an MLP with a cross-entropy."""
    rng = np.random.default_rng(0)
    return gf.Problem(
        gf.Dataset(rng.normal(size=(N, 4)), rng.integers(0, 3, N)), gf.losses.cross_entropy
    )


@pytest.fixture(scope="module")
def net():
    return gf.nets.MLP.from_weights(reference.random_weights([4, 6, 5, 3]))


def rates():
    """0.1, a tenth of it from step 4 on, a hundredth from step 7 on."""
    return gf.SteppedRate(0.1, STEPS, at=(4 / STEPS, 7 / STEPS))


def heavy_ball(problem, net, batches, rates, beta=BETA, decay=DECAY):
    """SGD by hand: backpropagation of reference.py, the decay inside of the momentum."""
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    weights = [np.array(w) for w in net.weights]
    velocity = [np.zeros_like(w) for w in weights]
    slopes = [0.0] * (len(weights) - 1)
    for rows, rate in zip(batches, rates, strict=True):
        gradient = reference.risk_gradient(
            "cross_entropy", weights, slopes, x[rows], y[rows]
        )
        for w, v, g in zip(weights, velocity, gradient, strict=True):
            v[:] = beta * v + g + 2 * decay * w
            w -= rate * v
    return weights, velocity


def batches_of(sampler, key, steps=STEPS, size=SIZE):
    """Those that `descend` draws, epoch after epoch."""
    epochs = range(-(-steps // (N // size)))
    drawn = [draw_epoch(sampler, key, jnp.asarray(e), N, size) for e in epochs]
    return np.concatenate([np.asarray(d) for d in drawn])[:steps]


def run(problem, net, steps=STEPS, **given: Any):
    defaults: dict[str, Any] = dict(
        batch_size=SIZE, momentum=BETA, weight_decay=DECAY, key=jax.random.key(5)
    )
    defaults |= {} if isinstance(net, gf.nets.AbstractNet) else {"key": None}
    return gf.descend(problem, net, given.pop("rate", rates()), steps, **defaults | given)


def assert_equal(a, b):
    """Bitwise, all of two pytrees."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(p, q)


# --- Steps ----------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["epoch_shuffle", "iid_subset"])
def test_equals_numpy(problem, net, sampler):
    traj = run(problem, net, sampler=sampler)
    steps = [0.1] * 4 + [0.01] * 3 + [0.001] * 4
    batches = batches_of(sampler, jax.random.key(5))
    weights, velocity = heavy_ball(problem, net, batches, steps)
    for ours, theirs in zip(traj.final.weights, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(traj.checkpoint.velocity.weights, velocity, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    # The axis is that on which a constant gradient is followed at unit speed.
    np.testing.assert_allclose(traj.final_time, sum(steps) / (1 - BETA), rtol=1e-13)


@pytest.mark.parametrize("detach", [True, False])
def test_equals_numpy_with_batch_normalisation(problem, detach):
    """Statistics of the batch of the step; γ and β do not decay."""
    norm, eps = gf.nets.batch_norm(detach=detach, eps=0.1), 0.1
    blocks = [gf.nets.dense(n, norm=norm) for n in (6, 5)]
    blocks.append(gf.nets.dense(3, "identity"))
    start = gf.nets.sequential(4, blocks, key=jax.random.key(0), scale=0.6)
    traj = run(problem, start)

    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    weights = [np.array(w) for w in start.weights]
    gains, shifts = [np.ones(6), np.ones(5)], [np.zeros(6), np.zeros(5)]
    everything = (*weights, *gains, *shifts)
    velocity = [np.zeros_like(p) for p in everything]
    steps = [0.1] * 4 + [0.01] * 3 + [0.001] * 4
    batches = batches_of("epoch_shuffle", jax.random.key(5))
    for rows, rate in zip(batches, steps, strict=True):
        affine = weights, gains, shifts
        outputs = reference.batch_norm_forward(*affine, x[rows], eps)[0]
        signals = reference.cost_gradient("cross_entropy", outputs, y[rows])
        gradient = reference.batch_norm_backprop(*affine, x[rows], signals, eps, detach)
        flat = [g for kind in gradient for g in kind]
        for i, (p, v, g) in enumerate(zip(everything, velocity, flat, strict=True)):
            decay = 2 * DECAY * p if i < len(weights) else 0
            v[:] = BETA * v + g + decay
            p -= rate * v
    end: Any = traj.final
    norms = [layer.norm for layer in end.layers[:-1]]
    ours = [*end.weights, *(n.gain for n in norms), *(n.shift for n in norms)]
    for found, expected in zip(ours, everything, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_equals_torch_and_optax(problem, net):
    """λ of torch is twice that of the paper, and optax's own chain is the same."""
    ours = run(problem, net, rate=0.05)
    torchs = run(problem, net, rate=0.05, weight_decay=2 * DECAY, decay_convention="torch")
    chain = optax.chain(
        optax.add_decayed_weights(2 * DECAY), optax.trace(BETA), optax.scale(-0.05)
    )
    optaxs = run(problem, net, rate=chain, momentum=0.0, weight_decay=0.0)
    assert_equal(ours.final, torchs.final)
    assert isinstance(torchs.flow, gf.GradientFlow)
    assert float(torchs.flow.weight_decay) == DECAY
    for a, b in zip(ours.final.weights, optaxs.final.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)


def test_masks():
    """Matrices decay, biases do not, unless they are said to."""
    rng = np.random.default_rng(1)
    data = gf.Dataset(np.zeros((3, 2)), rng.normal(size=(3, 1)))
    net = biased_net((2, 3, 1))
    # Closed gates: only the decay moves the net.
    net = eqx.tree_at(lambda n: n.bias, net, -jnp.abs(net.bias))
    problem = gf.Problem(data, gf.losses.squared)

    def factors(mask):
        end = gf.descend(problem, net, 0.1, 3, weight_decay=0.5, decay_mask=mask).final
        ratios = jax.tree.map(lambda a, b: a / b, end, net)
        return [np.unique(np.round(r, 13)).tolist() for r in jax.tree.leaves(ratios)]

    shrunk, kept = [round(0.9**3, 13)], [1.0]
    assert factors(None) == [shrunk, kept, shrunk]
    assert factors(lambda n: jax.tree.map(lambda _: True, n)) == [shrunk] * 3
    only_last = eqx.tree_at(
        lambda n: n.last, jax.tree.map(lambda _: False, net), replace=True
    )
    assert factors(only_last) == [kept, kept, shrunk]


def test_flows_and_certificates_know_what_decays():
    """The penalty of the matrices alone; and no law of decay where a bias is in it."""
    rng = np.random.default_rng(1)
    data = gf.Dataset(rng.normal(size=(5, 2)), rng.normal(size=(5, 1)))
    problem, net = gf.Problem(data, gf.losses.squared), biased_net((2, 3, 1))
    traj = gf.descend(problem, net, 1e-3, 400, weight_decay=0.5)
    flow: Any = traj.flow
    risk, gradient = jax.value_and_grad(problem.risk)(net)
    velocity = flow.velocity(net).position
    np.testing.assert_allclose(velocity.first, -gradient.first - net.first, rtol=1e-13)
    np.testing.assert_allclose(velocity.bias, -gradient.bias, rtol=1e-13)
    penalty = 0.5 * sum(float(np.sum(np.square(w))) for w in net.weights)
    np.testing.assert_allclose(flow.energy(net), risk + penalty, rtol=1e-14)
    assert float(traj.certificate.energy_residual) < 3e-3
    assert flow.invariants(net)[0] == () and float(traj.certificate.balance_drift) == 0
    everything = jax.tree.map(lambda _: True, net)
    whole = gf.GradientFlow(problem, 0.5, decay_mask=everything)
    assert len(whole.invariants(net)[0]) == 1


def test_every_weight_decays_by_default():
    """Whatever its shape: edges of a graph, kernels, diagonals; traced as well."""
    nets, key = gf.nets, jax.random.key(0)
    blocks = [nets.conv(2, 2, bias=True), nets.dense(3), nets.resnet_diagonal(2)]
    net = nets.sequential((3, 2), [*blocks, nets.dense(1, "identity")], key=key)
    expected = {name: "b" not in name.lower() for name in net.parameter_names}
    assert list(expected.values()).count(False) == 1
    found = jax.tree.leaves(gf.nets.weight_mask(net))
    assert dict(zip(net.parameter_names, found, strict=True)) == expected
    traced = []
    stack = jax.tree.map(lambda w: w[None], net)
    jax.vmap(lambda n: traced.append(gf.nets.weight_mask(n)))(stack)
    assert jax.tree.leaves(traced[0]) == found


# --- Batches --------------------------------------------------------------------------


def test_epochs_hold_each_sample_once():
    epochs = [
        np.asarray(draw_epoch("epoch_shuffle", jax.random.key(0), jnp.asarray(e), 12, 4))
        for e in range(3)
    ]
    for epoch in epochs:
        assert sorted(epoch.ravel()) == list(range(12))
    assert (epochs[0] != epochs[1]).any()


def test_subsets_are_uniform():
    """Each of the ten pairs out of five within five deviations; triples as well."""
    draws = 20_000
    for size in (2, 3):
        found = np.sort(np.asarray(uniform_subsets(jax.random.key(2), draws, 5, size)))
        pairs = list(itertools.combinations(range(5), size))
        counts = np.array([(found == pair).all(axis=1).sum() for pair in pairs])
        assert counts.sum() == draws
        deviation = np.sqrt(draws * 0.1 * 0.9)
        assert np.abs(counts - draws / 10).max() < 5 * deviation
    rows = np.asarray(uniform_subsets(jax.random.key(3), 500, 7, 7))
    assert (np.sort(rows) == np.arange(7)).all()


def test_subsets_of_different_steps_overlap(problem):
    """What tells them from epochs."""
    rows = batches_of("iid_subset", jax.random.key(0), 40).reshape(20, -1)
    assert any(len(set(epoch)) < rows.shape[1] for epoch in rows.tolist())
    assert not any(len(set(batch)) < SIZE for batch in rows.reshape(-1, SIZE).tolist())


# --- Resumed, vmapped, compiled once ---------------------------------------------------


def test_resumed_runs_are_bitwise_one_run(problem, net):
    """Also within an epoch, and shown by a progress bar."""
    go = partial(run, problem, save_every=3)
    whole = go(net, 10)
    first = go(net, 3)
    second = go(first.checkpoint, 7, progress=True)
    assert_equal(second.checkpoint, whole.checkpoint)
    np.testing.assert_array_equal(
        np.concatenate([first.ts, second.ts[1:]]), np.asarray(whole.ts)
    )
    assert_equal(second.certificate, whole.certificate)
    assert int(second.stats["num_steps"]) == 10
    with pytest.raises(ValueError, match="key is given, but a checkpoint carries"):
        go(first.checkpoint, 7, key=jax.random.key(0))
    with pytest.raises(ValueError, match="the checkpoint is of another optimizer"):
        go(first.checkpoint, 7, momentum=0.0)


def test_full_batches_are_resumed(problem, net):
    go = partial(run, problem, batch_size=None, save_every=2)
    whole, first = go(net, 6), go(net, 4)
    assert_equal(go(first.checkpoint, 2).checkpoint, whole.checkpoint)


def test_files_hold_checkpoints(problem, net, tmp_path):
    first = run(problem, net, 4)
    first.save(tmp_path / "run.nc")
    loaded = gf.load(tmp_path / "run.nc").checkpoint
    assert_equal(loaded, first.checkpoint)
    ends = [run(problem, state, 7).checkpoint for state in (first.checkpoint, loaded)]
    assert_equal(*ends)


def test_without_momentum_there_is_no_velocity(problem, net):
    state = run(problem, net, 4, momentum=0.0).checkpoint
    with pytest.raises(ValueError, match="the descent carries no velocity"):
        _ = state.velocity


def test_settings_are_one_program(problem, net):
    """Rates, momenta, decays and seeds side by side: each as on its own; and no setting
    is compiled again."""
    traces = []

    @jax.jit
    @jax.vmap
    def settings(rate, momentum, decay, key):
        traces.append(None)
        rate = gf.SteppedRate(rate, STEPS, at=(0.5,))
        traj = run(problem, net, rate=rate, momentum=momentum, weight_decay=decay, key=key)
        return traj.final, traj.result, traj.final_time

    axes = [jnp.asarray([0.1, 0.02, 0.05]), jnp.asarray([0.9, 0.5, 0.0])]
    axes += [jnp.asarray([0.0, 0.1, 0.01]), jax.random.split(jax.random.key(0), 3)]
    nets, _, times = settings(*axes)
    settings(*[a[::-1] for a in axes])
    assert len(traces) == 1
    for i in range(3):
        rate, momentum, decay, key = (a[i] for a in axes)
        rate = gf.SteppedRate(rate, STEPS, at=(0.5,))
        alone = run(problem, net, rate=rate, momentum=momentum, weight_decay=decay, key=key)
        np.testing.assert_allclose(times[i], alone.final_time, rtol=1e-14)
        for w, v in zip(nets.weights, alone.final.weights, strict=True):
            np.testing.assert_allclose(w[i], v, rtol=1e-12, atol=1e-14)


def test_a_second_run_is_not_compiled_again(problem, net):
    """Of other numbers and seeds."""
    run(problem, net, rate=0.1, weight_decay=0.1, momentum=0.9)
    size = advance._cached._cache_size()  # pyright: ignore
    run(problem, net, rate=0.2, weight_decay=0.3, momentum=0.2, key=jax.random.key(9))
    assert advance._cached._cache_size() == size  # pyright: ignore


# --- How it ends -----------------------------------------------------------------------


def test_collapse_has_a_name(problem, net):
    """Decay beats the gradient: every step multiplies the weights by about 1 − 2ηλ."""
    traj = run(problem, net, 60, rate=0.05, weight_decay=5.0, momentum=0.0)
    assert bool(traj.result == gf.RESULTS.collapsed)
    assert "collapsed to zero" in traj.summary()
    size = float(gf.nets.norm(traj.final) / gf.nets.norm(net))
    assert 0.4**60 < size < 1e-6
    assert bool(run(problem, net, 5).result == gf.RESULTS.successful)


def test_divergence_is_no_collapse(problem, net):
    with pytest.raises(gf.SolveError, match="became NaN or infinite"):
        run(problem, net, 200, rate=1e8)


def test_float32(problem):
    data = problem.data.astype(jnp.float32)
    problem = gf.Problem(data, gf.losses.cross_entropy)
    net = gf.nets.MLP([4, 6, 3], key=jax.random.key(0), dtype=jnp.float32)
    traj = run(problem, net, 4)
    assert float_dtypes((traj.final, traj.ts, traj.certificate)) == {jnp.dtype("float32")}


ARGUMENTS = [
    (dict(sampler="bootstrap"), "sampler='bootstrap'; use 'epoch_shuffle' or"),
    (dict(decay_convention="optax"), "decay_convention='optax'; use 'paper'"),
    (dict(momentum=1.0), r"momentum=1.0 must lie in \[0, 1\)"),
    (dict(rate=optax.sgd(0.1)), "momentum=0.9 beside an optax optimizer"),
    (dict(decay_mask=True), "decay_mask=True must have the structure of the net"),
    (dict(weight_decay=-1.0), "weight_decay=-1.0 must be 0 or positive"),
]


@pytest.mark.parametrize(
    "given, message", ARGUMENTS, ids=[message for _, message in ARGUMENTS]
)
def test_arguments(problem, net, given, message, unhooked):
    with pytest.raises(ValueError, match=message):
        run(problem, net, **given)


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(rate=0.0, steps=9), "rate=0.0 must be positive"),
        (dict(rate=0.1, steps=0), "steps=0 must be 1 or more"),
        (dict(rate=0.1, steps=9, at=(1.2,)), "must be fractions of the run"),
        (dict(rate=0.1, steps=9, factor=-1.0), "factor=-1.0 must be positive"),
    ],
    ids=str,
)
def test_stepped_rates(given, message):
    with pytest.raises(ValueError, match=message):
        gf.SteppedRate(**given)
    rate = gf.SteppedRate(0.1, 500)
    steps = [0, 59, 60, 99, 100, 199, 200, 499]
    found = [float(rate(jnp.asarray(k))) for k in steps]
    expected = [0.1, 0.1, 1e-2, 1e-2, 1e-3, 1e-3, 1e-4, 1e-4]
    np.testing.assert_allclose(found, expected, rtol=1e-13)
