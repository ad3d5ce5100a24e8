"""Labels that keep apart, colours that are told apart, ticks that can be read."""

import itertools
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from plotting_cases import apart, extents

from gfdyn import plotting
from gfdyn.plotting._axes import is_wide, log_axis
from gfdyn.plotting._labels import spread


# --- Labels ----------------------------------------------------------------------------


def least_squares_places(ends, gap, height):
    """By quadratic programming: the nearest places in this order, `gap` apart."""
    from scipy.optimize import minimize

    order = np.argsort(ends, kind="stable")
    start = np.linspace(0, height, len(ends))
    found = minimize(
        lambda p: np.sum((p - ends[order]) ** 2),
        start,
        jac=lambda p: 2 * (p - ends[order]),
        bounds=[(0, height)] * len(ends),
        constraints={"type": "ineq", "fun": lambda p: np.diff(p) - gap},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    places = np.empty(len(ends))
    places[order] = found.x
    return places


@pytest.mark.parametrize("seed", range(8))
def test_spread_is_least_squares(seed):
    rng = np.random.default_rng(seed)
    ends = rng.choice([5.0, 50.0, 99.0], 7) + rng.normal(size=7)
    ends = np.clip(ends, 0, 100)
    places = spread(ends, 9.0, 100.0)
    np.testing.assert_allclose(places, least_squares_places(ends, 9.0, 100.0), atol=1e-4)
    assert np.diff(np.sort(places)).min() > 9 - 1e-9
    assert places.min() >= 0 and places.max() <= 100


def test_spread_leaves_alone_what_is_apart():
    ends = np.array([60.0, 0.0, 100.0, 30.0])
    np.testing.assert_array_equal(spread(ends, 10.0, 100.0), ends)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_labels_at_the_ends(scale):
    """In the order of the ends, in the lines' colours, apart, right of the axes."""
    with plotting.style():
        figure = Figure(figsize=(3, 2), layout="constrained")
        ax: Any = figure.subplots()
        ends = [1.0, 1.01, 1.02, 3.0, 100.0, 100.5]
        for i, end in enumerate(ends):
            ax.plot([0, 1], [2.0, end], label=f"line {i}", color=plotting.shades(6)[i])
        ax.plot([0, 1], [1, 1])
        ax.set_yscale(scale)
        figure.draw_without_rendering()
        plotting.label_ends(ax)
        figure.draw_without_rendering()
        texts = plotting.label_ends(ax)
    assert [text.get_text() for text in texts] == [f"line {i}" for i in range(6)]
    assert [text.get_color() for text in texts] == plotting.shades(6)
    # The first ones are gone.
    assert list(ax.texts) == texts
    boxes = extents(figure, texts)
    assert apart(figure, texts)
    assert (np.diff([box.y0 for box in boxes]) > 0).all()
    assert all(ax.bbox.x1 < box.x0 < box.x1 <= figure.bbox.x1 for box in boxes)
    # Those that have room are where their line ends.
    end = ax.transData.transform((1.0, 3.0))[1]
    centre = 0.5 * (boxes[3].y0 + boxes[3].y1)
    if scale == "log":
        assert abs(centre - end) < 3


def test_labels_that_do_not_fit_are_left_out(ax):
    ax.figure.set_size_inches(3, 1)
    for i in range(40):
        ax.plot([0, 1], [i, i], label=str(i))
    texts = plotting.label_ends(ax)
    named = [int(text.get_text()) for text in texts]
    assert named[0] == 0 and named[-1] == 39 and 4 <= len(named) < 20
    assert apart(ax.figure, texts)


def test_lines_without_points_have_their_label_at_the_bottom(ax):
    ax.plot([0.0, 1.0], [np.nan, np.nan], label="nothing")
    ax.plot([0.0, 1.0], [1.0, 2.0], label="rises")
    first, second = plotting.label_ends(ax)
    assert extents(ax.figure, [first])[0].y0 < extents(ax.figure, [second])[0].y0


# --- Style -----------------------------------------------------------------------------


def rgb(colour: str) -> np.ndarray:
    """Linear light of a colour #rrggbb."""
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lightness(linear: np.ndarray) -> float:
    """L* of CIE from linear light, 0 to 100."""
    y = float(linear @ [0.2126, 0.7152, 0.0722])
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


# Linear light as deuteranopes and protanopes see it (Machado et al. 2009, severity 1).
BLIND = {
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}


def test_palette_is_told_apart_in_grey():
    values = sorted(lightness(rgb(colour)) for colour in plotting.PALETTE)
    assert np.diff(values).min() > 8 and values[-1] < 80


@pytest.mark.parametrize("name", BLIND)
def test_palette_is_told_apart_by_the_colour_blind(name):
    seen = [np.clip(np.array(BLIND[name]) @ rgb(c), 0, 1) for c in plotting.PALETTE]
    steps = [np.cbrt(colour) for colour in seen]
    for a, b in itertools.combinations(steps, 2):
        assert np.linalg.norm(a - b) > 0.12


def test_shades_go_from_dark_to_light():
    for number in (1, 2, 7, 10):
        shades = plotting.shades(number)
        values = [lightness(rgb(to_hex(shade))) for shade in shades]
        assert len(values) == number and (np.diff(values) > 0).all()
        assert values[-1] < 80


def test_style_touches_nothing_outside(ax):
    before = dict(matplotlib.rcParams)
    with plotting.style():
        inside = dict(matplotlib.rcParams)
        FigureCanvasAgg(Figure()).draw()
    assert inside != before and inside["pdf.fonttype"] == 42
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(RuntimeError, match="inside"), plotting.style():
        raise RuntimeError("inside")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 99.0], False),
        ([1.0, 101.0], True),
        ([-1.0, 1e9], False),
        ([0.0, 1e9], False),
        ([np.nan, 1e-9, 1.0], True),
        ([np.nan], False),
    ],
)
def test_what_is_wide(values, expected):
    assert is_wide(np.array(values)) == expected


@pytest.mark.parametrize(
    ("ends", "labels"),
    [((1.2, 12.0), {"2", "5", "10"}), ((1.0, 1.9), {"1", "1.5"})],
)
def test_narrow_axes_in_the_log_have_plain_ticks(ax, ends, labels):
    ax.plot([0, 1], ends)
    log_axis(ax)
    FigureCanvasAgg(ax.figure).draw()
    low, high = ax.get_ylim()
    ticks = zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
    assert {text.get_text() for at, text in ticks if low <= at <= high} == labels
    assert not any(text.get_text() for text in ax.get_yticklabels(minor=True))


def test_wide_axes_in_the_log_have_powers_of_ten(ax):
    ax.plot([0, 1], [1e-9, 1.0])
    log_axis(ax)
    FigureCanvasAgg(ax.figure).draw()
    low, high = ax.get_ylim()
    ticks = [at for at in ax.get_yticks() if low <= at <= high]
    assert 3 <= len(ticks) <= 6
    np.testing.assert_allclose(np.log10(ticks), np.round(np.log10(ticks)), atol=1e-9)
