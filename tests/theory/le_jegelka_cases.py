"""Nets and problems of the tests of Le & Jegelka."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import gfdyn as gf
from gfdyn.nets import conv, dense, resnet_free, resnet_identity, sequential
from gfdyn.theory import le_jegelka as lj


def randomised(net, seed=0):
    """The same net with normal weights, biases too."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape)), net)


def random_graph(seed, sigma="leaky_relu(0.3)"):
    """Two inputs, the constant 1, six hidden vertices, shared weights, a constant one."""
    rng = np.random.default_rng(seed)
    edges = [
        (int(u), v)
        for v in range(3, 9)
        for u in rng.choice(v, size=min(v, 3), replace=False)
    ]
    idle = set(range(3, 9)) - {u for u, _ in edges}
    edges += [(v, 9) for v in sorted(idle | {7, 8})]
    fixed = edges.pop(4)
    parameters = [*range(len(edges) - 1), 0]
    values = rng.normal(size=len(edges) - 1)
    return gf.nets.Dag(
        edges,
        values,
        2,
        activation=sigma,
        parameters=parameters,
        constants={fixed: -0.7},
        constant=2,
    )


VERSIONS = ("corrected", "second", "first")
KEY = jr.key(0)
BUILDERS = {
    "relu": lambda: gf.nets.MLP([3, 4, 3, 1], key=KEY),
    "leaky": lambda: gf.nets.MLP([3, 4, 3, 1], key=KEY, activation="leaky_relu(0.2)"),
    "identity block": lambda: sequential(
        (3,), [resnet_identity(2), dense(1, "identity")], key=KEY
    ),
    "free block": lambda: sequential(
        (3,), [resnet_free(2, 3), dense(1, "identity")], key=KEY
    ),
    "conv": lambda: sequential(
        (4, 1), [conv(2, 2), conv(2, 2), dense(1, "identity")], key=KEY
    ),
    "bias": lambda: sequential(
        (3,), [dense(3, bias=True), dense(2, bias=True), dense(1, "identity")], key=KEY
    ),
    "graph 0": lambda: random_graph(0),
    "graph 1": lambda: random_graph(1),
    "graph 2": lambda: random_graph(2, "relu"),
}


def built(name):
    net = BUILDERS[name]()
    return net if name.startswith("graph") else randomised(net)


def inputs(net, samples=6, seed=1):
    return np.random.default_rng(seed).normal(size=(samples, net.in_size))


def problem_on(x, loss=gf.losses.logistic, seed=2):
    signs = np.sign(np.random.default_rng(seed).normal(size=(len(x), 1)))
    return gf.Problem(gf.Dataset(x, signs), loss)


def close(actual, expected, size=1.0, tolerance=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * size)


@eqx.filter_jit
def statements(problem, net, gates=None):
    """All of them in one program."""
    found = {
        "vertices": lj.vertex_wise(problem, net, gates),
        "lemma 4": lj.noninvariance(problem, net, gates),
        "ranks": lj.gram_velocity_ranks(problem, net, gates),
    }
    for version in VERSIONS:
        found[f"pairs {version}"] = lj.pairwise(problem, net, gates, version)
        found[f"matrix {version}"] = lj.matrix_wise(problem, net, gates, version)
    return found


@eqx.filter_jit
def flowed(problem, net, steps=100, length=0.01):
    """The nets at ten times each of so many Runge–Kutta steps, the start among them."""

    def moved(net, velocity, length):
        return jax.tree.map(lambda w, v: w - length * v, net, velocity)

    def step(net, _):
        g1 = jax.grad(problem.risk)(net)
        g2 = jax.grad(problem.risk)(moved(net, g1, length / 2))
        g3 = jax.grad(problem.risk)(moved(net, g2, length / 2))
        g4 = jax.grad(problem.risk)(moved(net, g3, length))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, g1, g2, g3, g4)
        return moved(net, mean, length), net

    last, nets = jax.lax.scan(step, net, length=steps)
    return jax.tree.map(lambda w, end: jnp.append(w[::10], end[None], axis=0), nets, last)


def spectral(w):
    return np.linalg.norm(w, 2) ** 2


def positive(a):
    return max(np.linalg.eigvalsh(a)[-1], 0)
