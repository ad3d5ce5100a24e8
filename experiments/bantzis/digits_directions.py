"""The escape directions of digits: two local optima, exactly rank one at every depth.

On all 1797 digits, pixels standardised, under the mean cross-entropy, `gf.escape.search`
finds two, of the speeds 0.5528 and 0.5341, the same for L = 2 … 6: a deeper net leaves the
origin no faster, where Prop. 3.2 of Bantzis et al. says that it leaves no slower. At depth
2 neurons do not feel each other and the fastest outgrows all others: there only nets with a
single hidden neuron end in the second optimum.

    python -m experiments.bantzis.digits_directions [--smoke] [--out DIR]

writes the speeds and what the two optima are like (directions.nc), the figure and
claims.json. All numbers of the claims are ours; the paper has none.
"""

import dataclasses
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


# The speeds that other code (normalised descent in float32, width 32) ended at, to as many
# digits as it gave, and the nonlinearity of the first layer at the optimum.
SPEEDS = (0.5528, 0.5341)
NONLINEARITY = 0.0085
OURS = "ours, other code"
# Speeds closer than this, relative, are one.
SAME = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The search on digits."""

    depths: tuple[int, ...] = (2, 3, 4, 5, 6)
    """Numbers of weight matrices."""
    width: int = 4
    """Neurons of each hidden layer."""
    starts: int = 16
    """Random starts at each depth."""
    steps: int = 1000
    """Steps of the descent that takes the starts near the directions."""
    samples: int | None = None
    """Number of samples, the first of the file; all if None."""
    seed: int = 0
    """Seed of the starts."""
    smoke: bool = False
    """Few samples and starts, whatever the other settings."""
    out: Path = Path("results/bantzis/digits_directions")
    """Folder to write to."""


SMOKE = {"depths": (3,), "starts": 6, "steps": 300, "samples": 60}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    images = gf.data.digits(settings.samples, dtype="float64")
    problem = gf.Problem(images, gf.losses.cross_entropy)
    runs = search(settings, problem)
    claims = make_claims(settings, problem, runs)
    write(
        settings.out,
        settings,
        claims,
        {"directions": runs},
        {"directions": draw(runs)},
        started,
    )
    return 0


def search(settings: Settings, problem: gf.Problem) -> xr.Dataset:
    """A search at each depth: the speed where each start `ends` and whether it `died`,
    (search, start); what `describe` tells of the two fastest optima, (search, optimum), NaN
    where there are fewer."""
    sizes = [(depth, settings.width) for depth in settings.depths]
    if 2 in settings.depths:
        sizes = [(2, 1), *sizes]
    inputs, classes = problem.data.x.shape[1], problem.data.y.shape[1]
    searches = []
    for depth, width in (bar := progress_bar(iterable=sizes, unit=" searches")):
        bar.set_postfix_str(f"depth {depth}, width {width}")
        found = gf.escape.search(
            problem,
            [inputs, *[width] * (depth - 1), classes],
            settings.starts,
            key=jax.random.key(settings.seed),
            steps=settings.steps,
        )
        both = [describe(problem, found, row) for row in two_fastest(found)]
        optima = xr.concat(both, "optimum").assign_coords(optimum=np.arange(len(both)))
        starts = {"ends": found.all_speeds, "died": found.index < 0}
        starts = {name: ("start", np.asarray(of)) for name, of in starts.items()}
        searches.append(optima.reindex(optimum=[0, 1]).assign(starts))
    runs = xr.concat(searches, "search", join="outer")
    depths, widths = zip(*sizes, strict=True)
    return runs.assign_coords(depth=("search", [*depths]), width=("search", [*widths]))


def two_fastest(found: gf.escape.Directions) -> list[int]:
    """The rows of the fastest direction, and of the next that is clearly slower."""
    speed = np.asarray(found.speed)
    slower = np.flatnonzero(speed < (1 - SAME) * speed[0])
    return [0, *slower[:1].tolist()]


def describe(problem: gf.Problem, found: gf.escape.Directions, row: int) -> xr.Dataset:
    """What the direction of this row is like; of rank one, it maps x to σ(w·x) u."""
    net = jax.tree.map(lambda w: w[row], found.net)
    depth = len(net.weights)
    w, u = net.weights[0].sum(0), net.weights[-1].sum(1)
    layer, hidden = np.arange(1, depth + 1), np.arange(1, depth)
    bent = gf.diagnostics.nonlinearity(problem, net)
    return xr.Dataset(
        {
            "speed": ((), found.speed[row]),
            "residual": ((), found.residual[row]),
            "rank": ("layer", found.ranks[row].astype(float)),
            "layer_norm": ("layer", found.layer_norms[row]),
            "nonlinearity": ("hidden", bent),
            "w": ("pixel", w / jnp.linalg.norm(w)),
            "u": ("class", u / jnp.linalg.norm(u)),
        },
        coords={"layer": layer, "hidden": hidden},
    )


def make_claims(settings: Settings, problem: gf.Problem, runs: xr.Dataset) -> list[Claim]:
    """The speeds, that they do not depend on depth, and what the optima are like."""
    claims, optimum = [], runs["speed"].sel(optimum=0)
    if settings.samples is None:
        claims += speed_claims(runs)
        bent = float(runs["nonlinearity"].sel(optimum=0, hidden=1).max())
        statement = "the optimum: nonlinearity of the first layer"
        claims.append(near(statement, OURS, bent, NONLINEARITY, 1e-4))
    bounds = gf.escape.speed_bounds(problem)
    every = "all depths, both optima"
    deep = float(runs["nonlinearity"].sel(hidden=slice(2, None)).max())
    wide = runs.isel(search=runs["width"].values > 1)
    ends = wide["ends"].values[~wide["died"].values]
    known = np.isclose(ends[:, None], runs["speed"][-1].values, rtol=SAME).any(-1)
    return [
        *claims,
        Claim(
            statement="the optimum: how far the speeds of all depths are apart",
            source="Prop. 3.2",
            measured=float(optimum.max() - optimum.min()),
            high=1e-9,
        ),
        Claim(
            statement="the optimum: smallest speed of all depths, between the bounds",
            source="s*(L) >= σ_1(GXᵀ)/2; <= ‖X‖ ‖G‖_F",
            measured=float(optimum.min()),
            low=float(bounds.lower),
            high=float(bounds.upper),
        ),
        Claim(
            statement=f"{every}: largest rank of a layer",
            source=OURS,
            measured=float(runs["rank"].max()),
            low=1,
            high=1,
        ),
        Claim(
            statement=f"{every}: largest Clarke residual",
            source="Def. 2.1",
            measured=float(runs["residual"].max()),
            high=1e-8,
        ),
        Claim(
            statement=f"{every}: how far a ‖W_l‖_F is from 1",
            source="section 3.1",
            measured=float(abs(runs["layer_norm"] - 1).max()),
            high=1e-9,
        ),
        Claim(
            statement=f"{every}: largest nonlinearity beyond the first layer",
            source=OURS,
            measured=deep,
            high=1e-12,
        ),
        Claim(
            statement=f"width {settings.width}: fraction of starts that end in either, "
            f"of the {len(ends)} that live",
            source="not in the paper",
            measured=float(known.mean()),
            low=1.0,
        ),
    ]


def speed_claims(runs: xr.Dataset) -> list[Claim]:
    """The two speeds at each depth, with the fraction of starts that end there."""
    claims = []
    for _, run in runs.groupby("search"):
        depth, width = int(run["depth"].item()), int(run["width"].item())
        for optimum, expected in enumerate(SPEEDS):
            # Between more neurons at depth 2 the fastest one wins.
            if depth == 2 and width > 1 and optimum == 1:
                continue
            speed = float(run["speed"].squeeze()[optimum])
            found = np.isfinite(speed)
            fraction = float(np.isclose(run["ends"], speed, rtol=SAME).mean())
            name = ("the optimum", "the second one")[optimum]
            claims.append(
                near(
                    f"depth {depth}, width {width}: speed of {name}, where {fraction:.2f} "
                    "of the starts end",
                    OURS,
                    speed if found else None,
                    expected,
                    1e-4,
                )
            )
    return claims


def draw(runs: xr.Dataset) -> Figure:
    """Where the starts end at each depth, and the two optima x ↦ σ(w·x) u."""
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    ends, first, second, outputs = figure.subplots(1, 4, width_ratios=(1.3, 1, 1, 1.3))
    for width in np.unique(runs["width"]):
        some = runs.isel(search=runs["width"].values == width)
        speeds = np.sort(some["ends"].where(~some["died"]), axis=1)
        across = np.linspace(-0.3, 0.3, speeds.shape[1]) + some["depth"].values[:, None]
        ends.plot(across.ravel(), speeds.ravel(), "o", ms=3, label=f"width {width}")
    depths = np.unique(runs["depth"])
    ends.set(xlabel="depth $L$", ylabel="$s$", title="Where starts end", xticks=depths)
    ends.legend(fontsize="small", frameon=False)
    deepest = runs.isel(search=-1)
    classes = np.arange(deepest.sizes["class"])
    for optimum, ax in enumerate((first, second)[: int(deepest["speed"].count())]):
        speed, w = float(deepest["speed"][optimum]), deepest["w"][optimum].values
        largest = np.abs(w).max()
        ax.imshow(w.reshape(8, 8), cmap="coolwarm", vmin=-largest, vmax=largest)
        ax.set(xticks=[], yticks=[], title=f"$w$ of $s = {speed:.4f}$")
        outputs.bar(classes + 0.4 * optimum - 0.2, deepest["u"][optimum], 0.4)
    outputs.set(xlabel="class", title="$u$ of both", xticks=classes)
    return figure


if __name__ == "__main__":
    sys.exit(main())
