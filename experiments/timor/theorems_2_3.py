"""Theorems 2 and 3 of Timor et al. on random starts, over the angle of the points.

Theorem 3: from V = 0 and a small W the limit is far from rank one with probability
2(φ/2π)² at least; it is certain from a matched start, (1,2) or (2,1). Theorem 2: no start
below its bounds has a limit of zero loss with W of rank one. On all limits the lemmas that
prove them are tried, among them Lemma 6. The tables are in the .nc files.

    python -m experiments.timor.theorems_2_3 [--smoke] [--out DIR]

writes the runs (theorem_2.nc, theorem_3.nc), the figure and claims.json.
"""

import dataclasses
import math
import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.timor._theorem_claims import (
    ZERO,
    claims_on_tallies,
    claims_on_theorem_2,
    claims_on_theorem_3,
)
from experiments.timor._two_neurons import failures, on_each
from gfdyn.theory import timor


# The lemmas, by what they need beside the limit.
OF_LIMIT = {
    "Lemma 4, a dead neuron at zero loss": timor.fit_has_no_dead_neuron,
    "Lemma 5, losses below that of one live neuron": timor.dead_neurons_cost,
    "Lemma 8, norms of fitted neurons": timor.fitted_neuron_norms,
}
OF_LIMIT_AND_START = {
    "Theorem 2, a limit of rank one": timor.limit_has_rank_two,
    "Theorem 3, an event that fails": timor.limit_is_far_from_rank_one,
    "Lemma 5, dead neurons that move": timor.dead_neurons_are_frozen,
    "Lemma 6, norms and angles out of bounds": timor.matched_limit_bounds,
    "Lemma 6, limits outside of A_i": timor.lone_neurons_are_reachable,
    "Lemma 9, balances that drift": partial(timor.neurons_stay_balanced, tolerance=1e-7),
    "Lemma 13, limits off the closed form": timor.limit_is_the_closed_form,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Angles, and how many starts for each pair of them."""

    smoke: bool = False
    """Few starts and angles, to see that all works."""
    phis: tuple[float, ...] = (91.0, 95.0, 105.0, 120.0, 135.0, 150.0, 170.0)
    """Angles φ of the points in degrees."""
    psis_2: tuple[float, ...] = (math.pi / 2, 0.3, 2.8)
    """Angles ψ of the targets for Theorem 2, in radians."""
    psis_3: tuple[float, ...] = (math.pi / 2, 2.6, 0.6)
    """The same for Theorem 3."""
    runs: int = 4000
    """Starts for each pair of angles."""
    chunk: int = 1000
    """Runs at once."""
    time: float = 400.0
    """When the flow ends at the latest."""
    seed: int = 0
    """Seeds the starts."""
    out: Path = Path("results/timor/theorems_2_3")
    """Folder to write to."""


SMOKE = {
    "phis": (105.0, 150.0),
    "psis_2": (2.8,),
    "psis_3": (math.pi / 2,),
    "runs": 200,
    "chunk": 200,
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    tallies: dict[str, np.ndarray] = {}
    second = sweep(settings, settings.psis_2, theorem_2_starts, tallies)
    third = sweep(settings, settings.psis_3, theorem_3_starts, tallies)
    claims = [
        *claims_on_tallies(tallies),
        *claims_on_theorem_2(second),
        *claims_on_theorem_3(third),
        negative_control(settings),
    ]
    data = {"theorem_2": second, "theorem_3": third}
    figure = {"theorems_2_3": draw(second, third)}
    write(settings.out, settings, claims, data, figure, started)
    return 0


def theorem_2_starts(key: jax.Array, phi: float, runs: int) -> gf.nets.MLP:
    """w_i and v_i uniform in the discs that Theorem 2 allows."""
    radius = timor.rank_two_radius(phi)
    return timor.random_pairs(key, runs, w_radius=radius, v_radius=0.5, in_disc=True)


def theorem_3_starts(key: jax.Array, phi: float, runs: int) -> gf.nets.MLP:
    """w_i uniform on the largest circle that Theorem 3 allows, V = 0."""
    return timor.random_pairs(key, runs, w_radius=timor.far_radius(phi), v_radius=0.0)


def sweep(
    settings: Settings, psis: tuple[float, ...], draw_starts, tallies: dict[str, np.ndarray]
) -> xr.Dataset:
    """The runs of all pairs of angles, (psi, phi, run); violations go into the tallies."""
    rows = []
    for psi in psis:
        for number, degrees in enumerate(settings.phis):
            phi = math.radians(degrees)
            problem = make_problem(phi, psi)
            # The same starts for every ψ.
            key = jax.random.fold_in(jax.random.key(settings.seed), number)
            starts = draw_starts(key, phi, settings.runs)
            ends = timor.flow_ends(problem, starts, settings.time, chunk=settings.chunk)
            tally(problem, ends, starts, tallies)
            rows.append(measure(problem, ends, starts))
    stacked = {
        name: np.stack([row[name] for row in rows]).reshape(
            (len(psis), len(settings.phis), settings.runs)
        )
        for name in rows[0]
    }
    return xr.Dataset(
        {name: (("psi", "phi", "run"), values) for name, values in stacked.items()},
        coords={"psi": list(psis), "phi": list(settings.phis)},
        attrs={"phi": "degrees", "psi": "radians"},
    )


def make_problem(phi: float, psi: float) -> gf.Problem:
    """Points and targets at these angles, the loss a sum over the points."""
    data = gf.data.two_points(phi, psi)
    return gf.Problem(data, gf.losses.squared, reduction="sum")


def tally(
    problem: gf.Problem,
    ends: timor.Ends,
    starts: gf.nets.MLP,
    tallies: dict[str, np.ndarray],
) -> None:
    """Count violations of the lemmas, and entries where they apply."""
    found = {n: on_each(f, problem, ends.net) for n, f in OF_LIMIT.items()}
    for name, statement in OF_LIMIT_AND_START.items():
        # The closed form asks for V = 0, or for a neuron that stays in its cone.
        if name.startswith("Lemma 13") and np.any(starts.weights[1]):
            continue
        found[name] = on_each(statement, problem, ends.net, starts)
    for name, check in found.items():
        tallies[name] = tallies.get(name, np.zeros(2, int)) + failures(check)


def measure(
    problem: gf.Problem, ends: timor.Ends, starts: gf.nets.MLP
) -> dict[str, np.ndarray]:
    """Of each run its loss, ranks, and whether it is in the event of Theorem 3."""
    event = on_each(timor.limit_is_far_from_rank_one, problem, ends.net, starts)
    singular = np.asarray(on_each(gf.diagnostics.singular_values, problem, ends.net))
    return {
        "loss": np.asarray(ends.risk),
        "ok": np.asarray(ends.ok),
        "matched": np.asarray(on_each(timor.is_matched, problem, starts)),
        "event": np.all(np.asarray(event.holds), axis=1),
        "ratio": singular[:, 0, 1] / singular[:, 0, 0],
    }


def negative_control(settings: Settings) -> Claim:
    """From the network of Theorem 1, of zero loss, W keeps its rank."""
    problem = make_problem(math.radians(settings.phis[0]), 1.0)
    net = timor.rank_one_net(problem)
    starts = jax.tree.map(lambda w: np.stack([w] * settings.chunk), net)
    ends = timor.flow_ends(problem, starts, settings.time, chunk=settings.chunk)
    singular = np.asarray(on_each(gf.diagnostics.singular_values, problem, ends.net))
    return Claim(
        statement="from the network of Theorem 1: σ_2/σ_1 of W at the end",
        source="Theorem 1",
        measured=float(np.max(singular[:, 0, 1] / singular[:, 0, 0])),
        high=1e-8,
    )


def draw(second: xr.Dataset, third: xr.Dataset) -> Figure:
    """The event's frequencies over φ, and the ranks of both theorems."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    degrees = np.linspace(90.1, 175, 200)
    phi = np.deg2rad(degrees)
    left.plot(degrees, timor.far_probability(phi), "k", label="$2(\\phi/2\\pi)^2$")
    matched = third["matched"].isel(psi=0).mean("run")
    left.plot(third["phi"], matched, "kx", label="matched starts")
    for i, psi in enumerate(third["psi"].values):
        hits = third["event"].sel(psi=psi).mean("run")
        left.plot(third["phi"], hits, f"C{i}o-", label=f"event, $\\psi = {psi:.2f}$")
    left.set(xlabel="$\\phi$ in degrees", ylabel="frequency", title="Theorem 3")
    left.legend(frameon=False, fontsize="small")
    event = third["ratio"].where(third["event"]).min(["psi", "run"])
    fitted = second["ratio"].where(second["loss"] < ZERO).min(["psi", "run"])
    right.plot(degrees, timor.far_singular_ratio(phi), "k", label="least, by Theorem 3")
    right.plot(third["phi"], event, "C0o", label="least in its event")
    right.plot(second["phi"], fitted, "C1s", label="least from starts of Theorem 2")
    standing = timor.singular_ratio_of_rows(1.0, 1.0, phi)
    right.plot(degrees, standing, "k:", label="from a vanishing start")
    right.set(
        xlabel="$\\phi$ in degrees", ylabel="$\\sigma_2/\\sigma_1$ of $W$", yscale="log"
    )
    right.legend(frameon=False, fontsize="small")
    return figure


if __name__ == "__main__":
    sys.exit(main())
