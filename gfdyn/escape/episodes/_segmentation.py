r"""Where a falling curve rests: plateaus as peaks of the time spent near each level.

With F the total fall, let w(u) be the time during which the curve lies in the band
[u − F·flatness, u]. A plateau is a peak of w that stands out: on either side w drops to
less than 1/contrast of it, before it rises to as much again. This asks for no slope and no
threshold, is the same in any units of time and of the curve, and on saves at any times.
"""

from typing import NamedTuple

import numpy as np


# A fall below so many roundings of the curve is none.
_ROUNDINGS = 100


class Stretch(NamedTuple):
    """A part of a curve, between two positions: 2.25 is a quarter past the third save."""

    start: float
    end: float


def rests(
    curve: np.ndarray, times: np.ndarray, flatness: float, contrast: float
) -> list[Stretch]:
    """The plateaus of a curve sampled at rising `times` (−∞ may be the first)."""
    # Descent with noise spikes upwards.
    levels = np.minimum.accumulate(curve)
    fall = float(levels[0] - levels[-1])
    if fall <= _ROUNDINGS * np.finfo(curve.dtype).eps * np.max(np.abs(levels)):
        return [Stretch(0.0, len(levels) - 1.0)]
    upper, lower = _bands(levels, flatness * fall)
    entered, left = at(times, _first_at(levels, upper)), at(times, _last_at(levels, lower))
    # Both may be −∞, between which no time passes.
    stays = np.where(left > entered, left, 0.0) - np.where(left > entered, entered, 0.0)
    turns = _turns(stays, contrast)
    peaks = np.array([turn for turn, is_peak in turns if is_peak], int)
    tops, bottoms = upper[peaks], lower[peaks]
    between = np.array([turn for turn, is_peak in turns if not is_peak], int)
    for k in range(len(peaks) - 1):
        if bottoms[k] < tops[k + 1]:
            # Bands that overlap end where the curve falls fastest between them.
            valley = between[(between > peaks[k]) & (between < peaks[k + 1])][0]
            bottoms[k] = tops[k + 1] = 0.5 * upper[valley] + 0.5 * lower[valley]
    starts, ends = _first_at(levels, tops), _last_at(levels, bottoms)
    return [Stretch(float(a), float(b)) for a, b in zip(starts, ends, strict=True)]


def at(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Values between saves: linear, and linear in their exponentials next to −∞."""
    i = np.minimum(np.floor(positions).astype(int), len(values) - 1)
    after = values[np.minimum(i + 1, len(values) - 1)]
    part = positions - i
    infinite = np.isneginf(values[i]) & (part > 0)
    base = np.where(infinite | (part == 0), 0.0, values[i])
    linear = np.where(part == 0, values[i], base + part * (after - base))
    from_zero = after + np.log(np.where(part > 0, part, 1.0))
    return np.where(infinite, from_zero, linear)


def _bands(levels: np.ndarray, height: float) -> tuple[np.ndarray, np.ndarray]:
    """Upper and lower ends of all bands that end at a sampled level, from the top down:
    between two such, the time spent in a band is linear in its level."""
    below = levels[levels - height >= levels[-1]]
    above = levels[levels + height <= levels[0]]
    upper = np.concatenate([below, above + height])
    lower = np.concatenate([below - height, above])
    order = np.argsort(-upper, kind="stable")
    return upper[order], lower[order]


def _first_at(levels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The positions at which falling levels first reach these values."""
    i = np.searchsorted(-levels, -values, side="left")
    i = np.minimum(i, len(levels) - 1)
    before = np.maximum(i - 1, 0)
    drop = levels[before] - levels[i]
    part = (levels[before] - values) / np.where(drop > 0, drop, 1.0)
    return np.where(drop > 0, before + np.clip(part, 0.0, 1.0), i)


def _last_at(levels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The positions at which falling levels leave these values."""
    i = np.searchsorted(-levels, -values, side="right") - 1
    i = np.maximum(i, 0)
    after = np.minimum(i + 1, len(levels) - 1)
    drop = levels[i] - levels[after]
    part = (levels[i] - values) / np.where(drop > 0, drop, 1.0)
    return np.where(drop > 0, i + np.clip(part, 0.0, 1.0), i)


def _turns(values: np.ndarray, contrast: float) -> list[tuple[int, bool]]:
    """The peaks (True) and the valleys between them, a factor `contrast` apart, by index.

    Either end counts as a peak or a valley; none where nothing stands out.
    """
    turns: list[tuple[int, bool]] = []
    high = low = 0
    seeks_peak = seeks_valley = True
    for i, value in enumerate(values):
        high = i if value > values[high] else high
        low = i if value < values[low] else low
        if seeks_peak and values[high] > contrast * value:
            turns.append((high, True))
            low, seeks_peak, seeks_valley = i, False, True
        elif seeks_valley and value > contrast * values[low]:
            turns.append((low, False))
            high, seeks_peak, seeks_valley = i, True, False
    if seeks_peak != seeks_valley:
        turns.append((high, True) if seeks_peak else (low, False))
    return turns
