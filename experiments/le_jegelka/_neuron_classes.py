"""Neurons in classes of equal activation: within a class, W₂ᵀW₂ − W₁W₁ᵀ stands still.

Experiment E4 of `refutation.py`.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array

import gfdyn as gf
from experiments._common.claims import Claim, near


FIRST = "first version: "
CLASSES = (slice(0, 3), slice(3, 6))


def clusters() -> gf.Problem:
    """Two clusters of three samples, with labels +1 and −1."""
    rng = np.random.default_rng(0)
    centres = np.repeat([[1.0, 0.2, 0.3], [-0.6, 1.0, 0.3]], 3, axis=0)
    x = centres + 0.05 * rng.normal(size=(6, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.repeat([[1.0], [-1.0]], 3, axis=0)
    return gf.Problem(gf.Dataset(x, y), gf.losses.logistic)


def classes(rtol: float) -> xr.Dataset:
    """E4: nets whose neurons see one cluster, the other, or both; of three layers up to t =
    6, of two layers up to the arc length 20. No neuron meets a kink, as a claim checks, so
    that an ordinary solve is exact, and its program four times smaller."""
    problem, rng = clusters(), np.random.default_rng(0)
    first = [[1, -0.8, 0.1], [0.8, -0.7, -0.1], [-0.7, 0.6, 0.05], [-0.6, 0.9, -0.2]]
    both = [[0.3, 0.6, 0.4], [0.2, 0.5, 0.6]]
    later = [0.5 * rng.normal(size=shape) for shape in ((3, 6), (1, 3))]
    three = gf.nets.MLP.from_weights(
        [np.asarray([*first, *both]), *later], ["relu", "identity"]
    )
    rows = [*first[:2], [0.9, -0.9, 0.2], *first[2:], [-0.8, 0.7, 0.3]]
    last = np.asarray([[0.5, 0.4, 0.3, -0.4, -0.5, -0.6]])
    two = gf.nets.MLP.from_weights([0.5 * np.asarray(rows), last])
    solver = gf.solvers.Adaptive(rtol=rtol, atol=rtol)
    data: dict[str, Any] = {}
    for name, net, flow, t1 in (
        ("three", three, gf.GradientFlow(problem), 6.0),
        ("two", two, gf.GradientFlow(problem, clock="arc"), 20.0),
    ):
        traj = gf.solve(flow, net, ts=np.linspace(0, t1, 61), solver=solver)
        m, kinds, norms = jax.tree.map(np.asarray, _measured(problem, traj.net))
        alike = (kinds[0][:, None] == kinds[0][None, :])[None]
        drift = np.abs(m - m[0])
        w = np.asarray(traj.net.weights[0])
        data |= {
            f"{name}_within": ("save", np.where(alike, drift, 0).max(axis=(1, 2))),
            f"{name}_across": ("save", np.where(alike, 0, drift).max(axis=(1, 2))),
            f"{name}_changes": ("save", np.ptp(kinds, axis=0).max() * np.ones(len(w))),
            f"{name}_squares": (("save", "value"), np.linalg.svd(w)[1] ** 2),
            f"{name}_class_squares": (
                ("save", "class", "value"),
                np.stack([np.linalg.svd(w[:, c])[1] ** 2 for c in CLASSES], axis=1),
            ),
            f"{name}_norm": ("save", norms),
            f"{name}_clock": ("save", np.asarray(traj.ts)),
        }
    return xr.Dataset(data)


@eqx.filter_jit
def _measured(problem: gf.Problem, nets: gf.nets.AbstractNet) -> tuple[Array, Array, Array]:
    """M of the ReLU layer, the classes of its neurons, and ‖θ‖, at each save."""
    m = jax.vmap(lambda n: n.conserved()[0].matrix)(nets)
    kinds = jax.vmap(lambda n: gf.diagnostics.signatures(problem, n)["layer 1"])(nets)
    return m, kinds, jax.vmap(gf.nets.norm)(nets)


def class_claims(flow: xr.Dataset, rtol: float) -> list[Claim]:
    """What the corrected version has within classes, and the first one for all."""
    claims = []
    # Across: 0.03 to 0.4, and 32
    for name, low, high in (("three", 0.03, 0.4), ("two", 31.5, 32.5)):
        size = float(flow[f"{name}_norm"].max()) ** 2
        drift = float(flow[f"{name}_across"].max())
        label = f"E4, {name} layers: "
        claims += [
            Claim(
                statement=f"{label}changes of the classes of neurons",
                source="corrected Def. 6",
                measured=float(flow[f"{name}_changes"].max()),
                high=0,
            ),
            Claim(
                statement=f"{label}drift of M within classes over ‖θ‖²",
                source="corrected Theorem 1",
                measured=float(flow[f"{name}_within"].max()) / size,
                high=100 * rtol,
            ),
            Claim(
                statement=f"{label}drift of M across classes",
                source="ours",
                measured=drift,
                low=low,
                high=high,
            ),
            Claim(
                statement=f"{label}{FIRST}drift of M",
                source="first version, Theorem 1",
                measured=drift,
                high=1e-6,
                known_false=True,
            ),
        ]
    squares = flow["two_squares"].values[-1]
    of_class = flow["two_class_squares"].values
    for i, (tail, ratio) in enumerate(((0.028, 0.9998), (0.046, 0.9996))):
        tails = of_class[:, i, 1:].sum(axis=1)
        claims += [
            Claim(
                statement=f"E4, two layers: tail of class {i + 1}, largest",
                source="ours, bounded as its M stands still",
                measured=float(tails.max()),
                high=2 * tail,
            ),
            near(
                f"E4, two layers: ratio of class {i + 1} at the end",
                "ours",
                float(of_class[-1, i, 0] / of_class[-1, i].sum()),
                ratio,
                2e-4,
            ),
        ]
    second = float(squares[1] / squares.sum())
    claims += [
        near("E4, two layers: share of σ₂² in W1 at the end", "ours", second, 0.304, 0.02),
        Claim(
            statement="E4, two layers: share of σ₃² in W1, rank = 2 classes",
            source="ours",
            measured=float(squares[2] / squares.sum()),
            high=1e-3,
        ),
    ]
    return claims
