"""Trajectories of every kind, and how they are compared."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gfdyn as gf


RECORD = {
    "risk": gf.diagnostics.risk,
    "stable_rank": gf.diagnostics.stable_rank,
    "singular_values": partial(gf.diagnostics.singular_values, k=3),
    "alignment": gf.diagnostics.alignment,
    "neuron_balance": gf.diagnostics.neuron_balance,
    "kink_count": gf.diagnostics.kink_count,
}
LOOSE = gf.solvers.Adaptive(rtol=1e-3)


def decaying_flow() -> gf.Trajectory:
    """A GradientFlow with weight decay in float64, all kinds of records."""
    data = gf.data.teacher(9, [4, 3, 2], key=jax.random.key(1))
    net = gf.nets.MLP([4, 5, 6, 2], key=jax.random.key(0), scale=0.5)
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared), weight_decay=0.01)
    ts = jnp.linspace(0, 1, 5)
    return gf.solve(flow, net, ts=ts, record=RECORD, solver=LOOSE)


def classifying_escape() -> gf.Trajectory:
    """An EscapeFlow of the cross-entropy, by a stop condition, all kinds of records."""
    x = jax.random.normal(jax.random.key(2), (9, 4))
    problem = gf.Problem(gf.Dataset(x, jnp.arange(9) % 3), gf.losses.cross_entropy)
    activations = ["leaky_relu(0.25)", "identity"]
    net = gf.nets.MLP([4, 5, 6, 3], key=jax.random.key(0), activation=activations)
    return gf.solve(
        gf.EscapeFlow(problem),
        gf.nets.scaled_to_norm(net, jnp.asarray(1e-3)),
        t1=jnp.inf,
        ts=gf.AcceptedSteps(8),
        record=RECORD,
        solver=LOOSE,
        stop=[gf.stopping.RadiusAbove(0.1), gf.stopping.RiskBelow(1.0)],
    )


def plain_flow() -> gf.Trajectory:
    """A GradientFlow in the clock of the loss in float32, without records, no hidden
    layer, and a weight decay that is an array."""
    data = gf.data.gaussian(6, 3, key=jax.random.key(1), dtype="float32")
    net = gf.nets.MLP([3, 1], key=jax.random.key(0), dtype="float32")
    problem = gf.Problem(data, gf.losses.squared, reduction="sum")
    decay = jnp.asarray(0.1, jnp.float32)
    flow = gf.GradientFlow(problem, weight_decay=decay, clock="loss")
    return gf.solve(flow, net, ts=[0.5], solver=LOOSE)


def localized_escape() -> gf.Trajectory:
    """A localized EscapeFlow in float32 that runs out of steps, with one record."""
    problem = gf.Problem(gf.data.circle(4, dtype="float32"), gf.losses.exponential)
    net = gf.nets.MLP([2, 4, 1], key=jax.random.key(0), dtype="float32")
    return gf.solve(
        gf.EscapeFlow(problem, localized=True),
        net,
        t1=50.0,
        ts=gf.AcceptedSteps(4),
        record={"direction": gf.diagnostics.direction},
        solver=LOOSE,
        max_steps=3,
        throw=False,
    )


def descent() -> gf.Trajectory:
    """Gradient descent on the logistic loss."""
    problem = gf.Problem(gf.data.xor(), gf.losses.logistic)
    net = gf.nets.MLP([2, 4, 1], key=jax.random.key(0), scale=0.5)
    return gf.descend(problem, net, 0.1, 4, save_every=2)


@cache
def made(maker: Callable[[], gf.Trajectory]) -> gf.Trajectory:
    """What a maker makes, once for all tests."""
    return maker()


def assert_identical(a: gf.Trajectory, b: gf.Trajectory) -> None:
    """The same structure, and every leaf the same to the bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert isinstance(p, float) == isinstance(q, float)
        p, q = np.asarray(p), np.asarray(q)
        assert (p.dtype, p.shape, p.tobytes()) == (q.dtype, q.shape, q.tobytes())


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]
