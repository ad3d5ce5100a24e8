"""Figs. 2 and 3 of Timor et al., drawn from their definitions, and tried on the flow.

Fig. 2: the four cones of the plane by which points a hidden weight sees. Fig. 3: the set
A_1 that a weight can reach in S_1, and the part F_1 of it where it can end at zero loss;
here with the limits of matched starts, all on one circle, with V = 0.

    python -m experiments.timor.fig2_3 [--smoke] [--out DIR]

writes the limits (limits.nc), the figures and claims.json.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim, near
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.timor._two_neurons import frequent, on_each
from gfdyn.theory import timor


# How far the drawings reach, and into how many points a side they are cut.
REACH, GRID = 1.9, 761


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The angle, and the starts."""

    smoke: bool = False
    """Few starts, to see that all works."""
    phi: float = 120.0
    """Angle φ of the points in degrees."""
    radius: float = 0.4
    """|w_i(0)|."""
    runs: int = 4000
    """Starts, of which those that are matched go on."""
    seed: int = 0
    """Seeds the starts."""
    out: Path = Path("results/timor/fig2_3")
    """Folder to write to."""


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figures and claims."""
    settings = read_settings(Settings, __doc__, {"runs": 400}, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    phi = math.radians(settings.phi)
    # Symmetric about the vertical axis, as the figures.
    data = gf.data.two_points(phi, math.pi / 2, rotation=(math.pi - phi) / 2)
    problem = gf.Problem(data, gf.losses.squared, reduction="sum")
    key = jax.random.key(settings.seed)
    nets = timor.random_pairs(key, settings.runs, w_radius=settings.radius, v_radius=0.0)
    cones = np.asarray(on_each(timor.cones, problem, nets))
    limits = matched_limits(problem, nets)
    claims = [
        *claims_on_cones(problem, cones),
        *claims_on_limits(settings, problem, limits),
    ]
    figures = {"fig2": draw_cones(problem), "fig3": draw_sets(settings, problem, limits)}
    write(settings.out, settings, claims, {"limits": limits}, figures, started)
    return 0


def matched_limits(problem: gf.Problem, nets: gf.nets.MLP) -> xr.Dataset:
    """The limits of w_i in the coordinates of its point, p along it and r across."""
    chosen = np.asarray(on_each(timor.is_matched, problem, nets))
    matched = jax.tree.map(lambda leaf: leaf[chosen], nets)
    ends = timor.flow_ends(problem, matched, 100.0, chunk=int(chosen.sum()))
    w = ends.net.weights[0]
    point = np.asarray(on_each(timor.cones, problem, matched)) - 1
    of_first, of_second = (timor.point_coordinates(problem, w, i) for i in (0, 1))
    p, r = (np.where(point == 0, a, b) for a, b in zip(of_first, of_second, strict=True))
    dims = ("run", "neuron")
    return xr.Dataset(
        {
            "w": (("run", "neuron", "input"), np.asarray(w)),
            "p": (dims, p),
            "r": (dims, r),
            "point": (dims, point),
            "loss": ("run", np.asarray(ends.risk)),
        }
    )


def claims_on_cones(problem: gf.Problem, cones: np.ndarray) -> list[Claim]:
    """How often a direction is in which cone: its opening angle over 2π."""
    openings = np.asarray(timor.cone_openings(problem)) / (2 * math.pi)
    return [
        frequent(f"starts in the cone {name}", "Fig. 2", cones.ravel() == code, float(part))
        for code, (name, part) in enumerate(zip(timor.CONES, openings, strict=True))
    ]


def claims_on_limits(
    settings: Settings, problem: gf.Problem, limits: xr.Dataset
) -> list[Claim]:
    """All limits are in F_i, and F_1, F_2 within the angles of Lemma 6."""
    phi, radius = math.radians(settings.phi), settings.radius
    p, r = (jnp.asarray(limits[name].values) for name in ("p", "r"))
    sets = {"phi": phi, "radius": radius}
    inside = timor.in_limit_set(p, r, imbalance=radius**2, slack=1e-6, **sets)
    corners = np.concatenate([outline(settings, upper) for upper in (False, True)])
    steepest, shallowest = (f(np.arctan2(*corners.T[::-1])) for f in (np.max, np.min))
    low, high = (float(bound) for bound in timor.limit_angles(phi, radius))
    return [
        Claim(
            statement=f"limits of {p.size} outside of F_i, or not of zero loss",
            source="Fig. 3, Lemma 6",
            measured=int(jnp.sum(~inside) + np.sum(limits["loss"] > 1e-10)),
            high=0,
        ),
        near(
            "least angle of a weight in F_1 and one in F_2, less π − φ",
            "Lemma 6",
            phi - 2 * float(steepest) - low,
            0,
            1e-12,
        ),
        Claim(
            statement="their largest angle",
            source="Lemma 6",
            measured=phi - 2 * float(shallowest),
            high=high,
        ),
        Claim(
            statement="least |w_i| at a limit",
            source="Lemma 6",
            measured=float(np.min(np.hypot(p, r))),
            low=math.sqrt(1 - radius**2),
        ),
    ]


def outline(settings: Settings, upper: bool) -> np.ndarray:
    """The lower or the upper edge of F_i in its coordinates (p, r), (point, 2)."""
    floor = math.sqrt(1 - settings.radius**2)
    slope = -1 / math.tan(math.radians(settings.phi))
    if upper:
        first = floor / math.hypot(1, slope)
        p = np.linspace(first, REACH, 200)
        return np.stack([p, slope * p], axis=1)
    first = math.sqrt(floor**2 - settings.radius**2)
    p = np.linspace(first, REACH, 200)
    return np.stack([p, np.full_like(p, -settings.radius)], axis=1)


def draw_cones(problem: gf.Problem) -> Figure:
    """Fig. 2: every point of the plane by the cone that it is in."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    ax = figure.subplots()
    plane = grid()
    z = plane @ np.asarray(problem.data.x).T
    code = (z > 0) @ np.array([1, 2])
    colours = ["0.85", "#cfe3f5", "#f9dcc4", "#d5ecd0"]
    for which, colour in enumerate(colours):
        ax.contourf(*plane.T, (code == which).T, [0.5, 1.5], colors=[colour])
    names = {0: "$D$", 1: "$S_1$", 2: "$S_2$", 3: "$S$"}
    for which, name in names.items():
        inside = plane[code == which]
        middle = inside[np.hypot(*inside.T) < 1.4].mean(axis=0)
        ax.annotate(name, 1.15 * middle / max(np.hypot(*middle), 0.3), size=18, ha="center")
    draw_points(ax, problem)
    return figure


def draw_sets(settings: Settings, problem: gf.Problem, limits: xr.Dataset) -> Figure:
    """Fig. 3: A_1 orange and green, F_1 green, borders that are not in it dashed."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    ax = figure.subplots()
    plane = grid()
    shape = plane.shape[:2]
    sets = {"phi": math.radians(settings.phi), "radius": settings.radius}
    p, r = timor.point_coordinates(problem, jnp.asarray(plane.reshape(-1, 2)), 0)
    reachable = np.asarray(timor.in_reachable_set(p, r, **sets)).reshape(shape)
    ends = timor.in_limit_set(p, r, imbalance=settings.radius**2, **sets)
    for inside, colour in ((reachable, "#f7c08a"), (np.asarray(ends), "#9ccf8f")):
        ax.contourf(*plane.T, inside.reshape(shape).T, [0.5, 1.5], colors=[colour])
    x = np.asarray(problem.data.x)
    normal = (x[1] - (x[0] @ x[1]) * x[0]) / np.linalg.norm(x[1] - (x[0] @ x[1]) * x[0])
    below = np.outer([0, 3], x[0]) - settings.radius * normal
    ax.plot(*below.T, "k--", lw=1)
    ax.plot(*np.outer([-settings.radius, 0], normal).T, "k--", lw=1)
    edge = x[0] - (x[0] @ x[1]) * x[1]
    ax.plot(*np.outer([0, 3], edge / np.linalg.norm(edge)).T, "k", lw=1)
    first = limits["w"].values[limits["point"].values == 0]
    ax.plot(*first.T, ".k", ms=2, label="limits of the flow")
    for name, (along, across) in {"$A_1$": (0.4, -0.2), "$F_1$": (1.45, 0.5)}.items():
        ax.annotate(name, along * x[0] + across * normal, size=18, ha="center")
    draw_points(ax, problem)
    ax.legend(frameon=False, loc="lower left")
    return figure


def grid() -> np.ndarray:
    """The plane as points, (GRID, GRID, 2)."""
    line = np.linspace(-REACH, REACH, GRID)
    return np.stack(np.meshgrid(line, line, indexing="ij"), axis=2)


def draw_points(ax: Axes, problem: gf.Problem) -> None:
    """The inputs as arrows; axes of one scale."""
    for number, x in enumerate(np.asarray(problem.data.x), start=1):
        ax.annotate("", x, (0, 0), arrowprops={"arrowstyle": "->", "lw": 1.5})
        ax.annotate(f"$x_{number}$", 0.6 * x + np.array([0, 0.1]), size=13, ha="center")
    ax.set(aspect="equal", xlim=(-REACH, REACH), ylim=(-REACH, REACH))


if __name__ == "__main__":
    sys.exit(main())
