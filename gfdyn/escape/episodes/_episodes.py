"""The plateaus and escapes of a trajectory of the full loss."""

from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

from ... import diagnostics
from ...run import Measure, Trajectory, measure
from ._onset import Onset, onset
from ._plateaus import Episodes, Escapes, Plateaus
from ._segmentation import Stretch, at, rests


def episodes(
    trajectory: Trajectory,
    *,
    flatness: float = 0.02,
    contrast: float = 10.0,
    significance: float = 0.2,
    axis: Literal["clock", "log_time"] = "clock",
) -> Episodes:
    r"""Segment a trajectory of the full loss into plateaus and escapes.

    With F the total fall of the risk, let w(u) be the time during which the risk is in
    [u − flatness · F, u]. A plateau is a band at which w peaks, and from which w drops on
    either side by the factor `contrast` at least before it is as high again; escapes are
    what is between. Nothing changes with the units of time or risk, with the number of
    saves, or under noise that is small beside flatness · F, or upward. So a plateau

    - that falls by more than flatness · F in all is cut to its slowest part,
    - that differs by less from another one is part of that,
    - at the end counts once the risk has settled to 1/(4 · contrast) or so of its last
      fall, be it at a saddle or at a minimum,

    and of a run that ends before its first escape one sees the onset of that escape.

    Args:
        trajectory: of `gf.solve` or `gf.descend`; saves at accepted steps,
            `ts=gf.AcceptedSteps()`, resolve its escapes, and are on the kinks along which
            it slides, where ‖∂R‖ is not ‖∇R‖.
        flatness: by how much the risk may fall on a plateau, of its total fall.
        contrast: by what factor slower the risk falls on a plateau than next to it.
        significance: a singular value counts above this fraction of the largest one that
            its layer has at any plateau or at the end.
        axis: the time in which plateaus are long: the clock of the flow, or the log of
            physical time. In that, plateaus tend to fixed lengths as the scale of
            initialisation falls, but for L > 2 whatever follows the first escape soon is
            lost in the rounding of log t.

    Raises:
        TypeError: if it is no trajectory.
        ValueError: on a batch of trajectories, one of the localized flow, fewer than two
            saves, a risk that is not finite, or an option out of its range.
    """
    _check(trajectory, flatness, contrast, significance, axis)
    risk = _at_saves(trajectory, diagnostics.risk)
    if not np.isfinite(risk).all():
        first = int(np.argmin(np.isfinite(risk)))
        raise ValueError(
            f"the risk is {risk[first]} at save {first}: the trajectory diverged, or has "
            "rows that were not reached; give the part before."
        )
    gradient = _at_saves(trajectory, _gradient_norm(trajectory))
    clock, log_time = np.asarray(trajectory.ts), np.asarray(trajectory.log_time)
    times = clock if axis == "clock" else np.maximum.accumulate(log_time)
    plateaus = rests(risk, times, flatness, contrast)
    saves = [_nearest_save(p, gradient) for p in plateaus]
    escapes, left = _between(plateaus, len(risk) - 1.0)
    onsets = [
        _onset(_depth(trajectory), risk, gradient, saves[k] if k >= 0 else None, escape)
        for escape, k in zip(escapes, left, strict=True)
    ]
    # Entry k + 1 for plateau k: before the first and after the last there is none.
    losses = np.array([risk[0], *risk[saves], np.min(risk)])
    return Episodes(
        Plateaus(
            **_bounds(plateaus, clock, log_time),
            save=np.array(saves, int),
            loss=risk[saves],
            **_shape(trajectory, saves, significance),
        ),
        Escapes(
            **_bounds(escapes, clock, log_time),
            fall=np.array([losses[k + 1] - losses[k + 2] for k in left], risk.dtype),
            plateau=np.array(left, int),
            speed=np.array([o.speed for o in onsets], risk.dtype),
            degree=np.array([o.degree for o in onsets], risk.dtype),
        ),
        trajectory.flow.clock_name,
    )


def _check(
    trajectory: Any, flatness: float, contrast: float, significance: float, axis: str
) -> None:
    if not isinstance(trajectory, Trajectory):
        raise TypeError(
            f"trajectory is a {type(trajectory).__name__}; give what gf.solve or "
            "gf.descend returns."
        )
    if trajectory.ts.ndim != 1:
        raise ValueError(
            f"trajectory is a batch of shape {trajectory.ts.shape[:-1]}; take one of them, "
            "trajectory.lane(0)."
        )
    if getattr(trajectory.flow, "localized", False):
        raise ValueError(
            "trajectory is one of the localized flow, which never leaves the first saddle; "
            "integrate gf.EscapeFlow(problem)."
        )
    if len(trajectory.ts) < 2:
        raise ValueError("trajectory has a single save; give ts=gf.AcceptedSteps().")
    if not 0 < flatness < 0.5:
        raise ValueError(
            f"flatness={flatness} must lie in (0, 0.5): the fraction of its total fall "
            "that the risk may fall by on a plateau."
        )
    if not contrast > 1:
        raise ValueError(
            f"contrast={contrast} must be above 1: how many times slower the risk falls "
            "on a plateau than next to it."
        )
    if not 0 < significance < 1:
        raise ValueError(
            f"significance={significance} must lie in (0, 1): the fraction of its layer's "
            "largest singular value above which one counts."
        )
    if axis not in ("clock", "log_time"):
        raise ValueError(f"axis={axis!r}; use 'clock' or 'log_time'.")


def _depth(trajectory: Trajectory) -> int:
    return len(trajectory.flow.direction(trajectory.final_position).weights)


def _gradient_norm(trajectory: Trajectory) -> Measure:
    """‖∂R‖, by which the flow moves, on kinks as well; descent moves by ∇R, off kinks."""
    descends = trajectory.is_descent
    return diagnostics.gradient_norm if descends else diagnostics.subgradient_norm


def _at_saves(trajectory: Trajectory, function: Measure) -> np.ndarray:
    """The function at every save; compiled for each power of two of saves only."""
    number = len(trajectory.ts)
    rows = np.minimum(np.arange(1 << (number - 1).bit_length()), number - 1)
    positions = jax.tree.map(lambda leaf: leaf[rows], trajectory.positions)
    return np.asarray(measure(function, trajectory.flow, positions))[:number]


def _nearest_save(plateau: Stretch, gradient: np.ndarray) -> int:
    """The save on a plateau with the smallest gradient."""
    first, last = int(np.ceil(plateau.start)), int(np.floor(plateau.end))
    if first > last:
        return int(np.rint(plateau.start))
    return first + int(np.argmin(gradient[first : last + 1]))


def _between(plateaus: list[Stretch], last: float) -> tuple[list[Stretch], list[int]]:
    """What plateaus leave of a trajectory, and the index of the one before, −1 for none."""
    ends = [0.0, *(p.end for p in plateaus)]
    starts = [*(p.start for p in plateaus), last]
    gaps = [
        (Stretch(a, b), k - 1)
        for k, (a, b) in enumerate(zip(ends, starts, strict=True))
        if b > a
    ]
    return [gap for gap, _ in gaps], [k for _, k in gaps]


def _onset(
    depth: int, risk: np.ndarray, gradient: np.ndarray, save: int | None, escape: Stretch
) -> Onset:
    """How a saddle is left, from the saves between it and the end of the escape."""
    if save is None or depth < 2:
        return Onset(np.nan, np.nan)
    rows = slice(save, int(np.ceil(escape.end)) + 1)
    return onset(depth, risk[rows], gradient[rows])


def _bounds(
    stretches: list[Stretch], clock: np.ndarray, log_time: np.ndarray
) -> dict[str, np.ndarray]:
    start = np.array([s.start for s in stretches])
    end = np.array([s.end for s in stretches])
    return {
        "start": at(clock, start).astype(clock.dtype),
        "end": at(clock, end).astype(clock.dtype),
        "log_start": at(log_time, start).astype(clock.dtype),
        "log_end": at(log_time, end).astype(clock.dtype),
    }


def _shape(
    trajectory: Trajectory, saves: list[int], significance: float
) -> dict[str, np.ndarray]:
    """Ranks and linearity of the nets at these saves."""
    flow = trajectory.flow
    rows = np.array([*saves, len(trajectory.ts) - 1])
    positions = jax.tree.map(lambda leaf: leaf[rows], trajectory.positions)
    shapes = [w.shape for w in flow.direction(trajectory.final_position).weights]
    spectra = eqx.Partial(
        diagnostics.singular_values, k=max(min(shape) for shape in shapes)
    )
    values = np.asarray(measure(spectra, flow, positions))
    # Near the origin the activations of ρ are those of θ, and do not underflow.
    directions = jax.vmap(flow.direction)(positions)
    bent = jax.vmap(lambda net: diagnostics.nonlinearity(flow.problem, net))(directions)
    largest = values.max(axis=(0, 2), keepdims=True)
    ranks = np.sum(values > significance * largest, axis=2)[:-1]
    middle = ranks[:, 1:-1] if len(shapes) > 2 else ranks
    return {
        "ranks": ranks,
        "bottleneck_rank": np.min(middle, axis=1),
        "nonlinearity": np.asarray(bent)[:-1],
    }
