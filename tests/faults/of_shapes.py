"""Faults of shapes, clocks and escapes: networks of one weight, of 200 layers or 10 000
units, each clock with and without a penalty, escapes from where nothing moves.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.linalg
from of_solver import STEPS, X, dead, ended, net_of, outcome, problem
from table import Attempt, Outcome, Row

import gfdyn as gf


def close(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two networks are equal, up to a relative tolerance and that of their size."""
    near = jax.tree.map(lambda p, q: np.allclose(p, q, tolerance, tolerance), a, b)
    return all(jax.tree.leaves(near))


# Shapes


def one_layer(random: np.random.Generator, folder: Path) -> Outcome:
    """Linear regression, whose flow is an exponential."""
    x, y = random.normal(size=(5, 2)), random.normal(size=(5, 1))
    w = random.normal(size=(1, 2))
    flow = gf.GradientFlow(gf.Problem(gf.Dataset(x, y), gf.losses.squared))
    traj = gf.solve(flow, gf.nets.MLP.from_weights([w]), t1=3.0, ts=[3.0])
    best = np.linalg.lstsq(x, y, rcond=None)[0].T
    end = best + (w - best) @ scipy.linalg.expm(-3.0 * x.T @ x / 5)
    right = close(traj.final, gf.nets.MLP.from_weights([end]), 1e-5)
    return Outcome.HARMLESS if right else Outcome.SILENT


def one_of_each(random: np.random.Generator, folder: Path) -> Outcome:
    """One sample, one feature, one unit a layer: with all active, w² − v² is conserved."""
    data = gf.Dataset([[1.0]], [[2.0]])
    w, v = random.uniform(0.5, 1.0, 2)
    net = gf.nets.MLP.from_weights([[[w]], [[v]]])
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    a, b = (float(m[0, 0]) for m in gf.solve(flow, net, t1=30.0, ts=[30.0]).final.weights)
    right = abs(a * b - 2) < 1e-4 and abs(a**2 - b**2 - w**2 + v**2) < 1e-4
    return Outcome.HARMLESS if right else Outcome.SILENT


def deep(random: np.random.Generator, folder: Path) -> Outcome:
    """200 layers of two units, close to the identity."""
    inner = [np.eye(2) + 0.01 * random.normal(size=(2, 2)) for _ in range(199)]
    net = gf.nets.MLP.from_weights([*inner, np.ones((1, 2))])
    return outcome(
        lambda: gf.solve(
            gf.GradientFlow(problem(np.abs(X))),
            net,
            t1=1e-4,
            ts=[1e-4],
            solver=gf.solvers.Adaptive(),
            max_steps=50,
            throw=False,
        )
    )


def wide(random: np.random.Generator, folder: Path) -> Outcome:
    """10 000 units, for a few steps."""
    first = random.normal(size=(10_000, 2))
    net = gf.nets.MLP.from_weights([first, random.normal(size=(1, 10_000)) / 100])
    return outcome(
        lambda: gf.solve(
            gf.GradientFlow(problem()), net, t1=1.0, ts=[1.0], max_steps=4, throw=False
        )
    )


# Clocks


def clock(name: Any, decay: float, random: np.random.Generator, folder: Path) -> Outcome:
    """It leads to where physical time does, at the physical time that it tells."""
    weights = random.normal(size=(3, 2)), random.normal(size=(1, 3))
    net = gf.nets.MLP.from_weights(weights, activation="identity")
    traj = gf.solve(gf.GradientFlow(problem(), decay, name), net, t1=0.5, ts=[0.5])
    t1 = float(np.exp(traj.final_log_time))
    other = gf.solve(gf.GradientFlow(problem(), decay), net, t1=t1, ts=[t1])
    right = close(traj.final, other.final, 1e-4)
    return Outcome.HARMLESS if right else Outcome.SILENT


# Escapes


def escape(net: gf.nets.MLP, localized: bool = False, t1: float = 3.0) -> gf.Trajectory:
    """An escape of a few steps, that ends on the next plateau at the latest."""
    stop = gf.stopping.NextPlateau()
    flow = gf.EscapeFlow(problem(np.abs(X)), localized)
    given: dict[str, Any] = {"ts": gf.AcceptedSteps(4), "max_steps": STEPS}
    return gf.solve(flow, net, t1=t1, stop=stop, throw=False, **given)


def from_zero(localized: bool, random: np.random.Generator, folder: Path) -> Outcome:
    """It is refused, as it has no direction."""
    found = outcome(lambda: escape(net_of(random, 0.0), localized))
    return Outcome.SILENT if found is Outcome.HARMLESS else found


def from_dead(
    localized: bool, t1: float, random: np.random.Generator, folder: Path
) -> Outcome:
    """It stays there, and says so where it has no end."""
    traj = escape(dead(random), localized, t1)
    found = ended(traj, [])
    rest = jax.tree.map(lambda rows: rows[0], traj.direction)
    still = close(traj.final_direction, rest, 1e-12)
    endless = t1 == np.inf and found is Outcome.HARMLESS
    return found if still and not endless else Outcome.SILENT


def from_next_to_zero(size: float, random: np.random.Generator, folder: Path) -> Outcome:
    """Its direction goes where that of a larger one does, while both are small."""
    seed = int(random.integers(2**31))
    nets = [net_of(np.random.default_rng(seed), s) for s in (size, 1e-20)]
    if size < np.finfo(float).tiny:
        # XLA takes so small numbers for 0.
        return outcome(lambda: escape(nets[0]))
    small, larger = map(escape, nets)
    if small.result != gf.RESULTS.successful:
        return ended(small, [])
    near = close(small.final_direction, larger.final_direction, 1e-4)
    return Outcome.HARMLESS if near else Outcome.SILENT


SHAPES: tuple[Attempt, ...] = (one_layer, one_of_each, deep, wide)
CLOCKS: tuple[Attempt, ...] = tuple(
    functools.partial(clock, name, decay)
    for name in ("loss", "arc")
    for decay in (0.0, 0.01)
)
ESCAPES: tuple[Attempt, ...] = (
    *(functools.partial(from_zero, localized) for localized in (False, True)),
    *(
        functools.partial(from_dead, localized, t1)
        for localized in (False, True)
        for t1 in (3.0, np.inf)
    ),
    *(functools.partial(from_next_to_zero, size) for size in (1e-310, 1e-160, 1e-100)),
)


def _row(fault: str, expected: str, attempts: tuple[Attempt, ...], sample: int) -> Row:
    return Row("solver", fault, expected, attempts, 2 * len(attempts), sample)


ROWS: tuple[Row, ...] = (
    _row("one weight, 200 layers, 10 000 units", "the flow, or why not", SHAPES, 2),
    _row("each clock, with and without a penalty", "the same trajectory", CLOCKS, 1),
    _row(
        "escapes from 0, next to it, or of dead units",
        "the same direction at every size; refused, or named, where nothing moves",
        ESCAPES,
        1,
    ),
)
