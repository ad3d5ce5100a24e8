"""Figs. 2 and 6 of Bantzis et al.: wide nets find the optimal escape direction, at depth 3.

Example 1, eight points on a circle: rank-one directions reach the speed √2 − 1, the optimal
one 1/2. From random starts, how many get beyond √2 − 1, against the width: by projected
gradient descent at a constant step, as in the paper (which prints neither step nor widths),
and by the gradient flow with exact kinks from the first of the same starts. And at depth 4,
where most wide nets end in a slower direction, at √2/3.

    python experiments/bantzis_fig2.py [--smoke] [--out DIR]

writes the speeds (descent.nc, flow.nc, depth_four.nc), the figures and claims.json.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import tyro
import xarray as xr
from _circle_figures import SUCCESS, draw, draw_all, success
from _claims import Claim
from _output import write
from tqdm import tqdm

import gfdyn as gf


OPTIMUM = 0.5
# The success fractions of other code (plain JAX), of TABLE_STARTS starts each.
TABLE_STARTS = 100
TABLE = {1: 0.0, 2: 0.0, 4: 0.03, 8: 0.27, 16: 0.70, 32: 0.85, 64: 0.92}


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
    flow_widths: tuple[int, ...] = (4, 8, 16)
    """Widths of the gradient flow."""
    flow_starts: int = 30
    """How many of the starts are followed by the gradient flow."""
    rtol: float = 1e-6
    """Relative tolerance of the flow per step."""
    tau_max: float = 200.0
    """The flow ends at this τ at the latest."""
    deep_width: int = 48
    """Neurons of each hidden layer at depth 4."""
    deep_starts: int = 60
    """Random starts at depth 4, where the step falls to 0; none if 0."""
    deep_steps: int = 2500
    """Steps at depth 4."""
    seed: int = 0
    """Seed of the starts."""
    smoke: bool = False
    """Few widths and starts, whatever the other settings."""
    out: Path = Path("results/bantzis_fig2")
    """Folder to write to."""


SMOKE = {
    "widths": (1, 4, 32),
    "starts": 16,
    "rate": 0.05,
    "steps": 1000,
    "flow_widths": (4,),
    "flow_starts": 3,
    "deep_width": 24,
    "deep_starts": 8,
    "deep_steps": 500,
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figures and claims."""
    settings = tyro.cli(Settings, description=__doc__, args=arguments)
    if settings.smoke:
        settings = dataclasses.replace(settings, **SMOKE)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    problem = gf.Problem(gf.data.circle(8), gf.losses.squared, reduction="sum")
    descent = descend(settings, problem)
    data, claims = {"descent": descent}, descent_claims(settings, descent)
    flow = None
    if settings.flow_widths and settings.flow_starts:
        data["flow"] = flow = follow(settings, problem)
        claims += flow_claims(flow, descent)
    if settings.deep_starts:
        data["depth_four"] = descend_at_depth_four(settings, problem)
        claims += depth_four_claims(settings, data["depth_four"])
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
    for width in (bar := tqdm(settings.widths, unit=" widths")):
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


def follow(settings: Settings, problem: gf.Problem) -> xr.Dataset:
    """`speed` (width, start) where the gradient flow from the same starts ends."""
    number = min(settings.starts, settings.flow_starts)
    flow = gf.EscapeFlow(problem, localized=True)
    speeds = np.zeros((len(settings.flow_widths), number))
    with tqdm(total=speeds.size, unit=" flows") as bar:
        for row, width in enumerate(settings.flow_widths):
            bar.set_postfix_str(f"width {width}")
            nets = starts(settings, width, 3, number)
            for i in range(number):
                traj = gf.solve(
                    flow,
                    jax.tree.map(lambda w, i=i: w[i], nets),
                    settings.tau_max,
                    ts=[settings.tau_max],
                    solver=gf.solvers.ExactKinks(rtol=settings.rtol),
                    stop=gf.stopping.GradientBelow(1e-3),
                    throw=False,
                )
                # What failed has the speed it had come to, and counts with that.
                speeds[row, i] = -float(traj.final_risk)
                bar.update()
    return xr.Dataset(
        {"speed": (("width", "start"), speeds)},
        coords={"width": list(settings.flow_widths)},
    )


def descend_at_depth_four(settings: Settings, problem: gf.Problem) -> xr.Dataset:
    """`speed` (start) at depth 4, where normalised steps fall to 0."""
    nets = starts(settings, settings.deep_width, 4, settings.deep_starts)
    steps = settings.deep_steps
    rate = gf.escape.FallingRate(0.15, steps)
    run = gf.escape.projected_descent(problem, nets, rate, steps, normalised=True)
    return xr.Dataset({"speed": (("start",), np.asarray(run.speed))})


def descent_claims(settings: Settings, runs: xr.Dataset) -> list[Claim]:
    """Success fractions, that they rise, and that nothing is faster than the optimum."""
    final = runs["speed"][..., -1]
    fractions = success(final)
    claims = []
    for width, fraction in zip(settings.widths, fractions, strict=True):
        expected = TABLE.get(width)
        if expected is None:
            continue
        # What chance allows: three standard deviations of the difference of two fractions
        variance = max(expected * (1 - expected), 0.01)
        spread = 3 * math.sqrt(variance * (1 / settings.starts + 1 / TABLE_STARTS))
        claims.append(
            Claim(
                statement=f"descent: fraction beyond rank one at width {width}",
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
            statement="descent: smallest rise of that fraction from width to width",
            source="Fig. 2",
            measured=float(rises.min()) if len(rises) else None,
            # What chance does to two equal fractions, at most
            low=-1 / math.sqrt(settings.starts),
        ),
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


def flow_claims(flow: xr.Dataset, descent: xr.Dataset) -> list[Claim]:
    """The flow gets beyond rank one from the starts from which the descent does."""
    claims = []
    for width in flow["width"].values:
        if width not in descent["width"].values:
            continue
        end = flow["speed"].sel(width=width).values
        other = descent["speed"].sel(width=width).values[: len(end), -1]
        agree = (end > SUCCESS) == (other > SUCCESS)
        fraction = f"{np.mean(end > SUCCESS):.2f} of {len(end)} beyond rank one"
        claims.append(
            Claim(
                statement=f"flow, width {width} ({fraction}): starts with the same fate in "
                "the descent",
                source="Fig. 2",
                measured=float(agree.mean()),
                low=0.8,
            )
        )
    claims.append(
        Claim(
            statement="flow: the largest speed where it ends",
            source="Fig. 2; optimal by our certificate",
            measured=float(flow["speed"].max()),
            high=OPTIMUM + 1e-6,
        )
    )
    return claims


def depth_four_claims(settings: Settings, runs: xr.Dataset) -> list[Claim]:
    """Wide nets need not find the optimum at depth 4: more end at √2/3 than at 1/2."""
    slow, fast = (
        int((abs(runs["speed"] - speed) < 2e-3).sum())
        for speed in (math.sqrt(2) / 3, OPTIMUM)
    )
    return [
        Claim(
            statement=f"depth 4, width {settings.deep_width}: starts that end at √2/3 "
            f"({slow}), less those at 1/2 ({fast})",
            source="not in the paper; against its section 5 (1)",
            measured=slow - fast,
            low=1,
        ),
        Claim(
            statement=f"depth 4, width {settings.deep_width}: the largest speed",
            source="not in the paper",
            measured=float(runs["speed"].max()),
            high=OPTIMUM + 1e-9,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
