"""Galanti & Poggio, Theorem 1, by enumeration and against NumPy."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from galanti_cases import (
    N,
    by_hand,
    low_rank_distance,
    normalised_net,
    random_net,
    regression,
)

import gfdyn as gf
from gfdyn.theory import galanti


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
