"""Statements of Galanti & Poggio: against NumPy, enumeration, closed forms, and flows."""

import itertools
import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.optimize
from fixtures import distance, rows
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

import gfdyn as gf
from gfdyn.theory import galanti


WIDTHS = [4, 6, 5, 3]
N = 7

low_rank_jacobians = jax.jit(galanti.low_rank_jacobians, static_argnames="uses")
jacobian_factors = jax.jit(galanti.jacobian_factors)
stationarity = jax.jit(galanti.stationarity)
zero_or_collinear = jax.jit(galanti.zero_or_collinear)
fitted_or_zero = jax.jit(galanti.fitted_or_zero)
sizes = ("steps", "batch_size", "uses")
low_rank_unrolled = jax.jit(galanti.low_rank_unrolled, static_argnames=sizes)
memory_bound = jax.jit(galanti.memory_bound, static_argnames=sizes)
null_space_law = jax.jit(galanti.null_space_law, static_argnums=4)
column_sum_law = jax.jit(galanti.column_sum_law)
balance_step = jax.jit(galanti.balance_step)
projection_identity = jax.jit(galanti.projection_identity)
low_rank_distance = jax.jit(galanti.low_rank_distance, static_argnames="norm")
normalised = jax.jit(galanti.normalised)
normalised_rank = jax.jit(galanti.normalised_rank)
low_rank_batch_gradients = jax.jit(galanti.low_rank_batch_gradients)
low_rank_batch_jacobians = jax.jit(galanti.low_rank_batch_jacobians)
scale_invariance = jax.jit(galanti.scale_invariance)


def regression(widths: Any = tuple(WIDTHS), n=N, seed=0, loss: Any = gf.losses.squared):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(n, widths[-1]))
    y = np.sign(y) if loss in (gf.losses.logistic, gf.losses.exponential) else y
    y = y.argmax(axis=1) if loss is gf.losses.cross_entropy else y
    return gf.Problem(gf.Dataset(rng.normal(size=(n, widths[0])), y), loss)


def random_net(widths: Any = tuple(WIDTHS), seed=0, activation: str = "relu"):
    weights = reference.random_weights(list(widths), seed)
    return gf.nets.MLP.from_weights(weights, activation)


def by_hand(problem, net, loss="squared"):
    """The gradient of each sample's loss in NumPy: per layer, (N, n_l, n_{l−1})."""
    weights = [np.asarray(w) for w in net.weights]
    slopes = [sigma.slope for sigma in net.activations]
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    each = [
        reference.risk_gradient(loss, weights, slopes, x[[i]], y[[i]])
        for i in range(len(x))
    ]
    return [np.stack(layer) for layer in zip(*each, strict=True)]


class TiedNet(gf.nets.AbstractNet):
    """f(x) = a·σ(W σ(W x)): the same square W twice."""

    tied: Array
    last: Array

    @property
    def activations(self):
        return (gf.nets.relu(),) * 2

    @property
    def weights(self):
        return self.tied, self.last

    @property
    def knows_kinks(self):
        return True

    @property
    def degree(self):
        return 3

    @property
    def in_size(self):
        return self.tied.shape[1]

    @property
    def out_size(self):
        return self.last.shape[0]

    @property
    def parameter_names(self):
        return "W", "a"

    def forward(self, x, gates):
        first = x @ self.tied.T
        second = gates[0](first) @ self.tied.T
        return gates[1](second) @ self.last.T, (first, second)

    def gradient_norms(self, x, values):
        raise NotImplementedError

    def conserved(self):
        return ()


# --- Lemmas 1 and 2 --------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "leaky_relu(0.1)"])
def test_factors_are_the_gradients(activation):
    problem, net = regression(), random_net(activation=activation)
    factors = jacobian_factors(problem, net)
    signals = np.asarray(problem.outputs(net)) - np.asarray(problem.data.y)
    for (u, v), expected in zip(factors, by_hand(problem, net), strict=True):
        assert u.shape[:2] == (N, 3) and v.shape[0] == N
        found = np.einsum("nc,nci,nj->nij", signals, u, v)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    check = low_rank_jacobians(problem, net)
    assert check.lhs.shape == (N, 3, 3) and check.verdict == "HOLDS"
    assert float(check.lhs.max()) <= 1e-12
    assert not check.vacuous.any()


def test_tied_weights_have_higher_rank():
    rng = np.random.default_rng(0)
    net = TiedNet(
        jnp.asarray(rng.normal(size=(4, 4))), jnp.asarray(rng.normal(size=(1, 4)))
    )
    problem = regression((4, 1))
    once, twice = (low_rank_jacobians(problem, net, uses) for uses in (1, (2, 1)))
    assert once.verdict == "VIOLATED" and twice.verdict == "HOLDS"
    assert float(once.lhs[:, :, 0].max()) > 1e-2
    assert twice.vacuous[0, 0].tolist() == [False, True]
    with pytest.raises(ValueError, match=r"uses=\(1, 1, 1\) must be 1 or more"):
        galanti.low_rank_jacobians(problem, net, (1, 1, 1))


def test_residual_nets_and_convolutions():
    """A fixed skip changes nothing; a kernel has the rank of its patches."""
    nets = gf.nets
    residual = [nets.dense(5), nets.resnet_identity(4), nets.dense(2, "identity")]
    net = nets.sequential(4, residual, key=jax.random.key(0))
    check = low_rank_jacobians(regression((4, 2), n=3), net)
    assert check.verdict == "HOLDS" and not check.vacuous.any()
    kernel = [nets.conv(4, 3), nets.dense(1, "identity")]
    net = nets.sequential((4, 2), kernel, key=jax.random.key(0))
    problem = regression((8, 1), n=3)
    once, twice = (low_rank_jacobians(problem, net, uses) for uses in (1, (2, 1)))
    assert once.verdict == "VIOLATED" and twice.verdict == "HOLDS"
    assert not twice.vacuous[:, :, 0].any()


def test_batches_have_gradients_of_their_rank():
    widths = (6, 8, 7, 4)
    problem, net = regression(widths, loss=gf.losses.cross_entropy), random_net(widths)
    gradients = by_hand(problem, net, "cross_entropy")
    for size in (1, 3):
        batches = galanti.all_batches(N, size)
        assert batches.shape == (math.comb(N, size), size)
        check = low_rank_batch_gradients(problem, net, batches)
        assert check.verdict == "HOLDS" and not check.vacuous.any()
        assert float(check.lhs.max()) <= 1e-10
        # One less is not enough.
        mean = gradients[1][np.asarray(batches[0])].mean(axis=0)
        s = np.linalg.svd(mean, compute_uv=False)
        assert s[size - 1] > 1e-4 * s[0] and s[size] < 1e-14 * s[0]


class SmoothNet(gf.nets.AbstractNet):
    """f(x) = a·s(W₂ s(W₁ x) + s(W₁ x)): any activation s, a fixed skip."""

    matrices: tuple[Array, ...]
    smooth: Any = eqx.field(static=True)

    @property
    def activations(self):
        return (gf.nets.relu(),) * 2

    @property
    def weights(self):
        return self.matrices

    @property
    def knows_kinks(self):
        return False

    @property
    def degree(self):
        return None

    @property
    def in_size(self):
        return self.matrices[0].shape[1]

    @property
    def out_size(self):
        return self.matrices[-1].shape[0]

    @property
    def parameter_names(self):
        return "W1", "W2", "a"

    def forward(self, x, gates):
        del gates
        w1, w2, last = self.matrices
        first = x @ w1.T
        a = self.smooth(first)
        second = a @ w2.T + a
        return self.smooth(second) @ last.T, (first, second)

    def gradient_norms(self, x, values):
        raise NotImplementedError

    def conserved(self):
        return ()


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_lemma_one_for_smooth_activations(name):
    weights = reference.random_weights([4, 5, 5, 2])
    net = SmoothNet(tuple(map(jnp.asarray, weights)), getattr(jax.nn, name))
    check = low_rank_jacobians(regression((4, 2), n=3), net)
    assert check.verdict == "HOLDS" and float(check.lhs.max()) <= 1e-12


def layer_graph():
    """Layers along a graph with skips, trained and fixed, ReLU and leaky."""
    nets, rng = gf.nets, np.random.default_rng(0)

    def new(rows, columns):
        return nets.Dense(jnp.asarray(rng.normal(size=(rows, columns)) / 2))

    relu, leaky = nets.relu(), nets.leaky_relu(0.1)
    layers = [
        nets.Layer((new(6, 5),), None, (0,), relu, (6,)),
        nets.Layer((new(6, 6), new(6, 5)), None, (1, 0), leaky, (6,)),
        nets.Layer((nets.Identity(), nets.Identity()), None, (1, 2), nets.identity(), (6,)),
        nets.Layer((new(7, 6), new(7, 6)), None, (3, 1), relu, (7,)),
        nets.Layer((new(4, 7), new(4, 6)), None, (4, 2), nets.identity(), (4,)),
    ]
    return nets.LayeredNet((5,), layers)


def test_statements_on_a_graph_of_layers():
    """Its weights are [W …] of all trained connections into a layer."""
    problem, net = regression((5, 4)), layer_graph()
    assert [w.shape for w in net.weights] == [(6, 5), (6, 11), (7, 12), (4, 13)]
    check = low_rank_jacobians(problem, net)
    assert check.verdict == "HOLDS" and not check.vacuous.any()
    batches = galanti.all_batches(N, 2)
    check = low_rank_batch_gradients(problem, net, batches)
    assert check.verdict == "HOLDS" and float(check.lhs.max()) <= 1e-10
    check = low_rank_distance(problem, net, 1.0, batches)
    assert check.lhs.shape == (4,) and check.holds.all()
    decay = stationarity(problem, net, 0.5).mean ** 2
    gradient = jax.jit(jax.grad(problem.risk))(net)
    by_leaf = jax.tree.map(lambda g, w: jnp.sum((g + w) ** 2), gradient, net)
    np.testing.assert_allclose(decay, sum(jax.tree.leaves(by_leaf)), rtol=1e-12)


def test_weights_that_are_no_matrices(unhooked):
    net = random_net((5, 4, 4))
    problem, batches = regression((5, 4)), galanti.all_batches(N, 2)
    with pytest.raises(TypeError, match="net is a Dag, whose edges join single neurons"):
        galanti.low_rank_distance(problem, gf.nets.as_dag(net), 1.0, batches)
    blocks = [gf.nets.dense(5), gf.nets.resnet_diagonal(3), gf.nets.dense(4, "identity")]
    diagonal = gf.nets.sequential(5, blocks, key=jax.random.key(0))
    with pytest.raises(ValueError, match="layer 3 has a trained diagonal"):
        galanti.low_rank_jacobians(problem, diagonal)
    with pytest.raises(TypeError, match="net is a MLP; batch normalisation is of"):
        galanti.scale_invariance(problem, net)  # pyright: ignore


# --- Batch normalisation: Lemma 2 -------------------------------------------------------


def normalised_net(name, widths, detach, eps=0.0, seed=0):
    """One of the paper's nets, with γ and β that are not 1 and 0."""
    norm = gf.nets.batch_norm(detach=detach, eps=eps)
    key = jax.random.key(seed)
    net = gf.nets.architecture(name, *widths, key=key, norm=norm, scale=1.5)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda w: w + 0.2 * rng.normal(size=w.shape), net)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("size", [3, 5])
def test_batches_under_normalisation(detach, size):
    """Rank B, B − 1 into a normalised node; both are attained."""
    problem = regression((8, 8))
    net = normalised_net("RES-BN-1-8", (8, 8), detach)
    batches = galanti.sampled_batches(jax.random.key(0), 3, N, size)
    check = low_rank_batch_gradients(problem, net, batches)
    assert check.lhs.shape == (3, 4) and check.verdict == "HOLDS"
    assert not check.vacuous.any() and float(check.lhs.max()) <= 1e-10
    each = low_rank_batch_jacobians(problem, net, batches)
    assert each.lhs.shape == (3, size, 8, 4) and each.verdict == "HOLDS"
    assert float(each.lhs.max()) <= 1e-10
    # A sample sees the others, but for the head.
    first = jax.jit(lambda net: net(problem.data.x[batches[0]])[0, 0])
    once = jax.grad(first)(net)
    s = [np.linalg.svd(w, compute_uv=False) for w in once.weights]
    assert s[0][1] > 1e-3 * s[0][0] and s[3][1] < 1e-13 * s[3][0]
    rows = batches[0]
    data = gf.Dataset(problem.data.x[rows], problem.data.y[rows])
    gradient = jax.jit(jax.grad(gf.Problem(data, problem.loss).risk))(net)
    for w, rank in zip(gradient.weights, (size, size - 1, size - 1, size), strict=True):
        s = np.linalg.svd(w, compute_uv=False)
        assert s[rank - 1] > 1e-6 * s[0] and s[rank] < 1e-12 * s[0]


def test_normalised_layers_are_orthogonal_to_their_gradient():
    """Under true normalisation; a detached scale hides it."""
    problem = regression((5, 3))
    true = scale_invariance(problem, normalised_net("MLP-BN-2-6", (5, 3), False))
    assert true.applies.tolist() == [True, True, False] and true.verdict == "HOLDS"
    assert float(jnp.abs(true.lhs[:2]).max()) <= 3e-15 < float(jnp.abs(true.lhs[2]))
    hidden = scale_invariance(problem, normalised_net("MLP-BN-2-6", (5, 3), True))
    assert hidden.verdict == "ASSUMPTIONS NOT MET"
    assert float(jnp.abs(hidden.lhs[:2]).min()) > 1e-3
    with pytest.raises(ValueError, match="gradient is no mean over its samples"):
        net = normalised_net("MLP-BN-2-6", (5, 3), True)
        galanti.gradient_noise(problem, net, 2)


def test_batches():
    rows = galanti.all_batches(5, 3)
    assert rows.tolist() == [list(c) for c in itertools.combinations(range(5), 3)]
    drawn = np.asarray(galanti.sampled_batches(jax.random.key(0), 50, 9, 4))
    assert drawn.shape == (50, 4) and all(len(set(row)) == 4 for row in drawn.tolist())
    assert drawn.min() >= 0 and drawn.max() < 9
    with pytest.raises(ValueError, match="155117520 batches of size=15, too many"):
        galanti.all_batches(30, 15)
    with pytest.raises(ValueError, match="size=6 must lie between 1 and the 5 samples"):
        galanti.all_batches(5, 6)
    with pytest.raises(ValueError, match="number=0 of batches"):
        galanti.sampled_batches(jax.random.key(0), 0, 9, 4)


# --- Propositions 1 and 2 --------------------------------------------------------------


def test_residuals_against_numpy():
    problem, net, decay = regression(), random_net(), 0.03
    found = stationarity(problem, net, decay)
    flat = [g.reshape(N, -1) for g in by_hand(problem, net)]
    g = np.concatenate(flat, axis=1)
    w = np.concatenate([np.asarray(w).ravel() for w in net.weights])
    residuals = np.linalg.norm(g + 2 * decay * w, axis=1)
    np.testing.assert_allclose(found.largest, residuals.max(), rtol=1e-12)
    mean = np.linalg.norm(g.mean(axis=0) + 2 * decay * w)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    noise = np.trace(np.cov(g.T, bias=True))
    np.testing.assert_allclose(found.noise, noise, rtol=1e-12)
    np.testing.assert_allclose(
        found.root_mean_square**2, found.mean**2 + found.noise, rtol=1e-12
    )
    signals = np.asarray(problem.outputs(net)) - np.asarray(problem.data.y)
    np.testing.assert_allclose(
        found.loss_derivatives, np.linalg.norm(signals, axis=1), rtol=1e-12
    )
    with pytest.raises(ValueError, match="reduction='sum', but the penalty"):
        galanti.stationarity(gf.Problem(problem.data, problem.loss, "sum"), net, decay)


def test_collinearity():
    rng = np.random.default_rng(0)
    line = rng.normal(size=(5, 1)) * rng.normal(size=(1, 4))
    assert abs(float(galanti.collinearity(jnp.asarray(line)))) < 1e-15
    with_zero = jnp.asarray(np.concatenate([line, np.zeros((1, 4))]))
    assert abs(float(galanti.collinearity(with_zero))) < 1e-15
    assert float(galanti.collinearity(jnp.zeros((3, 2)))) == 0
    cross = jnp.asarray([[1.0, 0], [0, 3.0]])
    np.testing.assert_allclose(galanti.collinearity(cross), 0.5, rtol=1e-14)


@pytest.mark.parametrize("decay, height", [(0.02, 1.0), (0.7, 0.3)])
def test_on_collinear_data_sgd_rests(decay, height):
    """The bound of Prop. 1 is sharp: without its assumption, f ≠ 0 at rest."""
    rng = np.random.default_rng(0)
    problem, net = galanti.collinear_convergence_point(
        rng.normal(size=3), np.array([0.5, 1.0, 2.0, 3.0]), decay, height
    )
    gradients = [
        g + 2 * decay * np.asarray(w)
        for g, w in zip(by_hand(problem, net), net.weights, strict=True)
    ]
    assert max(np.abs(g).max() for g in gradients) <= 1e-12
    found = stationarity(problem, net, decay)
    assert float(found.largest) <= 1e-12 and float(found.noise) <= 1e-24
    assert float(jnp.abs(problem.outputs(net)).min()) > 1e-2
    assert abs(float(galanti.collinearity(problem.data.x))) < 1e-14
    assert float(galanti.jacobian_collinearity(problem, net).max()) < 1e-14
    check = zero_or_collinear(problem, net, decay)
    assert check.verdict == "ASSUMPTIONS NOT MET"
    assert "not not_collinear" in str(check)
    with pytest.raises(ValueError, match="multiples must be positive"):
        galanti.collinear_convergence_point(np.ones(2), np.array([1.0, -1.0]), decay)


def search_for_rest(problem, net, decay, starts):
    """Levenberg–Marquardt on all single-sample gradients from a net."""
    theta, unravel = ravel_pytree(net)
    x, y = problem.data.x, problem.data.y

    def residuals(theta):
        def of(xi, yi):
            one = gf.Problem(gf.Dataset(xi[None], yi[None]), problem.loss)
            return ravel_pytree(jax.grad(one.risk)(unravel(theta)))[0]

        return (jax.vmap(of)(x, y) + 2 * decay * theta[None]).ravel()

    compiled, jacobian = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))
    ends = []
    for start in starts:
        found = scipy.optimize.least_squares(
            lambda t: np.asarray(compiled(jnp.asarray(t))),
            start,
            lambda t: np.asarray(jacobian(jnp.asarray(t))),  # pyright: ignore
            method="lm",
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
            max_nfev=300,
        )
        ends.append(unravel(jnp.asarray(found.x)))
    return ends


def test_with_decay_sgd_rests_at_zero_only():
    """The best that a least-squares solver finds is f = 0, or is bounded away from rest;
    at every point the quantitative bound holds."""
    problem, decay = regression((3, 1), n=5), 0.02
    net = random_net((3, 6, 1))
    size = ravel_pytree(net)[0].size
    starts = np.random.default_rng(1).normal(size=(6, size)) * 0.6
    at_rest = []
    for end in search_for_rest(problem, net, decay, starts):
        check = zero_or_collinear(problem, end, decay)
        assert check.verdict == "HOLDS"
        largest = float(stationarity(problem, end, decay).largest)
        at_rest.append(largest < 1e-8)
        if at_rest[-1]:
            assert float(jnp.abs(problem.outputs(end)).max()) < 1e-8
        else:
            assert largest > 1e-3
    assert any(at_rest)
    assert zero_or_collinear(problem, net, 0.0).verdict == "VACUOUS"


def test_the_bound_on_the_first_layer_against_numpy():
    problem, net, decay = regression(), random_net(), 0.05
    check = zero_or_collinear(problem, net, decay)
    x, first = np.asarray(problem.data.x), np.asarray(net.weights[0])
    residual = by_hand(problem, net)[0] + 2 * decay * first
    largest = max(np.linalg.norm(r) for r in residual)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    sine = 1 - np.min((unit @ unit.T) ** 2)
    np.testing.assert_allclose(
        check.rhs, largest / (2 * decay) * np.sqrt(1 + 4 / sine), rtol=1e-12
    )
    np.testing.assert_allclose(check.lhs, np.linalg.norm(first), rtol=1e-14)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_without_decay_samples_are_fitted_or_zero(loss):
    problem = regression((3, 1), n=5, loss=getattr(gf.losses, loss))
    net = random_net((3, 6, 1))
    check = fitted_or_zero(problem, net)
    assert check.verdict == "HOLDS"
    gradients = np.concatenate([g.reshape(5, -1) for g in by_hand(problem, net, loss)], 1)
    size = float(gf.nets.norm(net))
    np.testing.assert_allclose(
        check.rhs, np.linalg.norm(gradients, axis=1) * size / 2, rtol=1e-12
    )
    if loss == "squared":
        size = ravel_pytree(net)[0].size
        starts = np.random.default_rng(1).normal(size=(4, size))
        ends = search_for_rest(problem, net, 0.0, starts)
        largest = [float(stationarity(problem, end).largest) for end in ends]
        assert min(largest) < 1e-8
        end = ends[int(np.argmin(largest))]
        gap = np.abs(np.asarray(problem.outputs(end) - problem.data.y))
        either = np.minimum(gap, np.abs(np.asarray(problem.outputs(end))))
        assert either.max() < 1e-6
        assert fitted_or_zero(problem, end).verdict == "HOLDS"


def test_gradient_descent_rests_where_sgd_does_not():
    """f ≠ 0 with noise at the limit of full batches: decay alone forbids nothing."""
    problem, decay = regression((6, 1), n=12), 0.01
    net = random_net((6, 16, 1))
    end = gf.descend(problem, net, 0.05, 8000, weight_decay=decay, save_every=8000)
    at = stationarity(problem, end.final, decay)
    assert float(at.mean) < 0.05 * math.sqrt(float(at.noise))
    assert float(at.noise) > 1e-2
    assert float(jnp.abs(problem.outputs(end.final)).max()) > 0.1


# --- Theorem 1 -------------------------------------------------------------------------


NORMS = ("frobenius", "spectral", "nuclear")


def brute_force(problem, nets, size):
    """Theorem 1 of these nets with three norms and decays, all batches of a size: how many
    cases there are, and how many are violated and say something."""
    batches, decays = galanti.all_batches(N, size), jnp.asarray([1e-3, 0.1, 1.0])

    @jax.jit
    @partial(jax.vmap, in_axes=(0, None))
    @partial(jax.vmap, in_axes=(None, 0))
    def checks(net, decay):
        given = problem, net, decay, batches
        return [galanti.low_rank_distance(*given, norm) for norm in NORMS]

    counts = np.zeros(3, int)
    for check in checks(jax.tree.map(lambda *w: jnp.stack(w), *nets), decays):
        violated = check.lhs > check.rhs * (1 + 1e-10)
        counts += [check.lhs.size, violated.sum(), (~check.vacuous).sum()]
        assert check.verdict != "VIOLATED"
    return counts


def test_theorem_one_in_756_cases():
    """2 problems x 2 batch sizes x 3 norms x 3 decays x 7 nets x 3 layers."""
    counts = []
    for loss, outputs, sizes in (("squared", 1, (1, 3)), ("cross_entropy", 4, (2, 5))):
        widths = (5, 10, 10, outputs)
        problem = regression(widths, loss=getattr(gf.losses, loss))
        nets = [random_net(widths, seed) for seed in range(7)]
        counts += [brute_force(problem, nets, size) for size in sizes]
    cases, violations, informative = np.sum(counts, axis=0)
    assert (cases, violations) == (756, 0) and 0 < informative < cases


@pytest.mark.parametrize("detach, size", [(True, 2), (False, 3)])
def test_theorem_one_under_normalisation(detach, size):
    """With statistics of the same batch: 108 cases each."""
    nets = [normalised_net("MLP-BN-2-8", (6, 4), detach, 1e-5, s) for s in range(4)]
    cases, violations, informative = brute_force(regression((6, 4)), nets, size)
    assert (cases, violations) == (108, 0) and 0 < informative < cases


@pytest.mark.parametrize("norm", NORMS)
def test_both_sides_of_theorem_one_against_numpy(norm):
    problem, net, decay, size = regression(), random_net(), 0.2, 2
    check = low_rank_distance(problem, net, decay, galanti.all_batches(N, size), norm)
    of = {
        "frobenius": lambda s: np.sqrt(np.sum(s**2)),
        "spectral": lambda s: s.max(),
        "nuclear": np.sum,
    }[norm]
    for layer, gradients in enumerate(by_hand(problem, net)):
        w = np.asarray(net.weights[layer])
        u, s, vt = np.linalg.svd(w)
        truncated = (u[:, :size] * s[:size]) @ vt[:size]
        lhs = of(np.linalg.svd(w - truncated, compute_uv=False))
        np.testing.assert_allclose(check.lhs[layer], lhs, rtol=1e-12)
        np.testing.assert_allclose(
            galanti.distance_to_rank(net.weights[layer], size, norm), lhs, rtol=1e-12
        )
        rhs = []
        for batch in itertools.combinations(range(N), size):
            mean = gradients[list(batch)].mean(axis=0)
            # The proof: W − U is the gradient over 2λ, U of rank B.
            low = -mean / (2 * decay)
            full = (mean + 2 * decay * w) / (2 * decay)
            np.testing.assert_allclose(w - low, full, rtol=1e-12, atol=1e-13)
            rhs.append(of(np.linalg.svd(full, compute_uv=False)))
        np.testing.assert_allclose(check.rhs[layer], min(rhs), rtol=1e-12)
        assert bool(check.vacuous[layer]) == (min(rhs) >= of(s))


def test_fewer_batches_bound_less():
    problem, net, decay = regression(), random_net(), 0.2
    batches = galanti.all_batches(N, 2)
    every = low_rank_distance(problem, net, decay, batches)
    some = low_rank_distance(problem, net, decay, batches[:4])
    assert (some.rhs >= every.rhs).all() and (some.lhs == every.lhs).all()
    assert low_rank_distance(problem, net, 0.0, batches).verdict == ("ASSUMPTIONS NOT MET")
    with pytest.raises(ValueError, match="rank=-1 must be 0 or more"):
        galanti.distance_to_rank(net.weights[0], -1)


def test_unknown_norms(unhooked):
    with pytest.raises(ValueError, match="norm='operator'; use 'frobenius', 'spectral'"):
        galanti.distance_to_rank(jnp.eye(2), 1, "operator")  # pyright: ignore


# --- Appendices D and E ----------------------------------------------------------------


def test_sample_bound():
    found = galanti.sample_bound(0.1, 0.05, 32, 10_000)
    assert f"{found:.6g}" == "4.43622e+07"
    for given, message in (
        ((0.0, 0.05, 32, 10), "accuracy=0.0 must be positive"),
        ((0.1, 1.0, 32, 10), "confidence=1.0 must lie in"),
        ((0.1, 0.5, 0, 10), "bits=0 and parameters=10"),
    ):
        with pytest.raises(ValueError, match=message):
            galanti.sample_bound(*given)


def test_equation_26_against_numpy():
    problem = regression((4, 1), loss=gf.losses.exponential)
    net, rho = random_net((4, 6, 5, 1)), 3.0
    unit = galanti.on_spheres(net)
    at = normalised(problem, net, rho)
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)[:, 0]
    weights = [np.asarray(w) / np.linalg.norm(w) for w in net.weights]
    outputs = reference.forward(weights, [0.0, 0.0], x)[0][:, 0]
    c = -np.exp(-rho * y * outputs) * y / N
    for layer, (ours, v) in enumerate(zip(at.residuals, weights, strict=True)):
        total = np.zeros_like(v)
        for n in range(N):
            one = reference.backprop(weights, [0.0, 0.0], x[[n]], np.ones((1, 1)))[layer]
            total += c[n] * (one - v * outputs[n])
        np.testing.assert_allclose(ours, total, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(unit.weights[layer], v, rtol=1e-14)
    np.testing.assert_allclose(at.growth, np.sum(c * outputs), rtol=1e-12)
    check = projection_identity(problem, net)
    assert check.lhs.shape == (1, 3) and check.verdict == "HOLDS"
    assert float(check.lhs.max()) <= 1e-13


def normalised_flow(problem, start, rho, t1, rtol=1e-8) -> Any:
    solver = gf.solvers.ExactKinks(rtol=rtol, atol=1e-4 * rtol)
    return galanti.normalised_flow(problem, start, rho, t1, ts=[t1], solver=solver)


def on_the_sphere(n):
    """Inputs of norm 1, hence outputs of 1 at most, where the loss stays in force."""
    problem = regression((6, 1), n=n, loss=gf.losses.exponential)
    x = np.asarray(problem.data.x)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return gf.Problem(gf.Dataset(x, problem.data.y), gf.losses.exponential)


@pytest.mark.parametrize("samples, rho", [(1, 1.0), (2, 5.0)])
def test_normalised_layers_come_to_the_rank_of_the_batch(samples, rho):
    problem, start = on_the_sphere(samples), random_net((6, 8, 8, 1))
    assert normalised_rank(problem, start, rho).holds.all()
    end = galanti.normalised_descent(problem, start, rho, 0.05 / rho, 10_000)
    for w in end.weights[:2]:
        np.testing.assert_allclose(np.linalg.norm(w), 1, rtol=1e-14)
        s = np.linalg.svd(np.asarray(w), compute_uv=False)
        assert s[samples:].max() <= 1e-12 < 0.1 < s[samples - 1]
    check = normalised_rank(problem, end, rho)
    assert check.verdict == "HOLDS" and float(check.rhs.max()) < 1e-12
    assert check.vacuous.tolist() == [False, False, True]


def test_the_flow_of_directions_is_the_limit_of_its_steps():
    """At first order, through kinks; and the norms stay."""
    problem, start, rho = on_the_sphere(3), random_net((6, 8, 8, 1)), 5.0
    flow = normalised_flow(problem, start, rho, 4.0)
    assert int(flow.stats["num_crossings"]) + int(flow.stats["num_slides"]) > 0
    assert float(flow.certificate.energy_residual) < 1e-6
    assert float(flow.certificate.balance_drift) < 1e-7
    for v in flow.final.weights:
        np.testing.assert_allclose(np.linalg.norm(v), 1, rtol=1e-7)
    gaps = []
    for steps in (400, 1600):
        end = galanti.normalised_descent(problem, start, rho, 4.0 / steps, steps)
        gaps.append(distance(end, flow.final))
    assert gaps[0] / gaps[1] > 2.5 and gaps[1] < 1e-3


def test_the_flow_of_directions_comes_to_the_rank_of_the_batch():
    problem, start = on_the_sphere(3), random_net((6, 8, 8, 1))
    end = normalised_flow(problem, start, 5.0, 100.0).final.unit
    for w, w0 in zip(end.weights[:2], start.weights[:2], strict=True):
        s, s0 = (np.linalg.svd(np.asarray(m), compute_uv=False) for m in (w, w0))
        assert s[3:].max() <= 1e-6 and s0[3] > 0.1


@pytest.mark.parametrize("way", ["steps", "flow"])
def test_deep_linear_layers_satisfy_equation_26(way):
    """And are of rank one, whatever the batch."""
    problem, start = on_the_sphere(4), random_net((6, 8, 8, 1), activation="identity")
    if way == "steps":
        end = galanti.normalised_descent(problem, start, 1.0, 0.05, 10_000)
    else:
        end = normalised_flow(problem, start, 1.0, 500.0, rtol=1e-13).final.unit
    at = normalised(problem, end, 1.0)
    assert max(float(jnp.abs(r).max()) for r in at.residuals) <= 1e-12
    for w in end.weights[:2]:
        s = np.linalg.svd(np.asarray(w), compute_uv=False)
        assert s[1:].max() <= 1e-10
    assert normalised_rank(problem, end, 1.0).verdict == "HOLDS"


# --- Memory ----------------------------------------------------------------------------


ETA, DECAY = 0.1, 0.2


def sgd(problem, net, steps, momentum: float = 0.0, size=1, **given):
    key = {} if isinstance(net, gf.DescentState) else {"key": jax.random.key(1)}
    return gf.descend(
        problem, net, ETA, steps, batch_size=size, momentum=momentum, weight_decay=DECAY,
        **key, **given,
    )  # fmt: skip


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_last_steps_have_the_rank_of_their_samples(momentum):
    widths = (5, 6, 5, 3)
    problem = regression(widths)
    first = sgd(problem, random_net(widths), 9, momentum)
    last = sgd(problem, first.checkpoint, 2, momentum)
    velocity = first.checkpoint.velocity if momentum else None
    settings: dict[str, Any] = dict(
        rate=ETA, weight_decay=DECAY, momentum=momentum, velocity=velocity
    )
    check = low_rank_unrolled(first.final, last.final, 2, 1, **settings)
    assert check.verdict == "HOLDS" and not check.vacuous.any()
    assert float(check.lhs.max()) <= 1e-14
    # A wrong rate leaves a remainder of full rank.
    wrong = low_rank_unrolled(
        first.final, last.final, 2, 1, **(settings | {"rate": 1.5 * ETA})
    )
    assert wrong.verdict == "VIOLATED" and float(wrong.lhs.min()) > 1e-3
    bound = memory_bound(first.final, last.final, 2, 1, **settings)
    assert bound.holds.all()
    if not momentum:
        q = 1 - 2 * ETA * DECAY
        for layer in range(3):
            w, old = last.final.weights[layer], first.final.weights[layer]
            s = np.linalg.svd(np.asarray(w), compute_uv=False)
            size = np.linalg.norm(w)
            np.testing.assert_allclose(
                bound.lhs[layer], np.linalg.norm(s[2:]) / size, rtol=1e-12
            )
            np.testing.assert_allclose(
                bound.rhs[layer], q**2 * np.linalg.norm(old) / size, rtol=1e-12
            )
    with pytest.raises(ValueError, match="steps=0 and batch_size=1"):
        galanti.memory_bound(first.final, last.final, 0, 1, rate=0.1, weight_decay=0.1)


def test_companion():
    """Its slow eigenvalue at the paper's settings, and the span that follows."""
    eta, decay, beta = 0.1, 5e-4, 0.9
    values = np.linalg.eigvals(np.asarray(galanti.companion(eta, decay, beta)))
    slow = 1 - 2 * eta * decay / (1 - beta)
    np.testing.assert_allclose(1 - max(values.real), 1 - slow, rtol=1e-2)
    steps, rank = galanti.memory_span(1e-4, eta / (1 - beta), decay, 4)
    assert (steps, rank) == (9904, 39616)
    with pytest.raises(ValueError, match="rate=0.0 must be positive"):
        galanti.memory_span(1e-4, 0.0, decay, 4)


TABLE = {
    0.001: (8.16, 4.08, 2.04, 1.02, 0.51, 0.255),
    0.01: (81.6, 40.8, 20.4, 10.2, 5.10, 2.55),
    0.1: (816, 408, 204, 102, 51.0, 25.5),
}


@pytest.mark.parametrize("rate", TABLE)
def test_forgetting_exponents_of_the_paper(rate):
    """CIFAR-10, 500 epochs, λ = 5e-4, β = 0.9: Λ to three digits."""
    for size, expected in zip((4, 8, 16, 32, 64, 128), TABLE[rate], strict=True):
        # In epochs of 50 000/B steps, as their number is no whole one for every B.
        schedule = gf.SteppedRate(rate, 500)
        found = galanti.forgetting_exponent(schedule, 500, 5e-4, 0.9) * 50_000 / size
        assert f"{float(found):.3g}" == f"{expected:.3g}"


def test_forgetting_exponents():
    schedule = gf.SteppedRate(0.1, 20)
    total = sum(float(schedule(jnp.asarray(k))) for k in range(20))
    np.testing.assert_allclose(
        galanti.forgetting_exponent(schedule, 20, 0.03, 0.5), 0.12 * total, rtol=1e-13
    )
    problem, net = regression(), random_net()
    traj = sgd(problem, net, 6, momentum=0.5)
    exponent = galanti.forgetting_exponent(ETA, 6, DECAY, 0.5)
    np.testing.assert_allclose(exponent, 2 * DECAY * traj.final_time, rtol=1e-13)
    # Without gradients the weights fade about so.
    power = np.linalg.matrix_power(np.asarray(galanti.companion(1e-3, 0.5, 0.5)), 3000)
    faded = float(galanti.forgetting_exponent(1e-3, 3000, 0.5, 0.5))
    np.testing.assert_allclose(-np.log(power[0, 0]), faded, rtol=1e-2)
    refused: Any = (
        ((gf.NormScaledRate(0.1), 5, 0.1), "rate depends on the net"),
        ((0.1, 0, 0.1), "steps=0 must be 1 or more"),
        ((0.1, 5, 0.1, 1.0), r"momentum=1.0 must lie in \[0, 1\)"),
    )
    for given, message in refused:
        with pytest.raises(ValueError, match=message):
            galanti.forgetting_exponent(*given)


# --- Laws of decay ---------------------------------------------------------------------


def test_what_decay_alone_moves():
    """Of SGD: off the span of the inputs, and the head's column sums."""
    widths = (6, 5, 5, 3)
    problem = regression(widths, n=4, loss=gf.losses.cross_entropy)
    net = random_net(widths)
    end = sgd(problem, net, 20, size=2).final
    survival = galanti.survival(jnp.full(20, ETA), DECAY)
    np.testing.assert_allclose(survival, (1 - 2 * ETA * DECAY) ** 20, rtol=1e-13)
    laws = [
        null_space_law(problem, net, end, survival),
        column_sum_law(net, end, survival),
    ]
    for law in laws:
        assert law.verdict == "HOLDS" and float(law.lhs) <= 1e-12
    assert column_sum_law(net, end, 0.9 * survival).verdict == "VIOLATED"
    assert null_space_law(problem, net, end, 0.9).verdict == "VIOLATED"


def test_balance_of_layers_step_by_step():
    problem, net = regression(), random_net()
    end = gf.descend(problem, net, ETA, 1, weight_decay=DECAY).final
    law = balance_step(problem, net, end, ETA, DECAY)
    assert law.lhs.shape == (2,) and law.verdict == "HOLDS"
    gap = np.abs(np.asarray(law.lhs - law.rhs)).max()
    assert gap <= 1e-12 * float(gf.nets.norm(net)) ** 2
    assert balance_step(problem, net, end, ETA, 0.0).verdict == "VIOLATED"


# --- Continuous time -------------------------------------------------------------------


@jax.jit
def switched(problem, net, batches, duration, decay):
    solver = gf.solvers.ExactKinks(rtol=1e-8)
    return galanti.switched_flow(
        problem, net, batches, duration, weight_decay=decay, solver=solver
    )


def flow(problem, net, decay, t1):
    """Of the first two samples: by windows of the same batch, so that all flows here are
    one program."""
    batches = jnp.asarray([[0, 1]] * 3)
    return rows(switched(problem, net, batches, t1 / 3, jnp.asarray(decay)), -1)


def two_samples(height=1.0):
    """The problem of seven in four dimensions, and that of the first two of them."""
    data, pair = regression().data, jnp.arange(2)
    data = gf.Dataset(data.x, height * data.y)
    return [gf.Problem(d, gf.losses.squared) for d in (data, data.subset(pair))]


def test_the_flow_decays_what_it_conserves():
    """dW/dt = −∇R − 2λW: e^(−4λt) of the balance, e^(−2λt) off the span of the data."""
    (whole, problem), net, decay, t1 = two_samples(), random_net(), 0.05, 4.0
    end = flow(whole, net, decay, t1)
    survival = math.exp(-2 * decay * t1)
    x = np.asarray(problem.data.x)
    off = np.eye(4) - np.linalg.pinv(x) @ x
    first = [np.asarray(n.weights[0]) @ off for n in (net, end)]
    np.testing.assert_allclose(first[1], survival * first[0], atol=1e-7)
    law = null_space_law(problem, net, end, survival, 1e-7)
    assert law.verdict == "HOLDS" and float(law.lhs) > 0
    assert null_space_law(problem, net, end, 0.9, 1e-7).verdict == "VIOLATED"
    for layer in (0, 1):
        balances = [
            np.sum(np.asarray(n.weights[layer + 1]) ** 2, 0)
            - np.sum(np.asarray(n.weights[layer]) ** 2, 1)
            for n in (net, end)
        ]
        np.testing.assert_allclose(balances[1], survival**2 * balances[0], atol=1e-6)
    law = galanti.balance_decay(net, end, survival, tolerance=1e-6)
    assert law.verdict == "HOLDS"
    assert galanti.balance_decay(net, end, 1.0, tolerance=1e-6).verdict == "VIOLATED"
    # Its derivative at the start, by hand.
    velocity = gf.GradientFlow(problem, decay).velocity(net).position
    mean = [g.mean(axis=0) for g in by_hand(problem, net)]
    for v, g, w in zip(velocity.weights, mean, net.weights, strict=True):
        np.testing.assert_allclose(v, -g - 2 * decay * np.asarray(w), rtol=1e-12)


def test_decay_beyond_the_threshold_collapses():
    """From near the origin the norm grows at 0.9 λ_c and decays at 1.1 λ_c, at the rates
    s* − 2λ along the fastest direction; of gradient descent, whose steps multiply it."""
    rng = np.random.default_rng(3)
    # Of positive targets: then the fastest direction is on no kink.
    x, y = rng.normal(size=(6, 2)), np.abs(rng.normal(size=(6, 1)))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    best = gf.escape.planar_optimum(problem, width=5)
    s = float(best.speed)
    # By a fine grid of directions.
    angles = np.linspace(0, 2 * np.pi, 200_001)
    w = np.stack([np.cos(angles), np.sin(angles)])
    speeds = np.abs((y.T / len(y)) @ np.maximum(x @ w, 0))
    assert speeds.max() <= s * (1 + 1e-12)
    np.testing.assert_allclose(s, speeds.max(), rtol=1e-5)
    threshold = float(galanti.collapse_threshold(s))
    np.testing.assert_allclose(threshold, s / 2, rtol=1e-15)
    step, steps = 0.01 / s, 12_000

    def norms(net, scale):
        """At 0.9 and 1.1 λ_c, after a sixth of the steps and at the end."""

        def of(decay):
            found = gf.descend(
                problem, start, step, steps, weight_decay=decay, save_every=steps // 6
            )
            return jax.vmap(gf.nets.norm)(found.net)

        start = gf.nets.scaled_to_norm(net, scale)
        both = jax.vmap(of)(threshold * jnp.asarray([0.9, 1.1]))
        return np.asarray(both)[:, [1, -1]]

    for factor, (early, _) in zip((0.9, 1.1), norms(best.net, 1e-6), strict=True):
        grown = math.log(early / 1e-6) / (steps // 6)
        np.testing.assert_allclose(grown, math.log1p(0.01 * (1 - factor)), rtol=1e-5)
    # Beyond, whatever the direction; a generic one finds the way out below.
    (_, below), (_, beyond) = norms(random_net((2, 5, 1), 4), 1e-3)
    assert below > 1e-2 and beyond < 1e-4
    with pytest.raises(ValueError, match="optimal_speed=-1.0 must be 0 or more"):
        galanti.collapse_threshold(-1.0)


def test_with_three_layers_the_origin_attracts():
    """For any decay, at the rate 2λ."""
    start, decay = gf.nets.scaled_to_norm(random_net(), 1e-3), 0.05
    end = flow(two_samples()[0], start, decay, 20.0)
    shrunk = math.log(float(gf.nets.norm(end)) / 1e-3)
    np.testing.assert_allclose(shrunk, -2 * decay * 20.0, rtol=1e-2)


def test_at_rest_under_decay_the_rank_is_that_of_the_samples():
    """Full batches: every matrix is a sum of m of rank one, and f is not 0."""
    # Targets so large that f = 0 does not attract.
    (whole, problem), decay = two_samples(3.0), 0.02
    end = flow(whole, random_net(), decay, 12.5 / decay)
    assert float(jnp.abs(problem.outputs(end)).max()) > 0.1
    for w in end.weights[:2]:
        s = np.linalg.svd(np.asarray(w), compute_uv=False)
        assert s[2:].max() < 1e-9 * np.linalg.norm(s)
    law = low_rank_distance(problem, end, decay, galanti.all_batches(2, 2))
    assert law.verdict == "HOLDS"


def test_the_switched_flow():
    """Window after window; the first layer gains rank B, others more."""
    problem, net, decay, eta = regression(), random_net(), 0.1, 0.5

    def of(net, batches, duration):
        return switched(problem, net, batches, duration, jnp.asarray(decay))

    batches = jnp.asarray([[0, 1], [4, 2], [3, 6]])
    nets = of(net, batches, eta)
    again = of(rows(nets, 0), jnp.roll(batches, -1, axis=0), eta)
    assert distance(rows(again, 0), rows(nets, 1)) < 1e-12
    survival = math.exp(-2 * decay * eta)
    for before, after in ((net, rows(nets, 0)), (rows(nets, 1), rows(nets, 2))):
        check = galanti.low_rank_window(before, after, 2, survival, 1e-6)
        assert check.applies.tolist() == [True, False, False] and check.verdict == "HOLDS"
        assert float(check.lhs[0]) < 1e-6 < 1e-4 < float(check.lhs[1])
    # Short windows are steps of SGD.
    short = of(net, batches, 1e-4)
    moved = jax.tree.map(lambda a, b: (b[0] - a) / 1e-4, net, short)
    for v, w, g in zip(moved.weights, net.weights, by_hand(problem, net), strict=True):
        expected = -g[:2].mean(axis=0) - 2 * decay * np.asarray(w)
        np.testing.assert_allclose(v, expected, atol=2e-3)


# --- The stochastic differential equation -----------------------------------------------


def test_the_covariance_is_that_of_all_batches():
    """Enumerated: every subset of the samples without replacement."""
    problem, net = regression(n=6), random_net()
    gradients = np.concatenate([g.reshape(6, -1) for g in by_hand(problem, net)], axis=1)
    for size in (1, 2, 4, 6):
        means = np.stack(
            [
                gradients[list(batch)].mean(axis=0)
                for batch in itertools.combinations(range(6), size)
            ]
        )
        exact = np.cov(means.T, bias=True) if size < 6 else np.zeros((means.shape[1],) * 2)
        noise = galanti.gradient_noise(problem, net, size)
        columns = jax.vmap(lambda e, a=noise: ravel_pytree(a.mv(e))[0])(jnp.eye(6))
        root = np.asarray(columns).T
        np.testing.assert_allclose(root @ root.T, exact, atol=1e-12 * exact.max() + 1e-16)
    with pytest.raises(ValueError, match="size=7 must lie between 1 and the 6 samples"):
        galanti.gradient_noise(problem, net, 7)


def test_paths_of_the_equation():
    """Without noise the steps are those of gradient descent; from many seeds, the moments
    of the first are within five deviations."""
    problem, net, eta, decay, dt = regression(n=6), random_net(), 0.2, 0.03, 0.05
    number, settings = 1000, dict[str, Any](batch_size=2, steps=8)

    def path(rate, key):
        return galanti.sgd_diffusion(
            problem, net, rate, 0.4, saves=8, weight_decay=decay, key=key, **settings
        )

    rates = jnp.full(number + 1, eta).at[0].set(0.0)
    keys = jax.random.split(jax.random.key(0), number + 1)
    times, nets = jax.vmap(path)(rates, keys)
    descent = gf.descend(problem, net, dt, 8, weight_decay=decay, save_every=1)
    np.testing.assert_allclose(times[0], dt * np.arange(1, 9), rtol=1e-14)
    for i in range(8):
        assert distance(rows(rows(nets, 0), i), rows(descent.net, i + 1)) < 1e-13
    first = [np.asarray(w)[1:, 0].reshape(number, -1) for w in nets.weights]
    ends = np.concatenate(first, axis=1)
    mean = np.asarray(ravel_pytree(rows(descent.net, 1))[0])
    gradients = np.concatenate([g.reshape(6, -1) for g in by_hand(problem, net)], axis=1)
    variance = eta * dt * (6 - 2) / (2 * 5) * gradients.var(axis=0)
    moving = variance > 1e-12
    noise = ends - mean
    np.testing.assert_allclose(noise[:, ~moving], 0, atol=1e-12)
    ratios = (noise[:, moving] ** 2).mean(axis=0) / variance[moving]
    assert np.abs(ratios - 1).max() < 5 * math.sqrt(2 / number)
    means = noise[:, moving].mean(axis=0) / np.sqrt(variance[moving] / number)
    assert np.abs(means).max() < 5
    with pytest.raises(ValueError, match="saves=9 must lie between 1 and steps=8"):
        galanti.sgd_diffusion(problem, net, 0.1, 0.4, saves=9, key=keys[0], **settings)


# --- Diagnostics -----------------------------------------------------------------------


def test_ranks_by_thresholds():
    problem = regression((4, 3))
    diagonal = jnp.diag(jnp.asarray([1.0, 1e-2, 2e-4, 1e-5]))
    net = gf.nets.MLP.from_weights([diagonal, 1e-9 * jnp.eye(4), jnp.eye(3, 4)])
    ranks = gf.diagnostics.layer_ranks(problem, net)
    assert ranks.tolist() == [3, 4, 3]
    assert gf.diagnostics.layer_ranks(problem, net, 1e-3).tolist() == [2, 4, 3]
    zeroed = gf.diagnostics.layer_ranks(problem, net, zero_norm=1e-6)
    assert zeroed.tolist() == [3, 0, 3]
    absolute = gf.diagnostics.layer_ranks(problem, net, normalisation="none")
    assert absolute.tolist() == [3, 0, 3]
    assert float(gf.diagnostics.average_rank(problem, net)) == 3.5
    whole = gf.diagnostics.average_rank(problem, net, include_head=True)
    np.testing.assert_allclose(whole, 10 / 3, rtol=1e-15)
    # At 0.6 of it the norms differ: 1/√2 of Frobenius, 1 of the spectral one.
    even = gf.nets.MLP.from_weights([jnp.eye(4), jnp.ones((3, 4))])
    assert gf.diagnostics.layer_ranks(problem, even, 0.6).tolist() == [0, 1]
    spectral = gf.diagnostics.layer_ranks(problem, even, 0.6, "spectral")
    assert spectral.tolist() == [4, 1]
    with pytest.raises(ValueError, match="no matrix but its head"):
        gf.diagnostics.average_rank(problem, gf.nets.MLP.from_weights([jnp.ones((3, 4))]))


def test_unknown_normalisations(unhooked):
    with pytest.raises(ValueError, match="normalisation='nuclear'; use 'none'"):
        gf.diagnostics.layer_ranks(regression(), random_net(), normalisation="nuclear")  # pyright: ignore


def test_ranks_of_what_is_no_number():
    problem = regression((4, 3))
    bad = gf.nets.MLP.from_weights([jnp.full((4, 4), jnp.nan), jnp.ones((3, 4))])
    assert gf.diagnostics.layer_ranks(problem, bad).tolist() == [-1, 1]
    assert bool(jnp.isnan(gf.diagnostics.average_rank(problem, bad)))


def test_accuracies_and_epoch_distances():
    x = np.eye(3)
    classes = gf.Problem(gf.Dataset(x, np.array([0, 1, 1])), gf.losses.cross_entropy)
    hot = gf.Problem(gf.Dataset(x, np.eye(2)[[0, 1, 1]]), gf.losses.squared)
    signs = gf.Problem(gf.Dataset(x, np.array([1.0, -1, 1])), gf.losses.logistic)
    two, zero, one, a, b = (
        gf.nets.MLP.from_weights(weights)
        for weights in (
            [np.array([[1.0, 0, 2], [0, 1, 1]])],
            [np.zeros((2, 3))],
            [np.array([[2.0, 1, 0]])],
            [np.zeros((2, 3)), np.ones((1, 2))],
            [np.ones((2, 3)), np.array([[4.0, 5.0]])],
        )
    )

    @jax.jit
    def found():
        pairs = (classes, two), (hot, two), (classes, zero), (signs, one)
        shares = [gf.diagnostics.accuracy(*pair) for pair in pairs]
        return shares, gf.diagnostics.epoch_distance(a, b)

    shares, moved = found()
    np.testing.assert_allclose(shares, [2 / 3, 2 / 3, 0, 1 / 3], rtol=1e-15)
    np.testing.assert_allclose(moved, (math.sqrt(6) + 5) / 2, rtol=1e-15)
