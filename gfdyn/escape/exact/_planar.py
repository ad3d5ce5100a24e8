r"""Two layers, two inputs: every local optimum of the escape speed, exactly.

A single neuron is as good as many, and its speed is $\psi(w) = \|\sum_i g_i\, \sigma(w
\cdot x_i)\|$, ‖w‖ = 1. Samples' kinks cut the circle of w into arcs, on each of which the
sum is a linear map M of w: ψ is largest at M's top singular vector or at an end of the arc.
In NumPy and float64 whatever the dtype of the data, on concrete values only.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._tracing import is_concrete
from ...nets import MLP
from ...problem import Problem
from ._direction import check_depth, check_width, single_path


# Angles that count as one.
_SAME_ANGLE = 1e-9


class PlanarOptima(eqx.Module):
    """All local optima of two-layer nets, the fastest first, and the net of that one.

    `angles` (m,) of w in [0, 2π), `speeds` (m,), and the unit `outputs` u (m, k) of neurons
    u σ(w·x): the last weight matrix. `speed` is s*(2).
    """

    net: MLP
    speed: Float[Array, ""]
    angles: Float[Array, " optima"]
    speeds: Float[Array, " optima"]
    outputs: Float[Array, "optima out"]


def planar_optimum(problem: Problem, depth: int = 2, width: int = 1) -> PlanarOptima:
    r"""The largest escape speed of two-layer ReLU nets with two inputs, and all local ones:

    $$s^*(2) = \max_{\|w\|=\|u\|=1} -\sum_i \langle u, g_i\rangle\, \sigma(w \cdot x_i).$$

    Exact, not on a grid: in each of the at most 2N arcs of w between kinks of samples the
    best w is known in closed form. Where ψ is constant on an arc, its ends are listed.

    Args:
        depth: of the net returned, whose further layers pass the neuron on. It has this
            speed at any depth; s*(depth) may be larger (Bantzis et al., Prop. 3.2).
        width: of its hidden layers; further neurons are zero.

    Raises:
        ValueError: on other than two inputs, an impossible `depth` or `width`, data that
            are traced, or if no neuron has a positive speed.
    """
    check_depth(depth)
    check_width(width)
    x, g = concrete_arrays(problem)
    cones = Cones(x)
    peaks, inside = cones.peaks(g)
    w = np.concatenate([peaks[inside], _kink_optima(cones, g)])
    slopes = cones.features(w) @ g
    speeds = np.linalg.norm(slopes, axis=1)
    moving = speeds > 1e-14 * np.linalg.norm(x) * np.linalg.norm(g)
    if not moving.any():
        raise ValueError(
            "no neuron u σ(w·x) lowers the risk to first order: all planar speeds are 0, "
            "as for cost_gradient_at_zero = 0; deeper nets may still escape."
        )
    w, slopes, speeds = w[moving], slopes[moving], speeds[moving]
    order = np.argsort(-speeds, kind="stable")
    dtype = problem.data.x.dtype
    w, speeds = w[order], speeds[order]
    u = -slopes[order] / speeds[:, None]
    angles = np.mod(np.arctan2(w[:, 1], w[:, 0]), 2 * np.pi)
    net = single_path(jnp.asarray(w[0], dtype), jnp.asarray(u[0], dtype), depth, width)
    found = (jnp.asarray(part, dtype) for part in (speeds[0], angles, speeds, u))
    return PlanarOptima(net, *found)


class Cones(eqx.Module):
    """The arcs of unit w in the plane on which no w·x_i changes sign.

    Arc j runs counter-clockwise from edge j to edge j + 1, by π at most, and `open` tells
    which samples have w·x_i > 0 on it.
    """

    x: Float[np.ndarray, "samples 2"]
    edges: Float[np.ndarray, "arcs 2"]
    open: Bool[np.ndarray, "arcs samples"]

    def __init__(self, x: Float[np.ndarray, "samples 2"]):
        lines = x[np.any(x != 0, axis=1)]
        if not len(lines):
            lines = np.array([[1.0, 0.0]])
        # Both unit vectors orthogonal to a sample are its kinks.
        kinks = np.concatenate([lines, -lines])[:, ::-1] * np.array([-1.0, 1.0])
        kinks /= np.linalg.norm(kinks, axis=1, keepdims=True)
        angles = np.arctan2(kinks[:, 1], kinks[:, 0])
        order = np.argsort(angles)
        widths = np.diff(angles[order], append=angles[order[0]] + 2 * np.pi)
        kept = widths > _SAME_ANGLE
        middle = (angles[order] + widths / 2)[kept]
        self.x = x
        self.edges = kinks[order][kept]
        self.open = np.stack([np.cos(middle), np.sin(middle)], axis=1) @ x.T > 0

    def features(self, w: Float[np.ndarray, "*stack 2"]) -> Float[np.ndarray, "*stack N"]:
        """σ(w·x_i), (…, N)."""
        return np.maximum(w @ self.x.T, 0)

    @property
    def turns(self) -> Float[np.ndarray, "arcs 2"]:
        """The edges turned by 90°: how they move counter-clockwise."""
        return self.edges[:, ::-1] * np.array([-1.0, 1.0])

    def maps(
        self, g: Float[np.ndarray, "*stack samples out"]
    ) -> Float[np.ndarray, "*stack arcs out 2"]:
        """M of each arc: Σ g_i σ(w·x_i) = M w there."""
        return np.einsum("an,...nk,nd->...akd", self.open, g, self.x)

    def peaks(
        self, g: Float[np.ndarray, "*stack samples out"]
    ) -> tuple[Float[np.ndarray, "*stack arcs 2"], Bool[np.ndarray, "*stack arcs"]]:
        """For each arc the w inside it at which ψ is largest, and whether there is one:
        M's top singular vector or its negative."""
        maps = self.maps(g)
        q = np.swapaxes(maps, -1, -2) @ maps
        angle = np.arctan2(2 * q[..., 0, 1], q[..., 0, 0] - q[..., 1, 1]) / 2
        w = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        from_start = _cross(self.edges, w)
        to_end = _cross(w, np.roll(self.edges, -1, axis=0))
        inside = (from_start > _SAME_ANGLE) & (to_end > _SAME_ANGLE)
        opposite = (from_start < -_SAME_ANGLE) & (to_end < -_SAME_ANGLE)
        return np.where(opposite[..., None], -w, w), inside | opposite

    def largest(
        self, g: Float[np.ndarray, "*stack samples out"]
    ) -> Float[np.ndarray, "*stack"]:
        """max ψ over unit w."""
        w, inside = self.peaks(g)
        at_peaks = np.linalg.norm(self.maps(g) @ w[..., None], axis=(-1, -2))
        at_edges = np.linalg.norm(self.features(self.edges) @ g, axis=-1)
        return np.asarray(np.maximum(np.where(inside, at_peaks, 0), at_edges).max(axis=-1))


def concrete_arrays(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The inputs (N, 2) and G (N, k) in NumPy and float64.

    Raises:
        ValueError: on other than two inputs, or traced data.
    """
    x, g = problem.data.x, problem.cost_gradient_at_zero
    if x.shape[1] != 2:
        raise ValueError(
            f"data.x has {x.shape[1]} features: kinks are enumerated in the plane, for 2. "
            "gf.escape.search takes any number."
        )
    if not is_concrete(x, g):
        raise ValueError(
            "problem is traced: kinks are enumerated in NumPy, call this outside of jit, "
            "vmap and grad."
        )
    return np.asarray(x, np.float64), np.asarray(g, np.float64)


def _kink_optima(cones: Cones, g: np.ndarray) -> np.ndarray:
    """The edges at which ψ has a local maximum, (m, 2): it rises to neither side."""
    maps = cones.maps(g)
    scale = np.max(np.sum(maps**2, axis=(1, 2)))
    rises = np.zeros(len(cones.edges), bool)
    for beside, side in ((maps, 1), (np.roll(maps, 1, axis=0), -1)):
        along = np.einsum("akd,ad->ak", beside, cones.edges)
        across = np.einsum("akd,ad->ak", beside, cones.turns)
        # ψ² has the derivative 2 along·across, and ψ²″ = 2(|across|² − |along|²).
        slope = side * np.sum(along * across, axis=1)
        bend = np.sum(across**2, axis=1) - np.sum(along**2, axis=1)
        flat = np.abs(slope) <= 4 * _SAME_ANGLE * scale
        rises |= np.where(flat, bend > 4 * _SAME_ANGLE * scale, slope > 0)
    return cones.edges[~rises]


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sine of the angle from a to b, (…,)."""
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
