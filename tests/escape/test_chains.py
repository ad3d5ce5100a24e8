"""Whole chains of saddles, against closed forms and SciPy."""

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import gfdyn as gf


STRENGTHS = np.array([3.0, 2.0, 0.8])
# Risks of the squared loss, ½ of the strengths that are not learned, squared and summed.
RISKS = [0.5 * np.sum(STRENGTHS[k:] ** 2) for k in range(4)]
LARGEST, SMALLEST = math.log(1e-2), -200.0


def white(strengths: np.ndarray = STRENGTHS) -> gf.Problem:
    """Inputs with XᵀX/N = I, of a linear teacher of these strengths."""
    rng = np.random.default_rng(0)
    x = math.sqrt(12) * np.linalg.qr(rng.normal(size=(12, 4)))[0]
    u, v = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (3, 4))
    y = x @ v[:3].T @ np.diag(strengths) @ u.T
    return gf.Problem(gf.Dataset(jnp.asarray(x), jnp.asarray(y)), gf.losses.squared)


def coloured() -> gf.Problem:
    """Inputs of which the teacher's directions are no eigenvectors."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 4))
    y = x @ rng.normal(size=(4, 3))
    return gf.Problem(gf.Dataset(jnp.asarray(x), jnp.asarray(y)), gf.losses.squared)


@pytest.fixture
def log_half_time(monkeypatch) -> Callable[[float, int, float], float]:
    """That which the benchmark of chains is measured against."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("_closed_forms").log_half_time


@pytest.fixture(scope="module", params=[2, 3, 4])
def depth(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def chains(depth) -> dict[float, gf.escape.Chain]:
    """By the log of the norm at the start."""
    problem = white()
    return {
        log_norm: gf.escape.chain(
            problem, gf.escape.spectral(problem, depth, math.exp(log_norm))
        )
        for log_norm in (LARGEST, -60.0, SMALLEST)
    }


class TestClosedForms:
    def test_escape_times(self, chains, depth, log_half_time):
        for log_norm, chain in chains.items():
            assert chain.complete
            log_gain = log_norm - 0.5 * math.log(3 * depth)
            branches = np.concatenate([passage.branches for passage in chain.passages])
            times = np.concatenate([passage.log_times for passage in chain.passages])
            exact = [log_half_time(float(STRENGTHS[b]), depth, log_gain) for b in branches]
            assert sorted(branches) == [0, 1, 2]
            np.testing.assert_allclose(times, exact, rtol=0, atol=1e-6)

    def test_plateaus(self, chains):
        """From 1e-2 on, what learns next does not wait until what has learned rests."""
        for log_norm, chain in chains.items():
            if log_norm == LARGEST:
                continue
            risks = [saddle.risk for saddle in chain.saddles]
            np.testing.assert_allclose(risks, RISKS, rtol=0, atol=1e-8)
            learned = [int(saddle.learned.sum()) for saddle in chain.saddles]
            assert learned == [0, 1, 2, 3]

    def test_speeds(self, chains):
        """Each is left at the strength of the next direction."""
        speeds = [saddle.speed for saddle in chains[SMALLEST].saddles]
        np.testing.assert_allclose(speeds[:-1], STRENGTHS, rtol=1e-6)

    def test_steps(self, chains):
        """Waits more than three times as long take at most ten more each."""
        assert chains[SMALLEST].num_steps < chains[-60.0].num_steps + 3 * 10


@pytest.mark.parametrize("depth", [3, 4])
def test_steps_of_waits_of_any_length(depth):
    """Where each direction is learned before the next one moves, even from 1e-2, what rests
    does not bound the steps of what waits."""
    problem = white(np.array([16.0, 2.0, 0.25]))
    long, short = (
        gf.escape.chain(problem, gf.escape.spectral(problem, depth, math.exp(log_norm)))
        for log_norm in (SMALLEST, LARGEST)
    )
    assert len(long.passages) == len(short.passages) == 3
    assert long.num_steps <= 1.35 * short.num_steps


def test_parts_that_touch():
    """Held and released as others learn; the same flow by SciPy, in θ."""
    problem, depth = coloured(), 3
    net = gf.escape.spectral(problem, depth, 1e-2)
    chain = gf.escape.chain(problem, net)
    assert any(leg.trajectory.stopped_by == "Released" for leg in chain.legs)
    leaves, structure = jax.tree.flatten(net)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)

    def parts(theta: np.ndarray) -> list[np.ndarray]:
        pieces = zip(np.split(theta, ends), leaves, strict=True)
        return [piece.reshape(leaf.shape) for piece, leaf in pieces]

    def velocity(_: float, theta: np.ndarray) -> np.ndarray:
        first, middle, last = parts(theta)
        h = x @ first.T
        r = (h * middle) @ last.T - y
        r /= len(x)
        back = r @ last
        gradients = (back * middle).T @ x, np.sum(back * h, axis=0), r.T @ (h * middle)
        return -np.concatenate([g.ravel() for g in gradients])

    def squares(theta: np.ndarray) -> np.ndarray:
        first, middle, last = parts(theta)
        return np.sum(first**2, axis=1) + middle**2 + np.sum(last**2, axis=0)

    start = np.concatenate([np.ravel(leaf) for leaf in leaves])
    t1 = math.exp(chain.log_time[-1])
    found = solve_ivp(
        velocity, (0, t1), start, "LSODA", rtol=1e-11, atol=1e-15, dense_output=True
    )
    for passage, after in zip(chain.passages, chain.saddles[1:], strict=True):
        settled = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(after.net)])
        for branch, log_time in zip(passage.branches, passage.log_times, strict=True):
            there = squares(found.sol(math.exp(log_time)))[branch]
            product = (there / squares(settled)[branch]) ** (depth / 2)
            assert abs(product - 0.5) < 5e-3
    final = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(chain.final)])
    assert structure == jax.tree.structure(chain.final)
    np.testing.assert_allclose(final, found.y[:, -1], atol=1e-4)


def test_what_has_nothing_to_learn_stays():
    rng = np.random.default_rng(2)
    x = math.sqrt(12) * np.linalg.qr(rng.normal(size=(12, 4)))[0]
    y = x @ rng.normal(size=(4, 2)) @ rng.normal(size=(2, 3))
    problem = gf.Problem(gf.Dataset(jnp.asarray(x), jnp.asarray(y)), gf.losses.squared)
    chain = gf.escape.chain(problem, gf.escape.spectral(problem, 3, math.exp(-200)))
    assert chain.complete and [int(s.learned.sum()) for s in chain.saddles] == [0, 1, 2]
    assert chain.saddles[-1].risk < 1e-8
    assert "the fit" in chain.summary() and len(chain.summary().splitlines()) == 6


class TestIncomplete:
    """What would leave the saddle is below rounding: nothing is said of when it does."""

    def test_a_branch_that_turned_to_what_others_learned(self):
        problem = coloured()
        net = gf.escape.spectral(problem, 2, math.exp(-200))
        with pytest.warns(gf.CertificateWarning, match="ends at a saddle"):
            chain = gf.escape.chain(problem, net)
        assert not chain.complete and "the fit" not in chain.summary()

    def test_branches_of_one_direction(self):
        net = gf.nets.MLP([4, 6, 3], key=jr.key(0), activation="identity", scale=1e-20)
        with pytest.warns(gf.CertificateWarning, match="share a direction"):
            chain = gf.escape.chain(coloured(), net)
        assert not chain.complete


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rest": 1.5}, "rest=1.5 must be a fraction"),
            ({"release": -1.0}, "release=-1.0 must be a fraction"),
            ({"rest": 1e-3}, "rest=0.001 must be below release=1e-05"),
            ({"max_steps": 0}, "max_steps=0 must be 1 or more"),
        ],
    )
    def test_options(self, options: dict[str, Any], message):
        problem = white()
        with pytest.raises(ValueError, match=message):
            gf.escape.chain(problem, gf.escape.spectral(problem, 2, 1e-3), **options)

    def test_kinks(self):
        net = gf.nets.MLP([4, 5, 3], key=jr.key(0))
        with pytest.raises(ValueError, match=r"gf\.flows\.BranchFlow"):
            gf.escape.chain(white(), net)

    @pytest.mark.parametrize(("depth", "norm"), [(1, 1e-3), (2, 0.0), (2, -1.0)])
    def test_spectral(self, depth, norm):
        with pytest.raises(ValueError, match=r"depth=1 must|norm=.* must be positive"):
            gf.escape.spectral(white(), depth, norm)
