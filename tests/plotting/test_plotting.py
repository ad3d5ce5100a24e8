"""What the figures show: the data of the dataset, on the axes given."""

import itertools
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import gfdyn as gf
from gfdyn import plotting
from gfdyn.plotting._axes import is_wide, log_axis
from gfdyn.plotting._labels import spread


DEPTH, TIMES = 3, np.array([0.0, 0.5, 2.0, 3.0])

NEEDS: dict[str, tuple[Callable[[Axes, xr.Dataset], None], tuple[str, ...]]] = {
    "loss": (plotting.loss, ("risk",)),
    "log_risk": (plotting.log_risk, ("log_risk",)),
    "singular_values": (
        partial(plotting.singular_values, layer=2),
        ("singular_values",),
    ),
    "escape_speed": (plotting.escape_speed, ("escape_speed",)),
    "balance_drift": (plotting.balance_drift, ("neuron_balance", "layer_norms")),
    "stable_rank": (plotting.stable_rank, ("stable_rank",)),
    "zoom_on_change": (plotting.zoom_on_change, ("risk",)),
}


def dataset(clock: str = "tau", depth: int = DEPTH) -> xr.Dataset:
    """A dataset as `to_xarray` makes it, of numbers that are told apart."""
    rng, save = np.random.default_rng(0), len(TIMES)
    variables = {
        "risk": ("save", np.array([2.0, 1.9, 0.5, 0.25])),
        "log_risk": ("save", np.array([2.0, -10.0, -500.0, -9000.0])),
        "log_radius": ("save", np.array([-200.0, -100.0, -50.0, 0.5])),
        "escape_speed": ("save", rng.normal(size=save)),
        "layer_norms": (("save", "layer"), rng.uniform(1, 2, (save, depth))),
        "stable_rank": (("save", "layer"), rng.uniform(1, 5, (save, depth))),
        "singular_values": (("save", "layer", "k"), rng.uniform(size=(save, depth, 12))),
    }
    for layer in range(1, depth):
        balance = rng.normal(size=(save, 4))
        variables[f"neuron_balance_{layer}"] = (("save", f"neuron_{layer}"), balance)
    return xr.Dataset(variables, coords={clock: ("save", TIMES)})


@pytest.fixture
def ax() -> Axes:
    return Figure().subplots()


def lines(ax: Axes) -> list[np.ndarray]:
    """The ordinates of each line, after a look at its abscissae and at the figure."""
    for line in ax.lines:
        x = np.asarray(line.get_xdata())
        np.testing.assert_array_equal(x, TIMES[-len(x) :])
    FigureCanvasAgg(ax.figure).draw()  # pyright: ignore[reportArgumentType]
    return [np.asarray(line.get_ydata()) for line in ax.lines]


def test_loss(ax):
    data = dataset()
    plotting.loss(ax, data)
    (risk,) = lines(ax)
    np.testing.assert_array_equal(risk, data["risk"])
    assert ax.get_ylabel() == "risk" and ax.get_title() == "Loss"
    assert ax.get_ylim()[0] == 0


def test_loss_below_zero_is_in_view(ax):
    data = dataset()
    data["risk"] = data["risk"] - 1
    plotting.loss(ax, data)
    assert ax.get_ylim()[0] <= -0.75


def test_loss_takes_all_of_several_lines_in(ax):
    data = dataset()
    for factor in (3.0, 1.0):
        plotting.loss(ax, data.assign(risk=factor * data["risk"]))
    low, high = ax.get_ylim()
    assert low == 0 and 6.0 < high < 7.0


def test_log_risk_and_radius(ax):
    data = dataset()
    plotting.log_risk(ax, data)
    plotting.radius(ax, data)
    log_risk, radius = lines(ax)
    np.testing.assert_array_equal(log_risk, data["log_risk"])
    np.testing.assert_array_equal(radius, data["log_radius"])
    assert ax.get_yscale() == "linear"


def test_radius_needs_an_escape_flow(ax):
    with pytest.raises(ValueError, match="no log_radius: it is of no EscapeFlow"):
        plotting.radius(ax, dataset().drop_vars("log_radius"))


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_singular_values(ax, layer):
    data = dataset()
    plotting.singular_values(ax, data, layer)
    drawn = lines(ax)
    np.testing.assert_array_equal(
        np.stack(drawn, axis=1), data["singular_values"][:, layer - 1]
    )
    assert ax.get_title() == f"$W_{{{layer}}}$"
    assert ax.get_ylim()[0] == 0


def test_singular_values_beyond_the_smaller_side_are_none(ax):
    data = dataset()
    data["singular_values"][:, 1, 3:] = 0.0
    plotting.singular_values(ax, data, 2)
    assert [line.get_label() for line in ax.lines] == [
        rf"$\sigma_{{{i}}}$" for i in (1, 2, 3)
    ]


@pytest.mark.parametrize("layer", [0, 4, -1])
def test_singular_values_of_a_layer_that_is_not_there(ax, layer):
    with pytest.raises(ValueError, match=rf"layer={layer}.* 1 to 3"):
        plotting.singular_values(ax, dataset(), layer)


def test_escape_speed(ax):
    data = dataset()
    plotting.escape_speed(ax, data)
    (speed,) = lines(ax)
    np.testing.assert_array_equal(speed, data["escape_speed"])


@pytest.mark.parametrize("depth", [2, 3, 13])
def test_balance_drift(ax, depth):
    """One line a hidden layer, in their order."""
    data = dataset(depth=depth)
    plotting.balance_drift(ax, data)
    largest = np.max(np.sum(data["layer_norms"].values ** 2, axis=1))
    drawn = lines(ax)
    assert len(drawn) == depth - 1
    for layer, drift in enumerate(drawn, 1):
        balance = data[f"neuron_balance_{layer}"].values
        expected = [max(abs(row - balance[0])) / largest for row in balance[1:]]
        np.testing.assert_allclose(drift, expected, rtol=1e-14)
    assert [line.get_label() for line in ax.lines] == [
        f"layer {layer}" for layer in range(1, depth)
    ]
    assert ax.get_yscale() == "log"


def test_balance_drift_without_hidden_layers(ax):
    plotting.balance_drift(ax, dataset(depth=1))
    assert lines(ax) == []


def test_stable_rank(ax):
    data = dataset()
    plotting.stable_rank(ax, data)
    np.testing.assert_array_equal(np.stack(lines(ax), axis=1), data["stable_rank"])
    assert [line.get_label() for line in ax.lines] == ["$W_{1}$", "$W_{2}$", "$W_{3}$"]


def test_zoom_starts_a_margin_before_the_change(ax):
    data = dataset()
    data["risk"] = ("save", np.array([2.0, 1.9999, 0.5, 0.25]))
    plotting.loss(ax, data)
    plotting.zoom_on_change(ax, data, margin=0.25)
    assert ax.get_xlim() == (1.75, 3.0)


def test_zoom_never_starts_before_the_start(ax):
    plotting.loss(ax, dataset())
    plotting.zoom_on_change(ax, dataset(), margin=10.0)
    assert ax.get_xlim() == (0.0, 3.0)


def test_zoom_leaves_a_constant_alone(ax):
    data = dataset()
    data["risk"] = ("save", np.ones(4))
    plotting.loss(ax, data)
    before = ax.get_xlim()
    plotting.zoom_on_change(ax, data)
    assert ax.get_xlim() == before


@pytest.mark.parametrize(("clock", "symbol"), [("t", "$t$"), ("tau", r"$\tau$")])
@pytest.mark.parametrize("name", [name for name in NEEDS if name != "zoom_on_change"])
def test_time_axis_names_the_clock(ax, name, clock, symbol):
    draw, _ = NEEDS[name]
    draw(ax, dataset(clock))
    assert ax.get_xlabel() == symbol


MISSING = [(name, record) for name, (_, records) in NEEDS.items() for record in records]


@pytest.mark.parametrize(("name", "record"), MISSING)
def test_missing_record_is_named(ax, name, record):
    draw, _ = NEEDS[name]
    data = dataset()
    data = data.drop_vars([v for v in data.variables if str(v).startswith(record)])
    message = (
        rf"no record '{record}'; pass record={{'{record}': gf\.diagnostics\.{record}}}"
    )
    with pytest.raises(ValueError, match=message):
        draw(ax, data)


def test_draws_what_a_trajectory_gives(ax):
    """The names and dims drawn here are those of `to_xarray`."""
    record = {
        name: getattr(gf.diagnostics, name)
        for name in {record for _, records in NEEDS.values() for record in records}
    }
    problem = gf.Problem(gf.data.circle(4), gf.losses.squared)
    net = gf.nets.MLP([2, 3, 4, 1], key=jax.random.key(0))
    traj = gf.descend(problem, net, 0.01, 4, save_every=1, record=record)
    for draw, _ in NEEDS.values():
        ax.clear()
        draw(ax, traj.to_xarray())
    assert len(traj.ts) == 5


def test_draws_on_the_axes_given_and_nowhere_else(ax):
    other = ax.figure.add_subplot()
    for draw, _ in NEEDS.values():
        draw(ax, dataset())
    assert ax.lines and not other.lines


def test_pyplot_stays_out():
    assert "matplotlib.pyplot" not in sys.modules


# Labels


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


def extents(figure, texts):
    """The boxes of texts as they are drawn, in pixels."""
    FigureCanvasAgg(figure).draw()
    return [text.get_window_extent() for text in texts]


def apart(figure, texts) -> bool:
    boxes = extents(figure, texts)
    # The letters, without the leading of a line.
    return not any(
        a.y0 + 1 < b.y1 - 1 and b.y0 + 1 < a.y1 - 1 and a.x0 < b.x1 and b.x0 < a.x1
        for a, b in itertools.combinations(boxes, 2)
    )


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


# Style


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


# All of a trajectory


PROBLEM = gf.Problem(gf.data.rank_one(6, 3, key=jax.random.key(0)), gf.losses.squared)


def linear_net(scale: float = 1e-3, dtype: Any = None, seed: int = 1) -> gf.nets.MLP:
    """A deep linear net: its flow is smooth, and quickly solved."""
    net = gf.nets.MLP(
        [3, 4, 4, 1], key=jax.random.key(seed), activation="identity", dtype=dtype
    )
    return gf.nets.scaled_to_norm(net, jnp.asarray(scale, net.weights[0].dtype))


TS = np.linspace(0.0, 12.0, 40)


def solve(flow, net, **options):
    return gf.solve(flow, net, **{"ts": TS, "solver": gf.solvers.Adaptive()} | options)


@pytest.fixture(scope="module")
def escaped():
    record = {"risk": gf.diagnostics.risk, "escape_speed": gf.diagnostics.escape_speed}
    return solve(gf.EscapeFlow(PROBLEM), linear_net(), record=record)


def axes_by_title(figure) -> dict[str, Axes]:
    axes = [ax for half in (figure.subfigs or [figure]) for ax in half.axes]
    return {ax.get_title(): ax for ax in axes if ax.axison}


def ordinates(line) -> np.ndarray:
    return np.asarray(line.get_ydata(), float)


def only_line(ax) -> tuple[np.ndarray, np.ndarray]:
    (line,) = ax.lines
    return np.asarray(line.get_xdata()), ordinates(line)


def singular_values_by_numpy(net, layer):
    return np.linalg.svd(np.asarray(net.weights[layer - 1]), compute_uv=False)


def test_plot_of_an_escape(escaped):
    """Lines are the records, or what NumPy finds in the saved nets."""
    before = dict(matplotlib.rcParams)
    figure = gf.plot(escaped)
    assert dict(matplotlib.rcParams) == before
    axes = axes_by_title(figure)
    titles = ["Loss", "Radius", "Escape speed", "Stable rank"]
    assert list(axes) == [*titles, "$W_{1}$", "$W_{2}$", "$W_{3}$"]
    for title, expected in (
        ("Loss", escaped.records["risk"]),
        ("Radius", escaped.log_radius),
        ("Escape speed", escaped.records["escape_speed"]),
    ):
        x, y = only_line(axes[title])
        np.testing.assert_array_equal(x, TS)
        np.testing.assert_array_equal(y, expected)
    assert axes["Radius"].get_yscale() == "linear"
    for layer in (1, 2, 3):
        found = singular_values_by_numpy(escaped.direction, layer)
        drawn = [ordinates(line) for line in axes[f"$W_{{{layer}}}$"].lines]
        np.testing.assert_allclose(np.transpose(drawn), found, atol=1e-12)
        ranks = np.sum(found**2, axis=1) / found[:, 0] ** 2
        y = ordinates(axes["Stable rank"].lines[layer - 1])
        np.testing.assert_allclose(y, ranks, rtol=1e-10)
    labels = axes["Stable rank"].texts
    assert [text.get_text() for text in labels] == ["$W_{1}$", "$W_{2}$", "$W_{3}$"]
    assert apart(figure, labels)
    assert figure.get_suptitle() == ""
    caption = gf.plotting.caption(escaped)
    assert figure.get_supxlabel().replace("\n", " ") == caption
    # It is drawn inside its figure.
    FigureCanvasAgg(figure).draw()
    (below,) = [text for text in figure.texts if text.get_text().startswith("Escape flow")]
    for text in [*labels, below]:
        box = text.get_window_extent()
        assert 0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0


def test_plot_measures_what_was_not_recorded(escaped):
    bare = eqx.tree_at(lambda t: t.records, escaped, {})
    axes, recorded = axes_by_title(gf.plot(bare)), axes_by_title(gf.plot(escaped))
    for title in ("Loss", "Escape speed"):
        np.testing.assert_allclose(
            only_line(axes[title])[1], only_line(recorded[title])[1], rtol=1e-10
        )


def test_plot_of_a_norm_below_underflow(escaped):
    """θ is 0 in floating point, ρ is not."""
    tiny = eqx.tree_at(
        lambda t: t.positions.log_radius, escaped, escaped.log_radius - 1000.0
    )
    axes = axes_by_title(gf.plot(eqx.tree_at(lambda t: t.records, tiny, {})))
    recorded = axes_by_title(gf.plot(escaped))
    for title in ("Escape speed", "Stable rank", "$W_{2}$"):
        for line, other in zip(axes[title].lines, recorded[title].lines, strict=True):
            np.testing.assert_allclose(ordinates(line), ordinates(other), atol=1e-10)
    assert "‖θ(0)‖ = " in gf.plotting.caption(tiny)
    exponent = (float(tiny.log_radius[0]) + 0.5 * math.log(3)) / math.log(10)
    mantissa = 10 ** (exponent - math.floor(exponent))
    expected = f"‖θ(0)‖ = {mantissa:.3g}e{math.floor(exponent)}"
    assert expected in gf.plotting.caption(tiny)


@pytest.mark.parametrize("clock", ["physical", "loss", "arc"])
def test_plot_of_a_gradient_flow(clock):
    problem = gf.Problem(
        gf.Dataset(PROBLEM.data.x, jnp.ones((6, 1))), gf.losses.exponential
    )
    flow = gf.GradientFlow(problem, clock=clock)
    traj = solve(flow, linear_net(0.5), ts=np.linspace(0.0, 4.0, 30))
    axes = axes_by_title(gf.plot(traj))
    risk = jax.vmap(problem.risk)(traj.net)
    if clock == "physical":
        assert list(axes)[:3] == ["Loss", "Norm", "Stable rank"]
        np.testing.assert_allclose(only_line(axes["Loss"])[1], risk, rtol=1e-12)
    else:
        assert list(axes)[:3] == ["Log loss", "Norm", "Stable rank"]
        np.testing.assert_allclose(only_line(axes["Log loss"])[1], np.log(risk), rtol=1e-9)
    squares = [np.sum(np.asarray(w) ** 2, axis=(1, 2)) for w in traj.net.weights]
    np.testing.assert_allclose(only_line(axes["Norm"])[1], np.sqrt(np.sum(squares, axis=0)))
    symbols = {ax.get_xlabel() for ax in axes.values()}
    assert symbols == {"$t$" if clock == "physical" else r"$\tau$"}


def test_plot_in_the_log_where_the_norm_grows_far():
    traj = solve(gf.GradientFlow(PROBLEM), linear_net(0.01), t1=None, ts=TS)
    grown = jax.tree.map(
        lambda w: w * jnp.geomspace(1e-4, 1.0, len(TS)).reshape(-1, 1, 1), traj.positions
    )
    axes = axes_by_title(gf.plot(eqx.tree_at(lambda t: t.positions, traj, grown)))
    assert axes["Norm"].get_yscale() == axes["$W_{2}$"].get_yscale() == "log"
    assert axes["Loss"].get_yscale() == "linear"
    top = ordinates(axes["$W_{2}$"].lines[0])
    low, high = axes["$W_{2}$"].get_ylim()
    assert low < top.min() and top.max() < high


def test_plot_says_that_a_solve_failed():
    traj = solve(gf.EscapeFlow(PROBLEM), linear_net(), max_steps=5, throw=False)
    figure = gf.plot(traj)
    assert figure.get_suptitle() == "Failed: max steps reached"
    assert "Failed (max steps reached) at τ = " in gf.plotting.caption(traj)
    x, _ = only_line(axes_by_title(figure)["Radius"])
    np.testing.assert_array_equal(x, traj.ts)


def test_plot_says_that_a_certificate_does_not_hold(escaped):
    doubtful = eqx.tree_at(
        lambda t: t.certificate.energy_residual, escaped, jnp.asarray(0.5)
    )
    assert gf.plot(doubtful).get_suptitle() == "The certificate does not hold"
    assert "5.0e-01, at which the certificate does not" in gf.plotting.caption(doubtful)


@pytest.mark.parametrize(
    ("flow", "name"),
    [
        (gf.flows.MomentumFlow(PROBLEM, 0.5), "Momentum flow, friction 0.5"),
        (gf.flows.SignFlow(PROBLEM), "Sign flow"),
    ],
)
def test_other_flows_are_drawn_by_their_names(flow, name):
    traj = gf.solve(flow, linear_net(0.1), t1=0.05)
    assert name in gf.plotting.caption(traj)
    gf.plot(traj).canvas.draw()


def test_plot_in_single_precision_with_a_stop():
    single = gf.Problem(PROBLEM.data.astype(jnp.float32), gf.losses.squared)
    traj = solve(
        gf.EscapeFlow(single),
        linear_net(0.1, jnp.float32),
        t1=jnp.inf,
        ts=gf.AcceptedSteps(64),
        stop=gf.stopping.RadiusAbove(0.4),
    )
    assert traj.stopped_by is not None
    axes = axes_by_title(gf.plot(traj))
    assert len(axes) == 7
    assert len(only_line(axes["Loss"])[0]) == len(traj.ts)
    end = f"float32. Stopped by {traj.stopped_by} at τ = {float(traj.final_time):.4g}; "
    assert end in gf.plotting.caption(traj)


class Squares(eqx.Module):
    """A model of no layers that are known."""

    first: jax.Array
    second: jax.Array

    def __call__(self, x):
        return self.second @ (self.first @ x) ** 2


def test_plot_of_a_wrapped_model():
    net = gf.nets.wrap(Squares(0.3 * jnp.ones((2, 3)), 0.1 * jnp.ones((1, 2))))
    traj = solve(gf.GradientFlow(PROBLEM), net, ts=np.linspace(0.0, 1.0, 5))
    assert list(axes_by_title(gf.plot(traj))) == ["Loss", "Norm"]
    assert "Wrapped of 8 parameters" in gf.plotting.caption(traj)
    with pytest.raises(ValueError, match=r"layers=\(1,\).*wrapped as it is"):
        gf.plot(traj, layers=[1])


def test_plot_of_a_localized_flow():
    """Its risk is L₀(ρ), the escape speed but for a sign."""
    traj = solve(gf.EscapeFlow(PROBLEM, localized=True), linear_net())
    axes = axes_by_title(gf.plot(traj, layers=()))
    assert list(axes) == ["Radius", "Escape speed"]
    end = only_line(axes["Escape speed"])[1][-1]
    assert end == pytest.approx(-float(traj.final_risk), rel=1e-9)


def test_plot_of_a_descent():
    net = gf.nets.MLP([3, 4, 1], key=jax.random.key(0))
    traj = gf.descend(PROBLEM, net, 0.1, 20, save_every=1)
    figure = gf.plot(traj)
    assert list(axes_by_title(figure))[:2] == ["Loss", "Norm"]
    assert gf.plotting.caption(traj).startswith("Gradient descent in t, ReLU MLP 3–4–1, ")


@pytest.fixture(scope="module")
def lanes():
    def run(key):
        net = gf.nets.MLP([3, 4, 4, 1], key=key, activation="identity")
        net = gf.nets.scaled_to_norm(net, jnp.asarray(1e-2))
        return solve(gf.EscapeFlow(PROBLEM), net, max_steps=57, throw=False)

    return jax.vmap(run)(jax.random.split(jax.random.key(3), 5))


def test_plot_of_a_batch(lanes):
    figure = gf.plot(lanes)
    axes = axes_by_title(figure)
    assert list(axes) == ["Loss", "Radius", "Escape speed"]
    for i, line in enumerate(axes["Radius"].lines):
        reached = np.isfinite(lanes.ts[i])
        np.testing.assert_array_equal(
            ordinates(line), lanes.positions.log_radius[i][reached]
        )
        assert (line.get_alpha() or 1.0) < 1
    assert len(axes["Radius"].lines) == len(axes["Loss"].lines) == 5
    assert [text.get_text() for text in axes["Loss"].texts] == ["5 lanes"]
    assert np.sum(lanes.final_time < 12.0) == 1
    assert figure.get_suptitle() == "1 of 5 lanes failed: max steps reached"
    ends = "5 lanes: 4 reached the final time, 1 failed (max steps reached); "
    assert ends in gf.plotting.caption(lanes)
    with pytest.raises(ValueError, match=r"layers=\(2,\): a batch"):
        gf.plot(lanes, layers=[2])
    square = jax.tree.map(lambda a: jnp.stack([a, a]), lanes)
    twice = axes_by_title(gf.plot(square))
    assert [text.get_text() for text in twice["Loss"].texts] == ["10 lanes"]


def test_plot_marks_the_saves_of_a_jump(escaped):
    """A dense line has no marks; of a coarse one those at both ends of each jump."""
    times = np.concatenate([TS, [20.0]])
    steps = np.concatenate([np.zeros(20), np.ones(21)])

    def drawn(values):
        with plotting.style():
            ax: Any = Figure().subplots()
            ax.plot(times, values)
            plotting._overview._mark_jumps(ax)
            return ax.lines[0]

    assert drawn(np.linspace(0.0, 1.0, 41)).get_marker() == "None"
    line = drawn(steps)
    assert line.get_marker() == "o" and line.get_markevery() == [19, 20]


def test_plot_leaves_out_a_long_wait(escaped):
    """Of a gradient flow in t; in an escape flow the direction converges meanwhile."""
    times = np.linspace(0.0, 100.0, 101)
    risk = np.where(times < 80, 1.0, 1.0 - (times - 80) / 21)
    flow = xr.Dataset({"risk": ("save", risk)}, coords={"t": ("save", times)})

    def limits(data, keep_wait):
        axes = [Figure().subplots(), Figure().subplots()]
        for ax in axes:
            ax.plot(data["t"], data["risk"])
        plotting._overview._limit_times(axes, [data], keep_wait)
        assert axes[0].get_xlim() == axes[1].get_xlim()
        return axes[0].get_xlim(), axes[0].get_xscale()

    # The fall is seen at t = 81, with 0.15 of what follows before it.
    assert limits(flow, False) == (pytest.approx((81 - 0.15 * 19, 100)), "linear")
    assert limits(flow, True) == (pytest.approx((-5, 105)), "linear")
    # Most steps early: time in the log, from the first step on.
    early = flow.assign_coords(t=("save", 1e-4 * times**3))
    assert limits(early, False)[1] == "linear"
    early = flow.assign_coords(t=("save", 1e-6 * times**4))
    assert limits(early, True) == (pytest.approx((1e-2, 100.0)), "log")
    # The risk falls at once, though saves go on evenly.
    ax: Any = Figure().subplots()
    ax.plot(flow["t"][5:], flow["risk"][5:])
    ax.set_xlim(15.0, 400.0)
    log_axis(ax, "x")
    FigureCanvasAgg(ax.figure).draw()
    texts = [*ax.get_xticklabels(minor=True), *ax.get_xticklabels()]
    shown = {t.get_text() for t in texts if 15 <= t.get_position()[0] <= 400} - {""}
    assert shown == {"20", "50", "100", "200"}
    at_once = flow.assign(risk=("save", np.exp(-times)))
    assert limits(at_once, False) == (pytest.approx((1.0, 100.0)), "log")
    assert limits(at_once, True)[1] == "linear"
    still = flow.assign(risk=("save", np.ones(101)))
    assert limits(still, False)[1] == "linear"


def test_plot_of_chosen_layers_in_one_column(escaped):
    figure = gf.plot(escaped, layers=[3, 1], width=plotting.ONE_COLUMN, caption=False)
    axes = axes_by_title(figure)
    assert list(axes)[-2:] == ["$W_{3}$", "$W_{1}$"] and len(axes) == 6
    assert figure.get_size_inches()[0] == plotting.ONE_COLUMN
    assert figure.get_supxlabel() == ""
    found = singular_values_by_numpy(escaped.direction, 3)
    np.testing.assert_allclose(ordinates(axes["$W_{3}$"].lines[0]), found[:, 0])


@pytest.mark.parametrize("layers", [[0], [4], [1, -1]])
def test_plot_of_layers_that_are_not_there(escaped, layers):
    with pytest.raises(ValueError, match=rf"layers=.*{layers[-1]} is no layer.*1 to 3"):
        gf.plot(escaped, layers=layers)


def test_plot_of_wrong_arguments(escaped, unhooked):
    wrong: Any = escaped.to_xarray()
    with pytest.raises(TypeError, match=r"traj must be a gf\.Trajectory, got Dataset"):
        gf.plot(wrong)
    for width in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"width={width} must be positive, in inches"):
            gf.plot(escaped, width=width)


def test_at_most_eight_layers_are_drawn():
    data = dataset(depth=13)
    chosen = plotting._overview._layers(data, None)
    assert chosen[0] == 1 and chosen[-1] == 13 and len(chosen) == len(set(chosen)) == 8
    assert plotting._overview._layers(dataset(depth=3), None) == [1, 2, 3]
