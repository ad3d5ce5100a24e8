"""Figs. 2 and 6 of Bantzis et al.: wide nets find the optimal escape direction, at depth 3.

Example 1, eight points on a circle: rank-one directions reach the speed √2 − 1, the optimal
one 1/2. From random starts, how many get beyond √2 − 1, against the width: by projected
gradient descent at a constant step, as in the paper (which prints neither step nor widths),
and by `gf.escape.search`, which follows the gradient flow with exact kinks to its end. And
at depth 4, where wide nets more often end in a slower direction, at √2/3, than at 1/2.

    python -m experiments.bantzis.fig2 [--smoke] [--out DIR]

writes the speeds (descent.nc, flow.nc, depth_four.nc), the figures and claims.json.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

import gfdyn as gf
from experiments._common.claims import Claim, near
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.bantzis._circle_figures import SUCCESS, draw, draw_all, success
from gfdyn._progress import progress_bar


OPTIMUM = 0.5


class Table(NamedTuple):
    """The fraction of starts beyond rank one by width, in other code."""

    starts: int
    fractions: dict[int, float]


# Plain descent at η = 0.01; the flow of a smoothed ReLU
DESCENT = Table(100, {1: 0.0, 2: 0.0, 4: 0.03, 8: 0.27, 16: 0.70, 32: 0.85, 64: 0.92})
FLOW = Table(50, {4: 0.06, 8: 0.30, 16: 0.82, 32: 0.96})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Figs. 2 and 6."""

    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Neurons of each hidden layer."""
    starts: int = 100
    """Random starts of the descent for each width."""
    rate: float = 0.01
    """Step η of the descent."""
    steps: int = 5000
    """Steps of the descent."""
    flow_widths: tuple[int, ...] = (4, 8, 16, 32, 64)
    """Widths of the search with the gradient flow; none for ()."""
    flow_starts: int = 32
    """Random starts of the search for each width."""
    rtol: float = 1e-6
    """Relative tolerance of the flow per step."""
    max_steps: int = 500
    """Most steps of a flow."""
    deep_widths: tuple[int, ...] = (8, 16, 32, 64)
    """Neurons of each hidden layer at depth 4, where the step falls to 0; none for ()."""
    deep_starts: int = 60
    """Random starts at depth 4 for each width."""
    deep_steps: int = 2500
    """Steps at depth 4."""
    seed: int = 0
    """Seed of the starts."""
    smoke: bool = False
    """Few widths and starts, whatever the other settings."""
    out: Path = Path("results/bantzis/fig2")
    """Folder to write to."""


SMOKE = {
    "widths": (1, 4, 32),
    "starts": 16,
    "rate": 0.05,
    "steps": 1000,
    "flow_widths": (4,),
    "flow_starts": 3,
    "deep_widths": (24,),
    "deep_starts": 8,
    "deep_steps": 500,
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figures and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    problem = gf.Problem(gf.data.circle(8), gf.losses.squared, reduction="sum")
    descent = descend(settings, problem)
    data, claims = {"descent": descent}, descent_claims(settings, descent)
    flow = None
    if settings.flow_widths:
        data["flow"] = flow = search(settings, problem)
        claims += flow_claims(flow)
    if settings.deep_widths:
        data["depth_four"] = descend_at_depth_four(settings, problem)
        claims += depth_four_claims(data["depth_four"])
    figures = {"fig2": draw(problem, descent, flow), "fig6": draw_all(descent)}
    write(settings.out, settings, claims, data, figures, started)
    return 0


def starts(settings: Settings, width: int, depth: int, number: int) -> gf.nets.MLP:
    """A stack of Gaussian nets, start i the same however many there are."""
    widths = [2, *[width] * (depth - 1), 1]
    key = jr.fold_in(jr.key(settings.seed), depth * 10_000 + width)

    @eqx.filter_vmap
    def draw_net(i: Any) -> gf.nets.MLP:
        return gf.nets.MLP(widths, key=jr.fold_in(key, i))

    return draw_net(jnp.arange(number))


def descend(settings: Settings, problem: gf.Problem) -> xr.Dataset:
    """`speed` (width, start, save) of the projected descent, over `step` (save)."""
    runs = []
    for width in (bar := progress_bar(iterable=settings.widths, unit=" widths")):
        bar.set_postfix_str(f"width {width}")
        nets = starts(settings, width, 3, settings.starts)
        run = gf.escape.projected_descent(problem, nets, settings.rate, settings.steps)
        runs.append(run)
    return xr.Dataset(
        {"speed": (("width", "start", "save"), np.stack([run.speeds for run in runs]))},
        coords={
            "width": list(settings.widths),
            "step": ("save", np.asarray(runs[0].steps)),
        },
    )


def search(settings: Settings, problem: gf.Problem) -> xr.Dataset:
    """`speed` (width, start) of the directions that the flow with exact kinks ends in, and
    whether it came to rest there (`resting`)."""
    speeds, resting = [], []
    for width in (bar := progress_bar(iterable=settings.flow_widths, unit=" searches")):
        bar.set_postfix_str(f"width {width}")
        found = gf.escape.search(
            problem,
            [2, width, width, 1],
            settings.flow_starts,
            key=jr.fold_in(jr.key(settings.seed), width),
            rtol=settings.rtol,
            max_steps=settings.max_steps,
        )
        speeds.append(np.asarray(found.all_speeds))
        # Those that died rest at the origin.
        resting.append(np.append(found.converged, True)[np.asarray(found.index)])
    return xr.Dataset(
        {
            "speed": (("width", "start"), np.stack(speeds)),
            "resting": (("width", "start"), np.stack(resting)),
        },
        coords={"width": list(settings.flow_widths)},
    )


def descend_at_depth_four(settings: Settings, problem: gf.Problem) -> xr.Dataset:
    """`speed` (width, start) at depth 4, where normalised steps fall to 0."""
    steps, speeds = settings.deep_steps, []
    for width in (bar := progress_bar(iterable=settings.deep_widths, unit=" widths")):
        bar.set_postfix_str(f"depth 4, width {width}")
        nets = starts(settings, width, 4, settings.deep_starts)
        rate = gf.escape.FallingRate(0.15, steps)
        run = gf.escape.projected_descent(problem, nets, rate, steps, normalised=True)
        speeds.append(np.asarray(run.speed))
    return xr.Dataset(
        {"speed": (("width", "start"), np.stack(speeds))},
        coords={"width": list(settings.deep_widths)},
    )


def descent_claims(settings: Settings, runs: xr.Dataset) -> list[Claim]:
    """Success fractions, that they rise, and that nothing is faster than the optimum."""
    final = runs["speed"][..., -1]
    return [
        *fraction_claims("descent", final, DESCENT),
        Claim(
            statement="descent: the largest speed of all starts, steps and widths",
            source="Fig. 2; optimal by our certificate",
            measured=float(runs["speed"].max()),
            high=OPTIMUM + 1e-9,
        ),
        Claim(
            statement="descent: the largest speed at the largest width, at the end",
            source="Fig. 2",
            measured=float(final[-1].max()),
            low=SUCCESS,
        ),
    ]


def flow_claims(runs: xr.Dataset) -> list[Claim]:
    """As of the descent; and here the optimum is met."""
    resting = float(runs["resting"].mean())
    return [
        *fraction_claims("flow", runs["speed"], FLOW),
        near(
            f"flow: the largest speed where it ends ({resting:.2f} of all starts at rest)",
            "Fig. 2; optimal by our certificate",
            float(runs["speed"].max()),
            OPTIMUM,
            1e-9,
        ),
    ]


def fraction_claims(method: str, speeds: xr.DataArray, table: Table) -> list[Claim]:
    """The fraction of starts beyond rank one: as in the table, and rising with width."""
    claims, fractions, number = [], success(speeds), speeds.sizes["start"]
    for width, fraction in zip(speeds["width"].values, fractions, strict=True):
        expected = table.fractions.get(int(width))
        if expected is None:
            continue
        # What chance allows: three standard deviations of the difference of two fractions
        variance = max(expected * (1 - expected), 0.01)
        spread = 3 * math.sqrt(variance * (1 / number + 1 / table.starts))
        claims.append(
            Claim(
                statement=f"{method}: fraction beyond rank one at width {width}",
                source="Fig. 2, our numbers",
                measured=float(fraction),
                low=max(0.0, expected - spread),
                high=min(1.0, expected + spread),
            )
        )
    rises = np.diff(fractions)
    return [
        *claims,
        Claim(
            statement=f"{method}: smallest rise of that fraction from width to width",
            source="Fig. 2",
            measured=float(rises.min()) if len(rises) else None,
            # What chance does to two equal fractions, at most
            low=-1 / math.sqrt(number),
        ),
    ]


def depth_four_claims(runs: xr.Dataset) -> list[Claim]:
    """Wide nets need not find the optimum at depth 4: more of them end at √2/3."""
    slow, fast = (
        (abs(runs["speed"] - speed) < 2e-3).mean("start").values
        for speed in (math.sqrt(2) / 3, OPTIMUM)
    )
    width = int(runs["width"][-1])
    return [
        Claim(
            statement=f"depth 4, width {width}: fraction that ends at √2/3, "
            f"{slow[-1]:.2f}, less that at 1/2, {fast[-1]:.2f}",
            source="not in the paper; against its section 5 (1)",
            measured=float(slow[-1] - fast[-1]),
            low=1e-9,
        ),
        Claim(
            statement="depth 4: largest fraction that ends at 1/2, of all widths",
            source="not in the paper; against its section 5 (1)",
            measured=float(fast.max()),
            high=0.5,
        ),
        Claim(
            statement="depth 4: the largest speed",
            source="not in the paper",
            measured=float(runs["speed"].max()),
            high=OPTIMUM + 1e-9,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
