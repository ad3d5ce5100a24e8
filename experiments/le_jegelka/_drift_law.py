"""The drift law integrated: how far M gets is the integral of what passes its neurons.

Part of E8 of `invariances.py`.
"""

import jax
import numpy as np

import gfdyn as gf
from experiments._common.claims import Claim


# Pieces of the time between events, and Gauss points on each.
PIECES, POINTS = 40, 6


def drift_claims(rtol: float) -> list[Claim]:
    """Of a ReLU and a leaky layer, through crossings and slides."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)), np.sign(rng.normal(size=(8, 1)))
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.logistic)
    ws = [0.5 * rng.normal(size=shape) for shape in ((5, 3), (1, 5))]
    claims = []
    for activation in ("relu", "leaky_relu(0.1)"):
        net = gf.nets.MLP.from_weights(ws, activation)
        law, moved, events = integral_and_drift(problem, net, 20.0, rtol)
        claims += [
            Claim(
                statement=f"E8, drift law, {activation}: integral against the drift of M, "
                f"largest gap, through {events} events",
                source="ours",
                measured=float(np.abs(law - moved).max()),
                high=1e-5,
            ),
            Claim(
                statement=f"E8, drift law, {activation}: drift of M",
                source="ours",
                measured=float(np.abs(moved).max()),
                low=0.1,
            ),
        ]
    return claims


def integral_and_drift(
    problem: gf.Problem, net: gf.nets.MLP, t1: float, rtol: float
) -> tuple[np.ndarray, np.ndarray, int]:
    """∫ dM/dt by the drift law, M(t1) − M(0), and the number of events on the way.

    By Gauss's rule between the events, where the law jumps: a first solve finds these, a
    second one saves at the points.
    """

    def solve(ts: np.ndarray) -> gf.Trajectory:
        return gf.solve(
            gf.GradientFlow(problem),
            net,
            ts=ts,
            kinks=4 * PIECES,
            solver=gf.solvers.ExactKinks(rtol=rtol),
        )

    first = solve(np.linspace(0, t1, PIECES * POINTS + 1))
    assert first.kinks is not None
    events = np.unique(np.asarray(first.kinks.time))
    ts, weights = gauss(events[events < t1], t1)
    traj = solve(np.append(ts, t1))
    assert traj.kinks is not None

    @jax.jit
    def laws(nets: gf.nets.MLP, gates: tuple[jax.Array, ...]) -> jax.Array:
        def law(net: gf.nets.MLP, gates: tuple[jax.Array, ...]) -> jax.Array:
            return gf.diagnostics.gram_drift(problem, net, gates)["layer 1"]

        return jax.vmap(law)(nets, gates)

    values = np.asarray(laws(traj.net, traj.kinks.gates))[:-1]
    integral = np.einsum("t,tuv->uv", weights, values)
    moved = traj.final.conserved()[0].matrix - net.conserved()[0].matrix
    return integral, np.asarray(moved), len(events)


def gauss(events: np.ndarray, t1: float) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights between the events, the longest piece halved until there are as
    many as asked for."""
    ends = [0.0, *events.tolist(), t1]
    while len(ends) <= PIECES:
        longest = int(np.argmax(np.diff(ends)))
        ends.insert(longest + 1, (ends[longest] + ends[longest + 1]) / 2)
    points, weights = np.polynomial.legendre.leggauss(POINTS)
    half = np.diff(ends)[:, None] / 2
    middle = (np.asarray(ends)[:-1] + half[:, 0])[:, None]
    return (middle + half * points).ravel(), (half * weights).ravel()
