"""Plateaus and escapes: what is known of them, and how they are printed."""

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int


Each = Float[np.ndarray, " episodes"]


class Plateaus(eqx.Module):
    """The K stretches at which the risk rests, in their order.

    Attributes:
        start, end: in the clock of the flow, (K,).
        log_start, log_end: the same in the log of physical time, (K,).
        save: the save nearest to the saddle: of the plateau's, the one with the smallest
            ‖∂R‖, (K,). What follows is measured there.
        loss: the risk, (K,).
        ranks: the number of significant singular values of each W_l, (K, L).
        bottleneck_rank: the fewest of them in a middle layer, W_2, …, W_{L−1} (in any layer
            for L = 2), (K,). But for what is not significant the net factors through so
            many dimensions: an estimate from above of its bottleneck rank (Jacot).
        nonlinearity: ‖σ(Z_l) − Z_l‖²/‖Z_l‖² of the hidden layers, (K, L−1): small where
            activations are near non-negative, so that a layer passes on what it gets.
    """

    start: Each
    end: Each
    log_start: Each
    log_end: Each
    save: Int[np.ndarray, " episodes"]
    loss: Each
    ranks: Int[np.ndarray, "episodes layers"]
    bottleneck_rank: Int[np.ndarray, " episodes"]
    nonlinearity: Float[np.ndarray, "episodes hidden"]


class Escapes(eqx.Module):
    r"""The stretches between plateaus, in their order; the last may be unfinished.

    Attributes:
        start, end: in the clock of the flow.
        log_start, log_end: the same in the log of physical time.
        fall: by how much the risk falls, from plateau to plateau where there are two.
        plateau: the index of the plateau that is left, −1 if the trajectory starts amid
            an escape.
        speed: $s$ of the localized dynamics about the saddle that is left, if that is left
            at degree L. A direction ρ, ‖ρ‖² = L, along which the risk falls by
            $\Delta = s\,r^L$ is left as dr/dt = s r^{L−1}, so that

            $$\|\nabla R\|^2 = L\,s^{2/L} \Delta^{2 - 2/L},$$

            from which s is read off as Δ → 0. At the origin it is d log r/dτ, the escape
            speed of Bantzis et al., Def. 2.1; for L = 2 it is d log r/dt at every saddle.
            ∇R is the least subgradient ∂R, by which the flow moves on kinks as well.
            NaN where the saves do not resolve the onset, or no plateau is left.
        degree: the degree at which the saddle is left, 2/(2 − p) where ‖∇R‖² ∝ Δ^p: L at
            the origin. A deep net may leave later saddles at a lower one, with neurons
            that feed into those already there; then `speed` means little. NaN with it.
    """

    start: Each
    end: Each
    log_start: Each
    log_end: Each
    fall: Each
    plateau: Int[np.ndarray, " episodes"]
    speed: Each
    degree: Each


class Episodes(eqx.Module):
    """The plateaus and escapes of a trajectory, which together cover it."""

    plateaus: Plateaus
    escapes: Escapes
    clock_name: str = eqx.field(static=True)

    def summary(self) -> str:
        """The plateaus and escapes as a table, in the order of time."""
        return _summary(self)


def _summary(found: Episodes) -> str:
    clock, rows = found.clock_name, []
    p, e = found.plateaus, found.escapes
    for k in range(len(p.loss)):
        bent = " ".join(f"{value:.2g}" for value in p.nonlinearity[k])
        rows.append(
            (
                p.start[k],
                f"plateau {k}  {_span(p, k)}  loss {p.loss[k]:.6g}, ranks "
                f"{' '.join(map(str, p.ranks[k]))}, bottleneck {p.bottleneck_rank[k]}, "
                f"nonlinearity {bent}",
            )
        )
    for k in range(len(e.fall)):
        growth = (
            f"speed {e.speed[k]:.4g}, degree {e.degree[k]:.3g}"
            if np.isfinite(e.speed[k])
            else "its onset is not resolved by the saves"
        )
        rows.append(
            (e.start[k], f"escape     {_span(e, k)}  fall {e.fall[k]:.6g}, {growth}")
        )
    header = f"           {clock + ' from':>11} {'to':>11} {'log t from':>10} {'to':>10}"
    return "\n".join([header, *(text for _, text in sorted(rows, key=lambda row: row[0]))])


def _span(part: Plateaus | Escapes, k: int) -> str:
    return (
        f"{part.start[k]:11.6g} {part.end[k]:11.6g} "
        f"{part.log_start[k]:10.5g} {part.log_end[k]:10.5g}"
    )
