"""What Theorems 2 and 3 of Timor et al. say of the runs, beside what is known of them."""

import math

import numpy as np
import xarray as xr

from experiments._common.claims import Claim, near
from experiments.timor._two_neurons import standard_error
from gfdyn.theory import timor


# The loss that counts as zero.
ZERO = 1e-10
# By an independent code, 4000 starts each at |w_i(0)| = ρ_3, by φ and ψ: how often the
# event of Theorem 3 occurs, and how often the loss goes to zero.
KNOWN_ANGLES = (95.0, 105.0, 120.0, 135.0, 150.0, 170.0)
KNOWN_EVENT = {
    math.pi / 2: (0.223, 0.369, 0.413, 0.408, 0.439, 0.478),
    2.6: (0.303, 0.323, 0.355, 0.387, 0.430, 0.478),
    0.6: (0.152, 0.179, 0.378, 0.454, 0.504, 0.488),
}
KNOWN_ZERO = {
    math.pi / 2: (0.434, 0.417, 0.413, 0.408, 0.439, 0.478),
    2.6: (0.303, 0.323, 0.355, 0.387, 0.430, 0.478),
    0.6: (0.452, 0.451, 0.477, 0.491, 0.505, 0.488),
}
KNOWN_RUNS = 4000


def claims_on_tallies(tallies: dict[str, np.ndarray]) -> list[Claim]:
    """No lemma is violated."""
    return [
        Claim(
            statement=f"{name}: of {applies}",
            source="Timor et al.",
            measured=int(violated) if applies else None,
            high=0,
        )
        for name, (violated, applies) in tallies.items()
    ]


def claims_on_theorem_2(runs: xr.Dataset) -> list[Claim]:
    """W of rank two at every limit of zero loss, and a loss that is zero or is not."""
    loss, zero = runs["loss"], runs["loss"] < ZERO
    between = np.sum((loss >= ZERO) & (loss < 1e-3) | ~runs["ok"])
    claims = [
        Claim(
            statement="Theorem 2: runs that fail, or end between losses 1e-10 and 1e-3",
            source="ours",
            measured=int(between),
            high=0,
        )
    ]
    least = runs["ratio"].where(zero).min(["psi", "run"])
    error = standard_error(0.2, runs.sizes["run"])
    for phi in runs["phi"].values:
        parts = zero.sel(phi=phi).mean("run")
        claims += [
            Claim(
                statement=f"Theorem 2, φ = {phi:g}°: least σ_2/σ_1 of W",
                source="ours",
                measured=float(least.sel(phi=phi)),
                low=0.01,
            ),
            Claim(
                statement=f"Theorem 2, φ = {phi:g}°: largest fraction of zero loss",
                source="ours, .16 to .30",
                measured=float(parts.max()),
                low=0.16 - 3 * error,
                high=0.30 + 3 * error,
            ),
        ]
    return claims


def claims_on_theorem_3(runs: xr.Dataset) -> list[Claim]:
    """The event's frequencies: above the bound, and as known; the rank in it."""
    number, claims = runs.sizes["run"], []
    for phi in runs["phi"].values:
        at = runs.sel(phi=phi)
        bound = float(timor.far_probability(math.radians(phi)))
        error = standard_error(bound, number)
        floor = float(timor.far_singular_ratio(math.radians(phi)))
        ratio = at["ratio"].where(at["event"])
        # One set of starts for all ψ.
        matched = float(at["matched"].isel(psi=0).mean())
        claims += [
            near(
                f"Theorem 3, φ = {phi:g}°: matched starts",
                "2(φ/2π)²",
                matched,
                bound,
                4 * error,
            ),
            Claim(
                statement=f"Theorem 3, φ = {phi:g}°: least frequency of the event",
                source="2(φ/2π)²",
                measured=float(at["event"].mean("run").min()),
                low=bound - 4 * error,
            ),
            Claim(
                statement=f"Theorem 3, φ = {phi:g}°: least σ_2/σ_1 in the event",
                source="not in the paper",
                measured=float(ratio.min()),
                low=floor,
            ),
            *claims_as_known(at, float(phi)),
        ]
    return claims


def claims_as_known(runs: xr.Dataset, phi: float) -> list[Claim]:
    """The frequencies at one φ as those of the independent code."""
    claims, number = [], runs.sizes["run"]
    if phi not in KNOWN_ANGLES:
        return claims
    column = KNOWN_ANGLES.index(phi)
    for psi in runs["psi"].values:
        hits = {
            "event": (runs["event"].sel(psi=psi), KNOWN_EVENT),
            "zero loss": (runs["loss"].sel(psi=psi) < ZERO, KNOWN_ZERO),
        }
        for name, (hit, known) in hits.items():
            expected = known[float(psi)][column]
            errors = (standard_error(expected, n) for n in (number, KNOWN_RUNS))
            claims.append(
                near(
                    f"Theorem 3, φ = {phi:g}°, ψ = {psi:.3g}: {name}",
                    "ours",
                    float(hit.mean()),
                    expected,
                    4 * math.hypot(*errors),
                )
            )
    return claims
