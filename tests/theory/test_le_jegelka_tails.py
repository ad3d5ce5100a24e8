"""Le & Jegelka: which layers a tail has, its constants, Theorem 2."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from fixtures import rows, tight
from le_jegelka_cases import positive, spectral

import gfdyn as gf
from gfdyn.nets import conv, dense, resnet_free, resnet_identity, sequential
from gfdyn.theory import le_jegelka as lj


# One program each, where a call on its own would compile each operation.
tail_constants = jax.jit(lj.tail_constants, static_argnames=("form", "version"))
neighbouring_singular_values = jax.jit(lj.neighbouring_singular_values)
STATEMENTS = [lj.step_inequality, lj.telescoped_inequality, lj.tail_bound, lj.ratio_bound]


def constants_of(net, form="sharp"):
    """In NumPy, as whole numbers among them do not multiply others here."""
    return jax.tree.map(np.asarray, tail_constants(net, form))


def five():
    """Experiment E5: a ReLU layer, then three linear ones."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.sign(x @ rng.normal(size=4))[:, None]
    ws = [0.5 * rng.normal(size=s) for s in [(6, 4), (5, 6), (4, 5), (1, 4)]]
    net = gf.nets.MLP.from_weights(ws, ["relu", "identity", "identity"])
    return gf.Problem(gf.Dataset(x, y), gf.losses.logistic), net, ws


@functools.cache
def mixed(sigma="identity", seed=0):
    """ReLU conv – linear conv – linear conv – Free – Free – FC – FC."""
    blocks = [
        conv(2, 2, 1, 1, "relu"),
        conv(3, 3, 1, 1, sigma),
        conv(2, 2, 2, 0, sigma),
        resnet_free(3, 5, sigma),
        resnet_free(2, 3, sigma),
        dense(2, sigma),
        dense(1, "identity"),
    ]
    return sequential((5, 2), blocks, key=jr.key(seed), scale=0.5)


@functools.cache
def flow():
    """A linear convolutional net in the clock of arc length, to a large norm."""
    blocks = [
        conv(2, 2, 1, 0, "identity"),
        conv(3, 2, 1, 0, "identity"),
        resnet_free(3, 4, "identity"),
        dense(3, "identity"),
        dense(1, "identity"),
    ]
    net = sequential((5, 1), blocks, key=jr.key(1), scale=0.5)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6, 5))
    y = np.sign(x @ rng.normal(size=5))[:, None]
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.logistic)
    arc = gf.GradientFlow(problem, clock="arc")
    return net, gf.solve(arc, net, ts=np.linspace(0, 5, 7), solver=tight(1e-9))


# --- Which layers ----------------------------------------------------------------------


def test_members():
    members = lj.linear_tail(mixed())
    assert [(m.layer, m.inner) for m in members] == [
        (2, None),
        (3, None),
        (5, 4),
        (7, 6),
        (8, None),
        (9, None),
    ]
    # min(2 channels, window 3), min(3, 2), min(2 channels, 3 positions) and vectors
    assert [m.fold for m in members] == [2, 2, 2, 1, 1, 1]
    # A = [U Z] of the first Free block is 5 × (3 + 6).
    assert [m.printed_fold for m in members] == [2, 2, 9, 1, 1, 1]
    assert [m.layer for m in lj.linear_tail(mixed("relu"), "first")] == [
        1,
        2,
        3,
        5,
        7,
        8,
        9,
    ]


def test_members_end_where_layers_feed_others():
    blocks = [dense(3, "identity"), resnet_identity(2, "identity"), dense(2, "identity")]
    net = sequential(3, [*blocks, dense(1, "identity")], key=jr.key(0))
    assert [m.layer for m in lj.linear_tail(net)] == [4, 5]
    biased = [dense(3, "identity", bias=True), dense(2, "identity"), dense(1, "identity")]
    net = sequential(3, biased, key=jr.key(0))
    assert [m.layer for m in lj.linear_tail(net)] == [2, 3]


def test_nets_without_a_tail():
    with pytest.raises(ValueError, match="net has no tail: before its output there is no"):
        lj.linear_tail(gf.nets.MLP([3, 4, 1], key=jr.key(0)))
    with pytest.raises(ValueError, match="net has 2 outputs; Theorem 2 needs a single one"):
        lj.linear_tail(gf.nets.MLP([3, 4, 2], key=jr.key(0), activation="identity"))
    with pytest.raises(TypeError, match="a gf.nets.MLP or LayeredNet, got Dag"):
        lj.linear_tail(gf.nets.as_dag(gf.nets.MLP([3, 4, 1], key=jr.key(0))))


# --- Constants -------------------------------------------------------------------------


def test_constants_of_fully_connected_tails():
    _, net, (_, w2, w3, w4) = five()
    found = constants_of(net)
    second = positive(w4.T @ w4 - w3 @ w3.T)
    first = positive(w3.T @ w3 - w2 @ w2.T)
    square = np.sum(w4**2)
    bound = [np.sum(w2**2) - square + first + second, np.sum(w3**2) - square + second]
    np.testing.assert_allclose(found.loss, [first, second], rtol=1e-13)
    np.testing.assert_allclose(found.bound, bound, rtol=1e-13)
    np.testing.assert_allclose(found.bound, [10.3, 4.77], rtol=1e-3)
    assert found.factor.tolist() == found.step.tolist() == [1, 1]
    assert found.free_blocks.tolist() == [0, 0] and found.folds.tolist() == [1, 1]


@pytest.mark.parametrize(("form", "base", "fold"), [("sharp", 2, 2), ("printed", 8, 9)])
def test_constants_of_convolutions_and_free_blocks(form, base, fold):
    net = mixed()
    found = constants_of(net, form)
    assert found.free_blocks.tolist() == [2, 2, 1, 0, 0]
    assert found.folds.tolist() == [2 * fold, fold, 1, 1, 1]
    factor = 1 / (base ** np.array([2.0, 2, 1, 0, 0]) * found.folds)
    np.testing.assert_allclose(found.factor, factor, rtol=1e-15)
    # The step into the first Free block, behind a convolution, by hand: its matrices are
    # (units, positions · channels), taken apart into (units · positions, channels).
    (kernel,), (y,), (u, z) = (
        jax.tree.leaves(net.layers[i].connections) for i in (2, 3, 4)
    )
    b = np.concatenate([y, z]).reshape(-1, 2)
    w = kernel.reshape(-1, 2)
    loss = positive(b.T @ b - w.T @ w) + positive(u.T @ u - y @ y.T) / (base * fold)
    np.testing.assert_allclose(found.loss[1], loss, rtol=1e-12)
    sums = found.telescoped
    for j in range(4):
        expected = found.loss[j] + found.step[j] * sums[j + 1]
        np.testing.assert_allclose(sums[j], expected, rtol=1e-14)
    norms = [float(jnp.sum(net.weights[m.layer - 1] ** 2)) for m in lj.linear_tail(net)]
    bound = found.factor * (np.array(norms[:-1]) - norms[-1]) + sums
    np.testing.assert_allclose(found.bound, bound, rtol=1e-13)


def test_forms_and_versions_are_one_of_two(unhooked):
    with pytest.raises(ValueError, match="form='weak'; use 'sharp' or 'printed'"):
        lj.tail_constants(mixed(), "weak")  # pyright: ignore
    with pytest.raises(ValueError, match="version='second'; use 'corrected' or 'first'"):
        lj.linear_tail(mixed(), "second")  # pyright: ignore


# --- Theorem 2 -------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["sharp", "printed"])
def test_theorem_along_a_flow(form):
    net, traj = flow()

    @jax.jit
    def along(net, nets):
        return [
            jax.vmap(lambda n, s=s: s(net, n, form, tolerance=1e-7))(nets)
            for s in STATEMENTS
        ]

    step, telescoped, tail, ratio = along(net, traj.net)
    for check in (step, telescoped, tail, ratio):
        assert check.lhs.shape == (7, 4) and bool(jnp.all(check.holds)), str(check)
    last = [np.asarray(traj.final.weights[i]) for i in (0, 1, 3, 4, 5)]
    constants = constants_of(net, form)
    for j in range(4):
        size = spectral(last[j])
        # Both sides, from definitions
        one = constants.step[j] * spectral(last[j + 1]) - constants.loss[j]
        np.testing.assert_allclose(step.lhs[-1, j], one, rtol=1e-10)
        np.testing.assert_allclose(step.rhs[-1, j], size, rtol=1e-10)
        all_steps = constants.factor[j] * np.sum(last[-1] ** 2) - constants.telescoped[j]
        np.testing.assert_allclose(telescoped.lhs[-1, j], all_steps, rtol=1e-10)
        norm = np.sum(last[j] ** 2)
        gap = constants.factor[j] * norm - size
        np.testing.assert_allclose(tail.lhs[-1, j], gap, rtol=1e-9, atol=1e-9)
        least = constants.factor[j] - constants.bound[j] / norm
        np.testing.assert_allclose(ratio.lhs[-1, j], least, rtol=1e-10)
        np.testing.assert_allclose(ratio.rhs[-1, j], size / norm, rtol=1e-10)
    # The last matrices come near rank one by Theorem 2 alone.
    assert ratio.lhs[-1, 3] > 0.7 and ratio.verdict == "HOLDS"


def test_alignment():
    net, traj = flow()
    # The pair of fully connected layers, and that of the Free block with the first.
    found = np.asarray(lj.alignment(traj.final))
    u, _, _ = np.linalg.svd(np.asarray(traj.final.weights[4]))
    _, _, vt = np.linalg.svd(np.asarray(traj.final.weights[5]))
    u_free, _, _ = np.linalg.svd(np.asarray(traj.final.weights[3]))
    _, _, vt_first = np.linalg.svd(np.asarray(traj.final.weights[4]))
    expected = [abs(vt_first[0] @ u_free[:, 0]), abs(vt[0] @ u[:, 0])]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    check = jax.jit(jax.vmap(lambda n: lj.alignment_bound(net, n, tolerance=1e-7)))(
        traj.net
    )
    assert check.lhs.shape == (7, 2) and bool(jnp.all(check.holds))
    assert check.verdict == "HOLDS" and check.lhs[-1, 1] > 0.3
    # By hand, of the last pair
    w, a = (np.asarray(m) for m in net.weights[4:])
    m = a.T @ a - w @ w.T
    bound = np.sum(w**2) - np.sum(a**2) + positive(m)
    missing = (bound + positive(m) + positive(-m)) / spectral(
        np.asarray(traj.final.weights[4])
    )
    np.testing.assert_allclose(check.lhs[-1, 1], 1 - missing, rtol=1e-10)
    np.testing.assert_allclose(check.rhs[-1, 1], expected[1] ** 2, rtol=1e-10)


def squares(w, size):
    """σ², rising, with zeros for what is missing."""
    s = np.linalg.svd(np.asarray(w), compute_uv=False) ** 2
    return np.sort(np.pad(s, (0, max(0, size - len(s))))[:size])


def doubled(tree):
    return jax.tree.map(lambda w: 2 * w, tree)


def test_singular_values_of_neighbours():
    """Convolutions, a Free block and matrices: as near as they were in M(0)."""
    net, traj = flow()
    statement = jax.jit(
        jax.vmap(lambda n: lj.neighbouring_singular_values(net, n, tolerance=1e-7))
    )
    check = statement(traj.net)
    assert check.verdict == "HOLDS"
    start, end = net.conserved(), rows(traj.net, -1).conserved()
    lhs = [
        squares(m.outgoing, len(m.incoming)) - squares(m.incoming, len(m.incoming))
        for m in end
        if m.form == "full"
    ]
    np.testing.assert_allclose(check.lhs[-1], np.abs(np.concatenate(lhs)), atol=1e-10)
    rhs = [np.full(len(m.incoming), np.linalg.norm(m.matrix, 2)) for m in start]
    full = [r for r, m in zip(rhs, start, strict=True) if m.form == "full"]
    np.testing.assert_allclose(check.rhs[-1], np.concatenate(full), rtol=1e-12)
    # No flow leads to the double of one convolution.
    apart = eqx.tree_at(lambda n: n.layers[0].connections, traj.net, replace_fn=doubled)
    assert statement(apart).verdict == "VIOLATED"


def test_singular_values_of_classes():
    w1, w2 = np.random.default_rng(0).normal(size=(2, 4, 3))
    net = gf.nets.MLP.from_weights([w1, w2.T])
    other = gf.nets.MLP.from_weights([2 * w1, w2.T])
    with pytest.raises(ValueError, match="no classes are given"):
        lj.neighbouring_singular_values(net, other)
    labels = {"layer 1": jnp.array([0, 1, 0, 1])}
    check = neighbouring_singular_values(net, other, labels)
    assert check.lhs.shape == (16,)
    for label, of in ((0, [0, 2]), (1, [1, 3])):
        gap = np.abs(squares(w2[of], 4) - squares(2 * w1[of], 4))
        np.testing.assert_allclose(check.lhs[4 * label : 4 * label + 4], gap, atol=1e-12)
        m = w2[of] @ w2[of].T - w1[of] @ w1[of].T
        np.testing.assert_allclose(check.rhs[4 * label], np.linalg.norm(m, 2), rtol=1e-12)
    assert not np.any(check.lhs[8:]) and not np.any(check.rhs[8:])


def test_first_version_is_false():
    """On the two opposed neurons tails grow without bound, and ratios stay at 3/4."""
    _, start = lj.counterexample()
    _, late = lj.counterexample(square=8.952357665)
    tail = lj.tail_bound(start, late, version="first")
    # D = λ⁺(M(0)), M = q₀ [[0, −1/2], [−1/2, 0]]
    np.testing.assert_allclose(tail.rhs, [0.125], rtol=1e-12)
    np.testing.assert_allclose(tail.lhs, [8.952357665 / 2], rtol=1e-12)
    ratio = lj.ratio_bound(start, late, version="first")
    np.testing.assert_allclose(ratio.rhs, [0.75], rtol=1e-12)
    step = lj.step_inequality(start, late, version="first")
    assert tail.verdict == ratio.verdict == step.verdict == "VIOLATED"
    # They align all the same.
    assert lj.alignment_bound(start, late, "first").verdict == "HOLDS"
    np.testing.assert_allclose(lj.alignment(late, "first"), [1.0], rtol=1e-12)


def test_a_net_of_no_flow_violates_it():
    _, net, ws = five()
    rng = np.random.default_rng(5)
    other = [9 * rng.normal(size=w.shape) for w in ws]
    other = gf.nets.MLP.from_weights(other, ["relu", "identity", "identity"])
    for statement in (lj.tail_bound, lj.ratio_bound):
        assert statement(net, other).verdict == "VIOLATED"
        # At the start itself it is true, and says nothing there.
        assert bool(jnp.all(statement(net, net).holds))


def test_spectra():
    _, net, (_, *ws) = five()
    found = lj.tail_spectra(net)
    for j, w in enumerate(ws):
        u, s, vt = np.linalg.svd(w)
        gap = w / np.linalg.norm(w) - np.outer(u[:, 0], vt[0])
        numbers = [np.sum(s**2), s[0] ** 2, s[0] ** 2 / np.sum(s**2), np.sum(s[1:] ** 2)]
        for name, value in zip(
            ("frobenius", "spectral", "ratio", "tail", "defect"),
            [*numbers, np.linalg.norm(gap)],
            strict=True,
        ):
            entry = getattr(found, name)[j]
            np.testing.assert_allclose(entry, value, rtol=1e-12, atol=1e-15, err_msg=name)


def test_float32():
    _, net, _ = five()
    single = jax.tree.map(lambda w: w.astype(jnp.float32), net)
    for statement in map(jax.jit, STATEMENTS):
        check = statement(single, single)
        assert check.lhs.dtype == jnp.float32
        np.testing.assert_allclose(check.lhs, statement(net, net).lhs, rtol=1e-4)
    aligned = jax.eval_shape(lj.alignment_bound, single, single)
    assert aligned.lhs.dtype == jnp.float32
