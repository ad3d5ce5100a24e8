"""Trajectories of the oracle, as they were written down."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

import gfdyn as gf


GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.npz"))


def read_golden(path, rtol):
    """The flow, the net and the end of a golden file, and what to compare."""
    file = np.load(path)
    dims, depth = file["dims"], len(file["dims"]) - 1
    data = gf.Dataset(file["X"].T, file["Y"].T)
    problem = gf.Problem(data, gf.losses.squared)
    mode, start, end = str(file["mode"]), file["y0"], file["y1"]
    polar = mode == "polar"
    shapes = list(zip(dims[1:], dims[:-1], strict=True))
    splits = np.cumsum([a * b for a, b in shapes])[:-1]
    parts = np.split(start[1:] if polar else start, splits)
    weights = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    net = gf.nets.MLP.from_weights([jnp.asarray(w) for w in weights])
    if mode == "flow":
        return gf.GradientFlow(problem), net, float(file["t1"]), end
    if polar:
        net = gf.nets.scaled_to_norm(net, float(np.exp(start[0])))
    flow = gf.EscapeFlow(problem, localized=not polar)
    return (
        flow,
        net,
        float(file["t1"]) * depth ** (1 - depth / 2),
        end[1:] if polar else end,
    )
