"""A chain of saddles: what is known of it, and how it is printed."""

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from ...nets import AbstractNet
from ._legs import Leg


class Saddle(eqx.Module):
    """A saddle, or the fit, as the flow arrives there.

    Attributes:
        log_time: log of the physical time of arrival, −∞ at the origin.
        risk: R.
        learned: which branches have learned, (B,).
        forces: the norm of the force on each branch, whatever its size, as a part of the
            largest at the origin, (B,).
        speed: s of the branch that leaves fastest, d log r_b/dt = s r_b^(L−2); −∞ if all
            rest.
        net: θ.
    """

    log_time: float
    risk: float
    learned: Bool[np.ndarray, " branches"]
    forces: Float[np.ndarray, " branches"]
    speed: float
    net: AbstractNet


class Passage(eqx.Module):
    """The way from one saddle to the next: a wait and an escape.

    Attributes:
        branches: those that learn, (E,): mostly one.
        log_times: log of the physical time at which the product r_b^L of each of these has
            half of what it has at the next saddle, (E,).
        fall: by how much the risk falls.
        steps: accepted, from the one to the other.
    """

    branches: Int[np.ndarray, " escaping"]
    log_times: Float[np.ndarray, " escaping"]
    fall: float
    steps: int


class Chain(eqx.Module):
    """The flow from saddle to saddle.

    Attributes:
        saddles: from the origin to the fit, K + 1 of them.
        passages: K, from each to the next.
        legs: the flow itself, cut where what rests has changed.
        complete: whether it ends at the fit: of all data, or with as many branches.
    """

    saddles: tuple[Saddle, ...]
    passages: tuple[Passage, ...]
    legs: tuple[Leg, ...]
    complete: bool

    @property
    def final(self) -> AbstractNet:
        """θ at the end."""
        return self.saddles[-1].net

    @property
    def log_time(self) -> np.ndarray:
        """log of the physical time at all saves, (S,)."""
        return np.concatenate([leg.log_time for leg in self.legs])

    @property
    def risk(self) -> np.ndarray:
        """R at all saves, (S,)."""
        return np.concatenate([leg.risk for leg in self.legs])

    @property
    def log_radii(self) -> np.ndarray:
        """log r_b at all saves, (S, B)."""
        return np.concatenate([leg.log_radii for leg in self.legs])

    @property
    def clock(self) -> np.ndarray:
        """τ at all saves, (S,): dt = r^(2−L) dτ, r the size of what does not rest."""
        ends = np.cumsum([0.0, *(float(leg.trajectory.final_time) for leg in self.legs)])
        times = [np.asarray(leg.trajectory.ts) for leg in self.legs]
        starts = ends[:-1]
        return np.concatenate([s + t for s, t in zip(starts, times, strict=True)])

    @property
    def num_steps(self) -> int:
        """The accepted steps in all."""
        return sum(passage.steps for passage in self.passages)

    def summary(self) -> str:
        """The saddles and the passages between them as a table, in the order of time."""
        lines = [f"{'':9}{'log t':>12}{'risk':>14}{'learned':>9}{'speed':>12}{'steps':>7}"]
        for k, saddle in enumerate(self.saddles):
            learned = int(saddle.learned.sum())
            line = f"saddle {k:<2}{saddle.log_time:12.6g}{saddle.risk:14.8g}{learned:9d}"
            lines.append(line + (f"{saddle.speed:12.6g}" if saddle.speed > -np.inf else ""))
            if k < len(self.passages):
                passage = self.passages[k]
                for branch, log_time in zip(
                    passage.branches, passage.log_times, strict=True
                ):
                    lines.append(f"  branch {branch:<2}{log_time:11.6g}")
                lines[-1] += f"{'':35}{passage.steps:7d}"
        if self.complete:
            lines[-1] = lines[-1].replace(f"saddle {len(self.passages):<2}", "the fit  ", 1)
        return "\n".join(lines)
