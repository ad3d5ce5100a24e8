"""Fig. 5 of Bantzis et al., Prop. 3.2 and Thm 3.1: speeds of escape, in closed form.

On Example 1, eight points on a circle: the speed of rank-one directions against their angle
(eq. 6), the optimal speed against depth with its certificates at depths 2 and 3, and how
much of Thm 3.1's bound on deep layers is left at depths that exist. And two points where
the optimal speed falls from depth 1 to 2, which Prop. 3.2 leaves out without saying so.

    python -m experiments.bantzis.fig5 [--smoke] [--out DIR]

writes the curves (angles.nc, depths.nc, bounds.nc), the figure and claims.json.
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
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim, near
from experiments._common.output import write
from experiments._common.settings import read_settings
from gfdyn._progress import progress_bar


RANK_ONE = math.sqrt(2) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Fig. 5 and the speeds behind it."""

    angles: int = 1441
    """Number of angles from 0 to π; multiples of π/8 are among them for 8 n + 1."""
    depths: int = 8
    """The largest depth."""
    smoke: bool = False
    """Few angles and depths, whatever the other settings."""
    out: Path = Path("results/bantzis/fig5")
    """Folder to write to."""


SMOKE = {"angles": 33, "depths": 4}


def main(arguments: list[str] | None = None) -> int:
    """Compute, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    circle = gf.Problem(gf.data.circle(8), gf.losses.squared, reduction="sum")
    angles, depths = (
        speeds_by_angle(circle, settings.angles),
        speeds_by_depth(circle, settings),
    )
    bounds = rank_one_bounds(circle)
    claims = [
        *angle_claims(angles),
        *depth_claims(circle, depths),
        *two_point_claims(),
        *bound_claims(circle, settings.depths),
    ]
    data = {"angles": angles, "depths": depths, "bounds": bounds}
    figures = {"fig5": draw(angles, depths, bounds)}
    write(settings.out, settings, claims, data, figures, started)
    return 0


def speeds_by_angle(circle: gf.Problem, number: int) -> xr.Dataset:
    """Over `angle`: the speed of the net with this neuron, and eq. (6)."""
    angles = jnp.linspace(0, math.pi, number)

    def speed(angle: jax.Array) -> jax.Array:
        return gf.diagnostics.escape_speed(circle, gf.escape.circle_rank_one(angle))

    return xr.Dataset(
        {
            "speed": ("angle", np.asarray(jax.jit(jax.vmap(speed))(angles))),
            "formula": ("angle", np.asarray(gf.escape.rank_one_speed_at(angles))),
        },
        coords={"angle": np.asarray(angles)},
    )


def speeds_by_depth(circle: gf.Problem, settings: Settings) -> xr.Dataset:
    """Over `depth`: the largest `speed` known, an upper `bound` (certified to depth 3, and
    ‖X‖_op ‖G‖_F beyond), and `rank_one`, the best of rank one."""
    shallow = gf.escape.planar_optimum(circle)
    three = gf.escape.depth_three_optimum(circle)
    upper = float(gf.escape.speed_bounds(circle).upper)
    linear = _linear_speed(circle)
    rows = [(linear, linear, linear), (float(shallow.speed),) * 3]
    for depth in progress_bar(iterable=range(3, settings.depths + 1), unit=" depths"):
        net = gf.escape.deepen(circle, three.net, depth - 3)
        speed = float(gf.diagnostics.escape_speed(circle, net))
        bound = float(three.bound) if depth == 3 else upper
        rows.append((speed, bound, float(shallow.speed)))
    columns = zip(("speed", "bound", "rank_one"), np.transpose(rows), strict=True)
    return xr.Dataset(
        {name: ("depth", values) for name, values in columns},
        coords={"depth": np.arange(1, len(rows) + 1)},
    )


def _linear_speed(problem: gf.Problem) -> float:
    """s*(1) = ‖GᵀX‖_F."""
    return float(jnp.linalg.norm(problem.cost_gradient_at_zero.T @ problem.data.x))


def rank_one_bounds(circle: gf.Problem) -> xr.Dataset:
    """B_l of Thm 3.1 over `layer`, far beyond the depth where it says something."""
    layers = np.unique(np.round(np.geomspace(1, 1e8, 400)))
    values = gf.theory.bantzis.rank_one_bound(circle, 0.5, layers)
    return xr.Dataset({"bound": ("layer", np.asarray(values))}, coords={"layer": layers})


def angle_claims(angles: xr.Dataset) -> list[Claim]:
    """Eq. (6), and its largest and smallest values."""
    angle, speed = angles["angle"].values, angles["speed"].values
    eighths = np.round(angle / (math.pi / 8)).astype(int)
    exact = np.abs(angle - eighths * math.pi / 8) < 1e-12
    best = speed[exact & (eighths % 2 == 0)]
    none = speed[exact & (eighths % 2 == 1)]
    return [
        Claim(
            statement="largest difference of the speed of a rank-one net to the formula",
            source="eq. (6)",
            measured=float(np.abs(speed - angles["formula"].values).max()),
            high=1e-12,
        ),
        near("largest speed of rank one", "Fig. 5", float(speed.max()), RANK_ONE, 1e-12),
        near(
            "smallest speed at multiples of π/4",
            "Fig. 5",
            float(best.min()) if best.size else None,
            RANK_ONE,
            1e-12,
        ),
        Claim(
            statement="largest speed midway",
            source="Fig. 5",
            measured=float(none.max()) if none.size else None,
            high=1e-12,
        ),
    ]


def depth_claims(circle: gf.Problem, depths: xr.Dataset) -> list[Claim]:
    """The optimal speed at each depth, and Prop. 3.2."""
    speed, bound = depths["speed"].values, depths["bound"].values
    rank_two = gf.diagnostics.escape_speed(circle, gf.escape.circle_rank_two())
    rises = np.diff(speed[1:])
    return [
        near("circle: s*(1)", "Example 1", float(speed[0]), 0.0, 1e-12),
        near("circle: s*(2)", "Example 1", float(speed[1]), RANK_ONE, 1e-12),
        near("circle: s*(3)", "Example 1", float(speed[2]), 0.5, 1e-9),
        near(
            "circle: certified bound on s*(3)",
            "not in the paper",
            float(bound[2]),
            0.5,
            1e-9,
        ),
        near("circle: speed of eq. (2), W_3 = −1", "eq. (2)", float(rank_two), 0.5, 1e-12),
        Claim(
            statement="circle: smallest rise of the best speed known, from depth 2 on",
            source="Prop. 3.2",
            measured=float(rises.min()),
            low=-1e-12,
        ),
    ]


def two_point_claims() -> list[Claim]:
    """X = (1, −1), G = (1, −1): linear nets of one layer are the faster."""
    points = gf.Dataset(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), jnp.array([[-1.0], [1.0]]))
    problem = gf.Problem(points, gf.losses.squared, reduction="sum")
    one, two = _linear_speed(problem), float(gf.escape.planar_optimum(problem).speed)
    return [
        near("two points: s*(1)", "not in the paper", one, 2.0, 1e-12),
        near("two points: s*(2)", "not in the paper", two, 1.0, 1e-12),
        Claim(
            statement="two points: s*(2) − s*(1)",
            source="Prop. 3.2 as printed, for L = 1",
            measured=two - one,
            low=0.0,
            known_false=True,
        ),
    ]


def bound_claims(circle: gf.Problem, depth: int) -> list[Claim]:
    """Thm 3.1 and Prop. 3.4 at the fastest direction known of this depth."""
    theory = gf.theory.bantzis
    three = gf.escape.depth_three_optimum(circle)
    net = gf.escape.deepen(circle, three.net, depth - 3)
    layers = theory.rank_one_layers(circle, net, 0.5)
    product = theory.product_inequality(circle, net)
    tails = np.asarray(gf.diagnostics.tail(circle, net))
    c = float(theory.rank_one_constant(circle, 0.5))
    return [
        near("circle: κ", "Thm 3.1", float(theory.speed_ratio(circle, 0.5)), 16.0, 1e-9),
        near("circle: c", "Thm 3.1", c, 37.6771, 1e-3),
        near(
            "circle: the bound says something of layers beyond",
            "Thm 3.1",
            float(theory.non_vacuous_depth(circle, 0.5)),
            114984.8,
            1.0,
        ),
        Claim(
            statement=f"circle, depth {depth}: layers of which the bound says something",
            source="Thm 3.1",
            measured=float(np.sum(~np.asarray(layers.vacuous))),
            high=0,
        ),
        Claim(
            statement=f"circle, depth {depth}: largest excess over the bound",
            source="Thm 3.1",
            # An infinite bound is exceeded by nothing.
            measured=float(np.max(np.asarray(layers.lhs) - np.minimum(layers.rhs, 1.0))),
            high=1e-12,
        ),
        near(f"circle, depth {depth}: tail(W_1)", "eq. (2)", float(tails[0]), 0.5, 1e-6),
        Claim(
            statement=f"circle, depth {depth}: largest tail(W_l) beyond it",
            source="eq. (2), Prop. 3.2",
            measured=float(tails[1:].max()),
            high=1e-9,
        ),
        Claim(
            statement=f"circle, depth {depth}: log of the product of stable ranks, less "
            "its bound",
            source="Prop. 3.4",
            measured=float(product.lhs - product.rhs),
            high=0.0,
        ),
    ]


def draw(angles: xr.Dataset, depths: xr.Dataset, bounds: xr.Dataset) -> Figure:
    """The speed against angle (Fig. 5) and depth, and the bound against the layer."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    angle, depth, layer = figure.subplots(1, 3)
    angle.plot(angles["angle"], angles["speed"], color="C2")
    angle.axhline(RANK_ONE, color="k", lw=0.8, ls=":")
    ticks = np.arange(5) * math.pi / 4
    angle.set_xticks(ticks, ["0", "π/4", "π/2", "3π/4", "π"])
    angle.set(xlabel="angle of $W_1$", ylabel="$s$", title="Rank-one directions")
    depth.plot(depths["depth"], depths["speed"], "o-", label="largest known")
    depth.plot(depths["depth"], depths["rank_one"], "s--", color="0.6", label="rank one")
    certified = depths.isel(depth=slice(0, 3))
    depth.plot(certified["depth"], certified["bound"], "k_", ms=14, label="certified bound")
    depth.set(
        xlabel="depth $L$", ylabel="$s^*(L)$", title="Optimal speed", ylim=(-0.03, 0.6)
    )
    depth.legend(fontsize="small", frameon=False)
    finite = np.isfinite(bounds["bound"])
    layer.loglog(bounds["layer"][finite], bounds["bound"][finite], label="$B_l$")
    layer.axhline(1, color="k", lw=0.8, ls=":", label="true of any matrix")
    layer.set(xlabel="layer $l$", xlim=(1, 1e8), title="Bound on tails (Thm 3.1)")
    layer.legend(fontsize="small", frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(main())
