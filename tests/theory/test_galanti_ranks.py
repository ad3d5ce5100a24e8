"""Galanti & Poggio, Lemmas 1 and 2: ranks of gradients and Jacobians, against NumPy."""

import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from galanti_cases import (
    N,
    by_hand,
    low_rank_distance,
    normalised_net,
    random_net,
    regression,
    stationarity,
)
from jaxtyping import Array

import gfdyn as gf
from gfdyn.theory import galanti


low_rank_jacobians = jax.jit(galanti.low_rank_jacobians, static_argnames="uses")
jacobian_factors = jax.jit(galanti.jacobian_factors)
low_rank_batch_gradients = jax.jit(galanti.low_rank_batch_gradients)
low_rank_batch_jacobians = jax.jit(galanti.low_rank_batch_jacobians)
scale_invariance = jax.jit(galanti.scale_invariance)


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


# --- Batch normalisation: Lemma 2 ------------------------------------------------------


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
