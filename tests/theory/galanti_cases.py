"""Problems, nets and compiled statements of the tests of Galanti & Poggio."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import reference
from fixtures import rows

import gfdyn as gf
from gfdyn.theory import galanti


WIDTHS = [4, 6, 5, 3]
N = 7
stationarity = jax.jit(galanti.stationarity)
low_rank_distance = jax.jit(galanti.low_rank_distance, static_argnames="norm")


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


def normalised_net(name, widths, detach, eps=0.0, seed=0):
    """One of the paper's nets, with γ and β that are not 1 and 0."""
    norm = gf.nets.batch_norm(detach=detach, eps=eps)
    key = jax.random.key(seed)
    net = gf.nets.architecture(name, *widths, key=key, norm=norm, scale=1.5)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda w: w + 0.2 * rng.normal(size=w.shape), net)


ETA, DECAY = 0.1, 0.2


def sgd(problem, net, steps, momentum: float = 0.0, size=1, **given):
    key = {} if isinstance(net, gf.DescentState) else {"key": jax.random.key(1)}
    return gf.descend(
        problem, net, ETA, steps, batch_size=size, momentum=momentum, weight_decay=DECAY,
        **key, **given,
    )  # fmt: skip


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
