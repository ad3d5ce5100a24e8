"""Plateaus and escapes, against curves and nets whose course is known in closed form."""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.optimize import brentq

import gfdyn as gf
from gfdyn import plotting
from gfdyn.escape.episodes._onset import onset
from gfdyn.escape.episodes._segmentation import at, rests
from gfdyn.nets import scaled_to_norm


CORNERS = np.array([0.0, 10.0, 11.0, 21.0, 22.0, 32.0])
LEVELS = np.array([1.0, 0.99, 0.5, 0.49, 0.01, 0.0])
# By hand: each band of height 0.02 holds a flat part of height 0.01, and a further 0.01
# of whichever steep part is the slower.
RESTS = [(0.0, 10 + 1 / 49), (11.0, 21 + 1 / 48), (22 - 1 / 48, 32.0)]


def spans(curve: np.ndarray, times: np.ndarray, contrast: float = 10.0) -> np.ndarray:
    """Start and end of each plateau, in time; (K, 2)."""
    found = rests(curve, times, 0.02, contrast)
    return at(times, np.array(found).reshape(-1)).reshape(-1, 2)


class TestCurves:
    @pytest.mark.parametrize("saves", [0, 7, 300])
    def test_corners(self, saves):
        rng = np.random.default_rng(saves)
        times = np.sort(np.concatenate([CORNERS, rng.uniform(0, 32, saves)]))
        curve = np.interp(times, CORNERS, LEVELS)
        np.testing.assert_allclose(spans(curve, times), RESTS, atol=1e-12)

    @pytest.mark.parametrize(("unit", "scale", "shift"), [(1e9, 1e-7, 5e-7), (1e-5, 3, -9)])
    def test_units(self, unit, scale, shift):
        found = spans(shift + scale * LEVELS, unit * CORNERS + 4 * unit)
        np.testing.assert_allclose(found / unit - 4, RESTS, atol=1e-9)

    @pytest.mark.parametrize("saves", [60, 2000])
    @pytest.mark.parametrize("noise", [0.0, 1e-3])
    def test_logistic_steps(self, saves, noise):
        rng = np.random.default_rng(saves)
        times = np.sort(rng.uniform(0, 200, saves))
        steps = ((30, 1.0, 1.0), (80, 0.5, 0.7), (140, 0.2, 2.0))
        curve = sum(a / (1 + np.exp(rate * (times - t))) for t, a, rate in steps)
        curve = curve + noise * rng.normal(size=saves)
        found = rests(curve, times, 0.02, 10.0)
        losses = [np.median(curve[math.ceil(s.start) : int(s.end) + 1]) for s in found]
        np.testing.assert_allclose(losses, [1.7, 0.7, 0.2, 0.0], atol=0.01)
        ends = at(times, np.array(found).reshape(-1))[1:-1].reshape(-1, 2)
        gap = np.diff(times).max()
        for (end, start), (t, _, rate) in zip(ends, steps, strict=True):
            assert t - 5 / rate - gap < end < t < start < t + 5 / rate + gap
        if not noise:
            level = np.interp(np.array(found).reshape(-1), np.arange(saves), curve)
            fallen = level[::2] - level[1::2]
            np.testing.assert_allclose(fallen, 0.02 * (curve[0] - curve[-1]), rtol=1e-9)

    def test_what_is_no_plateau(self):
        times = np.linspace(0.0, 30.0, 400)
        assert rests(1 - times / 30, times, 0.02, 10.0) == []
        # Approach to a minimum: one, at the end; also where it is slow.
        for curve in (np.exp(-times), 1 / (1 + times)):
            ((start, end),) = rests(curve, times, 0.02, 10.0)
            assert end == 399
            level = np.interp(start, np.arange(400), curve)
            assert level == pytest.approx(curve[-1] + 0.02 * (1 - curve[-1]), rel=1e-6)
        assert rests(np.full(400, 3.0), times, 0.02, 10.0) == [(0.0, 399.0)]

    def test_contrast_is_the_ratio_of_times(self):
        """Some 10 of 32 pass within 2 %, in the steep parts 0.02/0.49 and 0.02/0.48."""
        first, second = ((10 + 1 / s) / (2 / s) for s in (49, 48))
        assert len(spans(LEVELS, CORNERS, 0.99 * second)) == 3
        assert len(spans(LEVELS, CORNERS, 0.5 * (first + second))) == 2
        assert len(spans(LEVELS, CORNERS, 1.01 * first)) == 0

    def test_log_time_starts_at_minus_infinity(self):
        times = np.array([-np.inf, 1.0, 2.0, 2.1, 5.0])
        found = spans(np.array([1.0, 1.0, 0.99, 0.01, 0.0]), times)
        np.testing.assert_allclose(found[:, 0], [-np.inf, 2.1 - 1 / 98 * 0.1])
        np.testing.assert_allclose(found[:, 1], [2 + 1 / 98 * 0.1, 5.0])
        # Half the time that has passed at log t = 1.
        assert at(times, np.array([0.5]))[0] == pytest.approx(1 + math.log(0.5))


class TestOnset:
    @pytest.mark.parametrize("depth", [2, 3, 6])
    @pytest.mark.parametrize("missed", [0.0, 2e-3])
    def test_scalar_chain(self, depth, missed):
        """f = a^L x to fit σ: risk (σ − a^L)²/2 is left at degree L with speed σ."""
        sigma, product = 1.7, np.geomspace(1e-4, 1.6, 90)
        risk = 0.5 * (sigma - product) ** 2
        gradient = math.sqrt(depth) * product ** (1 - 1 / depth) * (sigma - product)
        # The save nearest to the saddle is not at it.
        risk[0] = 0.5 * sigma**2 * (1 - missed)
        found = onset(depth, risk, gradient)
        assert found.speed == pytest.approx(sigma, rel=3e-3)
        assert found.degree == pytest.approx(depth, rel=5e-3)

    def test_unresolved(self):
        risk = np.array([1.0, 0.95, 0.5, 0.0])
        found = onset(2, risk, np.array([0.0, 1.0, 2.0, 0.1]))
        assert math.isnan(found.speed) and math.isnan(found.degree)
        assert math.isnan(onset(2, np.ones(9), np.arange(9.0)).speed), "it does not fall"


SIGMA = np.array([3.0, 2.0, 1.2])
LOSSES = 0.5 * np.array([np.sum(SIGMA[k:] ** 2) for k in range(4)])


def modes(log_scale: float, t: np.ndarray) -> np.ndarray:
    """a_k² of a balanced linear net of two layers, from a_k = e^log_scale; (T, 3)."""
    growth = np.exp(2 * log_scale + 2 * SIGMA * np.minimum(t, 90.0)[:, None])
    return SIGMA * growth / (SIGMA - math.exp(2 * log_scale) + growth)


def loss_at(log_scale: float, t: np.ndarray) -> np.ndarray:
    return 0.5 * np.sum((SIGMA - modes(log_scale, t)) ** 2, axis=1)


@pytest.fixture(scope="module")
def factors() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = ((3, 3), (5, 3), (4, 3))
    return [np.linalg.qr(rng.normal(size=shape))[0] for shape in shapes]


@pytest.fixture(scope="module")
def linear(factors) -> gf.Problem:
    """Y = X A, A of singular values σ, on inputs X = I."""
    u, _, v = factors
    data = gf.Dataset(jnp.eye(4), jnp.asarray(v @ np.diag(SIGMA) @ u.T))
    return gf.Problem(data, gf.losses.squared, reduction="sum")


def along_singular_directions(factors: list[np.ndarray], log_scale: float) -> gf.nets.MLP:
    u, hidden, v = factors
    weights = [math.exp(log_scale) * m for m in (hidden @ v.T, u @ hidden.T)]
    return gf.nets.MLP.from_weights([jnp.asarray(w) for w in weights], "identity")


@pytest.fixture(scope="module")
def staircase(linear, factors) -> gf.Trajectory:
    return gf.solve(
        gf.EscapeFlow(linear),
        along_singular_directions(factors, -28.0),
        60.0,
        ts=gf.AcceptedSteps(1024),
        record={"risk": gf.diagnostics.risk},
        solver=gf.solvers.Adaptive(rtol=1e-8, atol=1e-10),
    )


class TestLinearNet:
    def test_plateaus(self, staircase):
        found = gf.escape.episodes(staircase).plateaus
        np.testing.assert_allclose(found.loss, LOSSES, atol=2e-5)
        np.testing.assert_array_equal(found.ranks, [[k, k] for k in range(4)])
        np.testing.assert_array_equal(found.bottleneck_rank, range(4))
        np.testing.assert_array_equal(found.nonlinearity, np.zeros((4, 1)))
        t = np.linspace(0, 60, 60_001)
        truth = spans(loss_at(-28.0, t), t)
        # To the distance of the saves: risk is interpolated linearly between them.
        np.testing.assert_allclose(found.start, truth[:, 0], atol=0.1)
        np.testing.assert_allclose(found.end, truth[:, 1], atol=0.1)
        # For L = 2 τ is physical time.
        np.testing.assert_allclose(found.log_end, np.log(found.end), atol=1e-3)
        assert found.log_start[0] == -np.inf

    def test_escapes(self, staircase):
        found = gf.escape.episodes(staircase)
        escapes, plateaus = found.escapes, found.plateaus
        np.testing.assert_allclose(escapes.speed, SIGMA, rtol=1e-3)
        np.testing.assert_allclose(escapes.degree, 2.0, rtol=3e-3)
        np.testing.assert_allclose(escapes.fall, SIGMA**2 / 2, atol=3e-5)
        np.testing.assert_array_equal(escapes.plateau, [0, 1, 2])
        np.testing.assert_array_equal(escapes.start, plateaus.end[:-1])
        np.testing.assert_array_equal(escapes.end, plateaus.start[1:])

    def test_log_time(self, staircase):
        found = gf.escape.episodes(staircase, axis="log_time").plateaus
        np.testing.assert_allclose(found.loss, LOSSES, atol=2e-5)
        np.testing.assert_array_equal(found.bottleneck_rank, range(4))

    def test_lengths_in_log_time_converge(self):
        """To log σ₁/σ₂ and log σ₂/σ₃ as the scale falls."""
        errors = []
        for log_scale in (-15.0, -150.0, -1500.0):
            middle = np.log(-log_scale / SIGMA)[:, None]
            width = np.linspace(-30, 30, 20_001) / -log_scale
            log_t = np.unique(np.concatenate([middle + width, [[-9.0] * 20_001]]))
            growth = 2 * log_scale + 2 * SIGMA * np.exp(log_t)[:, None]
            part = 1 / (1 + np.exp(-np.clip(growth, -600, 600)))
            curve = 0.5 * np.sum((SIGMA * (1 - part)) ** 2, axis=1)
            inner = spans(curve, log_t)[1:3]
            lengths = inner[:, 1] - inner[:, 0]
            errors.append(np.abs(lengths - np.log(SIGMA[:2] / SIGMA[1:])).max())
        assert errors[0] > 0.1 > errors[1] > 8 * errors[2]

    def test_descent(self, linear, factors):
        net = along_singular_directions(factors, -14.0)
        trajectory = gf.descend(linear, net, 0.01, 4000, save_every=8)
        found = gf.escape.episodes(trajectory)
        assert found.clock_name == "t"
        np.testing.assert_allclose(found.plateaus.loss, LOSSES, atol=0.01)
        np.testing.assert_array_equal(found.plateaus.bottleneck_rank, range(4))
        # From a = e^-14 the second plateau is short, and mode 1 still settling.
        assert found.escapes.speed[0] == pytest.approx(3.0, rel=0.01)
        middles = 0.5 * found.escapes.start + 0.5 * found.escapes.end
        np.testing.assert_allclose(middles, (14 + 0.5 * np.log(SIGMA)) / SIGMA, rtol=0.05)

    def test_start_amid_an_escape(self, linear, factors):
        net = along_singular_directions(factors, 0.0)
        found = gf.escape.episodes(gf.descend(linear, net, 0.01, 4000, save_every=8))
        escapes, plateaus = found.escapes, found.plateaus
        assert escapes.plateau[0] == -1 and escapes.start[0] == 0.0
        assert np.isnan(escapes.speed[0]) and np.isnan(escapes.degree[0])
        assert plateaus.bottleneck_rank[-1] == 3
        assert escapes.fall.sum() == pytest.approx(loss_at(0.0, np.zeros(1))[0])
        assert "not resolved by the saves" in found.summary()

    def test_single_precision(self, staircase):
        single = jax.tree.map(
            lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, staircase
        )
        found = gf.escape.episodes(single)
        np.testing.assert_allclose(found.plateaus.loss, LOSSES, atol=2e-5)
        np.testing.assert_allclose(found.escapes.speed, SIGMA, rtol=3e-3)
        np.testing.assert_array_equal(found.plateaus.bottleneck_rank, range(4))
        for part in (found.plateaus, found.escapes):
            for leaf in jax.tree.leaves(part):
                assert leaf.dtype in (np.float32, np.int32, np.int64)

    def test_summary(self, staircase):
        lines = gf.escape.episodes(staircase).summary().splitlines()
        assert "tau from" in lines[0] and len(lines) == 8
        kinds = [line.split()[0] for line in lines[1:]]
        assert kinds == ["plateau", "escape"] * 3 + ["plateau"]
        assert "loss 2.7199" in lines[3] and "ranks 1 1, bottleneck 1" in lines[3]
        assert "speed 2" in lines[4]

    def test_figure(self, staircase):
        found, ax = gf.escape.episodes(staircase), Figure().subplots()
        plotting.episodes(ax, staircase.to_xarray(), found)
        spans = [(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches]  # pyright: ignore
        np.testing.assert_allclose(
            spans, np.stack([found.plateaus.start, found.plateaus.end], axis=1)
        )
        assert [text.get_text() for text in ax.texts] == ["0", "1", "2", "3"]

    def test_aligned_nets(self, staircase):
        levels = np.array([5.0, 3.0, 2.0, 1.0, 0.4])
        times = [
            brentq(lambda t, v=v: loss_at(-28.0, np.array([t]))[0] - v, 0, 40)
            for v in levels
        ]
        first, last = gf.escape.aligned(staircase, levels).weights
        singular = jnp.linalg.svd(last @ first, compute_uv=False)[:, :3]
        np.testing.assert_allclose(singular, modes(-28.0, np.array(times)), atol=2e-4)


DEPTH = 3
LOG_SCALES = (-200.0, -30.0, -10.0, -3.0, -1.0)


@pytest.fixture(scope="module")
def after_the_first_escape() -> list[gf.Trajectory]:
    """One direction at ever larger scale, until the second plateau."""
    data = gf.data.teacher(12, [3, 3, 1], key=jax.random.key(0))
    net = gf.nets.MLP([3, 4, 4, 1], key=jax.random.key(10))
    return [
        gf.solve(
            gf.EscapeFlow(gf.Problem(data, gf.losses.squared)),
            scaled_to_norm(net, jnp.asarray(math.sqrt(DEPTH) * math.exp(log_scale))),
            math.inf,
            ts=gf.AcceptedSteps(1024),
            solver=gf.solvers.ExactKinks(rtol=1e-7, atol=1e-9),
            stop=gf.stopping.NextPlateau(1e-2),
        )
        for log_scale in LOG_SCALES
    ]


class TestScaleOfInitialisation:
    def test_trajectories_converge(self, after_the_first_escape):
        """The full loss, aligned at the same risk from 90 % to 10 % of the first fall."""
        ends = after_the_first_escape[0]
        top, bottom = float(ends.initial_risk), float(ends.final_risk)
        levels = bottom + np.linspace(0.9, 0.1, 9) * (top - bottom)
        nets = [gf.escape.aligned(t, levels) for t in after_the_first_escape]
        rows = [
            np.concatenate([np.asarray(w).reshape(9, -1) for w in net.weights], axis=1)
            for net in nets
        ]
        size = np.linalg.norm(rows[0], axis=1)
        apart = [(np.linalg.norm(r - rows[0], axis=1) / size).max() for r in rows[1:]]
        assert apart[0] < 3e-6, "e^-30"
        assert apart[1] < 2e-4, "e^-10"
        assert 0.05 < apart[2] < 0.2 and 0.5 < apart[3] < 1.5, "e^-3, e^-1"

    def test_first_escape(self, after_the_first_escape):
        for trajectory in after_the_first_escape[:2]:
            found = gf.escape.episodes(trajectory)
            np.testing.assert_array_equal(found.plateaus.ranks, [[0] * 3, [1] * 3])
            assert found.plateaus.nonlinearity[1, 1] < 1e-6, "the middle layer is linear"
            # Over the last tenth of the first plateau r grows at the escape speed.
            end = found.plateaus.end[0]
            late = (trajectory.ts > 0.9 * end) & (trajectory.ts < 0.98 * end)
            rate, _ = np.polyfit(trajectory.ts[late], trajectory.log_radius[late], 1)
            assert found.escapes.speed[0] == pytest.approx(rate, rel=3e-3)
            assert found.escapes.degree[0] == pytest.approx(DEPTH, rel=1e-2)


class TestOnKinks:
    """Example 1 of Bantzis et al.: along both of its directions samples stay on kinks. The
    net stays on the ray of ρ, where the risk is least at s²/(2 ‖f_ρ(X)‖²) below 4."""

    def rank_one(self) -> gf.nets.MLP:
        """In the shape of rank two, each neuron at half the weights."""
        first, second, last = gf.escape.circle_rank_one(0.0).weights
        return gf.nets.MLP.from_weights(
            [jnp.tile(first / 2, (4, 1)), jnp.tile(second / 2, (1, 4)), last]
        )

    def test_first_escape(self):
        data = gf.data.circle(8)
        problem = gf.Problem(data, gf.losses.squared, reduction="sum")
        for net, speed, ranks in (
            (self.rank_one(), math.sqrt(2) - 1, [1, 1, 1]),
            (gf.escape.circle_rank_two(), 0.5, [2, 1, 1]),
        ):
            outputs = np.asarray(problem.outputs(net))
            fall = speed**2 / (2 * np.sum(outputs**2))
            trajectory = gf.solve(
                gf.EscapeFlow(problem),
                scaled_to_norm(net, 1e-6),
                60.0,
                ts=gf.AcceptedSteps(128),
                solver=gf.solvers.ExactKinks(rtol=1e-8),
            )
            assert trajectory.stats["num_slides"] > 0
            found = gf.escape.episodes(trajectory)
            np.testing.assert_allclose(found.plateaus.loss, [4, 4 - fall], atol=1e-9)
            np.testing.assert_array_equal(found.plateaus.ranks, [[0, 0, 0], ranks])
            assert found.escapes.speed == pytest.approx([speed], rel=1e-3)
            assert found.escapes.degree == pytest.approx([3.0], rel=1e-3)


class TestErrors:
    def test_options(self, staircase):
        cases: tuple[tuple[dict[str, Any], str], ...] = (
            ({"flatness": 0.0}, r"flatness=0.0 must lie in \(0, 0.5\)"),
            ({"contrast": 1.0}, "contrast=1.0 must be above 1"),
            ({"significance": 1.0}, r"significance=1.0 must lie in \(0, 1\)"),
        )
        for options, message in cases:
            with pytest.raises(ValueError, match=message):
                gf.escape.episodes(staircase, **options)

    def test_arguments_of_the_wrong_kind(self, staircase, unhooked):
        with pytest.raises(ValueError, match="axis='t'; use 'clock' or 'log_time'"):
            gf.escape.episodes(staircase, axis="t")  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="trajectory is a list; give what gf.solve"):
            gf.escape.episodes([1.0])  # pyright: ignore[reportArgumentType]

    def test_trajectories(self, linear, staircase):
        localized = replace(staircase, flow=gf.EscapeFlow(linear, localized=True))
        with pytest.raises(ValueError, match="one of the localized flow"):
            gf.escape.episodes(localized)
        batch = jax.tree.map(lambda leaf: leaf[None], staircase)
        with pytest.raises(ValueError, match=r"a batch of shape \(1,\); take one"):
            gf.escape.episodes(batch)
        with pytest.raises(ValueError, match=r"a batch of shape \(1,\); take one"):
            gf.escape.aligned(batch, [1.0])
        log_radius = staircase.log_radius.at[-3:].set(jnp.inf)
        diverged = eqx.tree_at(lambda t: t.positions.log_radius, staircase, log_radius)
        with pytest.raises(ValueError, match=f"at save {len(log_radius) - 3}: the traj"):
            gf.escape.episodes(diverged)

    def test_risks(self, staircase):
        for levels in ([1.0, 9.0], [1.0, -1.0]):
            with pytest.raises(ValueError, match="risks holds .*its risk goes from 7.22"):
                gf.escape.aligned(staircase, levels)
        with pytest.raises(ValueError, match=r"risks has shape \(\); give a vector"):
            gf.escape.aligned(staircase, 1.0)
