"""What figures of a dataset show: its numbers, on the axes given."""

import sys
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from plotting_cases import TIMES, dataset

import gfdyn as gf
from gfdyn import plotting


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


def test_numbers_of_drawing_are_refused_by_name(ax):
    with pytest.raises(ValueError, match="number=-1 must be an integer of at least 0"):
        plotting.shades(-1)
    with pytest.raises(ValueError, match="fontsize=0.0 must be positive, such as 7"):
        plotting.label_ends(ax, fontsize=0.0)
    with pytest.raises(ValueError, match=r"margin=-0\.5 must be 0 or more: a part of"):
        plotting.zoom_on_change(ax, dataset(), margin=-0.5)


def test_radius_needs_an_escape_flow(ax):
    message = (
        r"no log_radius: it is of no EscapeFlow; integrate one, or .* gf\.plot\(traj\)"
    )
    with pytest.raises(ValueError, match=message):
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
