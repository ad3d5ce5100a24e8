"""`gf.plot`: all of a trajectory in one figure."""

import math
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
from matplotlib.figure import Figure
from plotting_cases import apart, dataset

import gfdyn as gf
from gfdyn import plotting
from gfdyn.plotting._axes import log_axis


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


def line_at(ax, times) -> np.ndarray:
    """The only line at some of its points, those at these times."""
    x, y = only_line(ax)
    found = np.isin(x, times)
    np.testing.assert_array_equal(x[found], times)
    return y[found]


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
        np.testing.assert_array_equal(line_at(axes[title], TS), expected)
    np.testing.assert_array_equal(only_line(axes["Escape speed"])[0], TS)
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
    assert "Adaptive, rtol 1e-06" in caption
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
        np.testing.assert_allclose(line_at(axes["Loss"], traj.ts), risk, rtol=1e-12)
    else:
        assert list(axes)[:3] == ["Log loss", "Norm", "Stable rank"]
        np.testing.assert_allclose(only_line(axes["Log loss"])[1], np.log(risk), rtol=1e-9)
    squares = [np.sum(np.asarray(w) ** 2, axis=(1, 2)) for w in traj.net.weights]
    norms = np.sqrt(np.sum(squares, axis=0))
    np.testing.assert_allclose(line_at(axes["Norm"], traj.ts), norms)
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
    traj: Any = solve(gf.EscapeFlow(PROBLEM), linear_net(), max_steps=5, throw=False)
    figure = gf.plot(traj)
    assert figure.get_suptitle() == "Failed: max steps reached"
    assert "Failed (max steps reached) at τ = " in gf.plotting.caption(traj)
    x, _ = only_line(axes_by_title(figure)["Radius"])
    np.testing.assert_array_equal(x, np.union1d(traj.ts, traj.course.ts))


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
    end = f"float32, Adaptive, rtol 1e-06. Stopped by {traj.stopped_by} at τ = "
    end += f"{float(traj.final_time):.4g}; "
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
    assert "rtol" not in gf.plotting.caption(traj)


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
        at_saves = np.isin(line.get_xdata(), lanes.ts[i][reached])
        np.testing.assert_array_equal(
            ordinates(line)[at_saves], lanes.positions.log_radius[i][reached]
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


def test_caption_of_dense_layers():
    """A net of layers along a graph is named by its widths, as an MLP is."""
    blocks = [gf.nets.dense(4), gf.nets.dense(1, "identity")]
    net = gf.nets.sequential(3, blocks, key=jax.random.key(0))
    traj = gf.descend(PROBLEM, net, 0.01, 2)
    assert "ReLU LayeredNet 3–4–1" in gf.plotting.caption(traj)


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
