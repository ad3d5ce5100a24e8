"""Problems with known answers, tolerances, and the files of sweeps."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import gfdyn as gf
from gfdyn.sweeps.results._store import Store


def linear_problem(seed: int = 3, num_outputs: int = 2) -> tuple[gf.Problem, np.ndarray]:
    """A squared loss on Gaussian data, and A = GXᵀ (k, d) computed in NumPy."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(7, 4)), rng.normal(size=(7, num_outputs))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    return problem, -(y / len(y)).T @ x


def linear_escape(a: np.ndarray, depth: int, width: int = 5) -> gf.nets.MLP:
    """The optimal escape direction of a linear net, W_1 = e v₁ᵀ, …, W_L = −u₁ eᵀ."""
    u, _, vt = np.linalg.svd(a)
    e = np.eye(width)[0]
    middle = [np.outer(e, e)] * (depth - 2)
    weights = [np.outer(e, vt[0]), *middle, np.outer(-u[:, 0], e)]
    return gf.nets.MLP.from_weights(weights, activation="identity")


def example_one(num_samples: int = 8, dtype: Any = None) -> gf.Problem:
    """Example 1 of Bantzis, Simon & Jacot: points of the circle, whose G is (−1)^j."""
    data = gf.data.circle(num_samples, dtype=dtype)
    return gf.Problem(data, gf.losses.squared, reduction="sum")


def all_active(
    depth: int, noise: float = 0.0, seed: int = 0, width: int = 3, samples: int = 6
) -> tuple[gf.Problem, gf.nets.MLP]:
    """Rank-one data and a positive rank-one ReLU net on them (up to `noise`): every gate is
    and stays open, so that the flow is smooth. At ‖W_l‖ = 1 without noise it is the optimal
    escape direction, of speed `all_active_speed`."""
    rng = np.random.default_rng(seed)
    u, v = rng.uniform(0.3, 1, 4), rng.uniform(0.5, 1.5, samples)
    u /= np.linalg.norm(u)
    q = [u, *[rng.uniform(0.3, 1, width) for _ in range(depth - 1)], np.ones(1)]
    q = [p / np.linalg.norm(p) for p in q]
    weights = [
        np.outer(after, before)
        * (1 + noise * rng.uniform(-1, 1, (len(after), len(before))))
        for before, after in zip(q[:-1], q[1:], strict=True)
    ]
    data = gf.Dataset(np.outer(v, u), 1.3 * v[:, None])
    return gf.Problem(data, gf.losses.squared), gf.nets.MLP.from_weights(weights)


def all_active_speed(problem: gf.Problem) -> float:
    """s* = ‖Gv‖ ‖u‖ of rank-one data x_i = v_i u."""
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)
    return float(np.linalg.norm((y / len(y)).T @ x))


def sliding(seed: int = 0) -> tuple[gf.Problem, gf.nets.MLP]:
    """Generic ReLU regression, on which neurons soon slide along kinks."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=(20, 1))
    net = gf.nets.MLP([3, 8, 1], key=jax.random.key(seed), scale=0.5)
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared), net


def tight(rtol: float = 1e-10) -> gf.solvers.Adaptive:
    """An ordinary solve at a tight tolerance."""
    return gf.solvers.Adaptive(rtol=rtol)


def distance(a: gf.nets.AbstractNet, b: gf.nets.AbstractNet) -> float:
    """‖a − b‖ / ‖b‖ over all parameters, in NumPy."""
    p = np.concatenate([np.ravel(w) for w in a.weights])
    q = np.concatenate([np.ravel(w) for w in b.weights])
    return float(np.linalg.norm(p - q) / np.linalg.norm(q))


def rows(net: gf.nets.AbstractNet, i: int) -> gf.nets.AbstractNet:
    """The i-th net of a stack."""
    return jax.tree.map(lambda leaf: leaf[i], net)


def assert_close(actual: Any, expected: Any, rtol: float = 1e-12, atol: float = 0.0):
    """Trees of equal shapes, each leaf within `atol` and `rtol` times its largest entry."""
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == np.shape(b)
        scale = np.max(np.abs(b), initial=0)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol + rtol * scale)


def float_dtypes(tree: Any) -> set[np.dtype]:
    """The floating dtypes of all arrays of a pytree."""
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return {a.dtype for a in arrays}


def sweep_files(out: Path) -> list[str]:
    """The names of the files of a sweep's points, each of which is sound: as names hold
    checksums, equal names are equal bytes."""
    store = Store(out)
    files = list(store.point_files())
    assert all(store.verified(file.path) for file in files)
    return [file.path.name for file in files]


class Calls(eqx.Module):
    """Another network, and nothing but its call."""

    inner: gf.nets.AbstractNet

    def __call__(self, x):
        return self.inner(x[None, :])[0]


class BiasedNet(gf.nets.AbstractNet):
    """One hidden ReLU layer with a bias: a net that is not homogeneous."""

    first: Array
    bias: Array
    last: Array

    @property
    def knows_kinks(self):
        return True

    @property
    def activations(self):
        return (gf.nets.relu(),)

    @property
    def weights(self):
        return self.first, self.last

    @property
    def degree(self):
        return None

    @property
    def in_size(self):
        return self.first.shape[1]

    @property
    def out_size(self):
        return self.last.shape[0]

    @property
    def parameter_names(self):
        return "W1", "b1", "W2"

    def forward(self, x, gates):
        z = x @ self.first.T + self.bias[None, :]
        return gates[0](z) @ self.last.T, (z,)

    def gradient_norms(self, x, values):
        del values
        norms = jnp.sqrt(jnp.sum(x**2, axis=1, keepdims=True) + 1)
        return (jnp.broadcast_to(norms, (len(x), len(self.first))),)

    def conserved(self):
        incoming = jnp.concatenate([self.first, self.bias[:, None]], axis=1)
        return (gf.nets.Invariant("layer 1", "blocks", incoming, self.last, 1),)


def biased_net(widths: tuple[int, int, int], seed: int = 0) -> BiasedNet:
    """A biased net of these widths with normal parameters."""
    rng = np.random.default_rng(seed)
    d, n, k = widths
    shapes = ((n, d), (n,), (k, n))
    return BiasedNet(*(jnp.asarray(0.5 * rng.normal(size=shape)) for shape in shapes))
