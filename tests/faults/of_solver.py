"""Faults of solves: nets and data at the edge of the range of numbers, units that are dead,
times at which nothing is left to do, arguments that jit hides, lanes that fail, descents
that diverge.
"""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from table import Attempt, Outcome, Row

import gfdyn as gf


NAN, INF = float("nan"), float("inf")
X = np.array([[1.0, 0.3], [-0.4, 1.2], [0.7, -0.9], [-1.1, -0.2]])
Y = np.array([[0.6], [-1.0], [0.9], [0.2]])
END = 2.0
# Far fewer steps than by default: what is to end does so soon, and the rest sooner.
STEPS = 2000


def problem(x: Any = X, y: Any = Y) -> gf.Problem:
    """Four samples, all of one shape."""
    return gf.Problem(gf.Dataset(x, y), gf.losses.squared)


def net_of(random: np.random.Generator, size: float = 1.0) -> gf.nets.MLP:
    """A net of one shape."""
    first, last = random.normal(size=(3, 2)), random.normal(size=(1, 3))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return gf.nets.MLP.from_weights([size * first, size * last])


def dead(random: np.random.Generator, units: int = 3) -> gf.nets.MLP:
    """A net of which so many units are active on no sample of positive inputs."""
    net = net_of(random)
    first = np.array(net.weights[0])
    first[:units] = -np.abs(first[:units])
    return gf.nets.MLP.from_weights([first, net.weights[1]])


def ended(traj: gf.Trajectory, said: list[Any]) -> Outcome:
    """Sound, as far as can be told from the trajectory alone; or named."""
    if traj.result != gf.RESULTS.successful and traj.result != gf.RESULTS.stopped:
        return Outcome.NAMED if gf.RESULTS[traj.result] else Outcome.BARE
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(traj.final))
    if finite and traj.certificate.holds:
        return Outcome.HARMLESS
    return Outcome.NAMED if said else Outcome.SILENT


def outcome(solve: Callable[[], Any]) -> Outcome:
    """What comes of a solve, or of a refusal to."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            return ended(solve(), said)
        except (ValueError, TypeError, gf.SolveError) as error:
            return Outcome.NAMED if "\n" not in str(error) else Outcome.BARE
        except Exception:
            return Outcome.BARE


def flows(
    problem: gf.Problem, net: gf.nets.MLP, t1: float = END, **options: Any
) -> gf.Trajectory:
    """The flow, exact as by default."""
    options = {"ts": [t1], "max_steps": STEPS, "throw": False, **options}
    return gf.solve(gf.GradientFlow(problem), net, t1=t1, **options)


def stays(
    solve: Callable[[gf.nets.MLP], gf.Trajectory],
    net: gf.nets.MLP,
    absolute: float = 0.0,
) -> Outcome:
    """What comes of a flow that has nothing to move it, or next to nothing."""
    end = solve(net)
    found = ended(end, [])
    still = jax.tree.map(lambda p, q: np.allclose(p, q, 1e-12, absolute), end.final, net)
    if found is Outcome.HARMLESS and not all(jax.tree.leaves(still)):
        return Outcome.SILENT
    return found


# Nets and data at the edge


def of_size(size: float, random: np.random.Generator, folder: Path) -> Outcome:
    net = net_of(random, size)
    if size < 1e-15:
        return stays(lambda n: flows(problem(), n), net, absolute=1e-12)
    return outcome(lambda: flows(problem(), net))


def data_of_size(size: float, random: np.random.Generator, folder: Path) -> Outcome:
    return outcome(lambda: flows(problem(size * X, size * Y), net_of(random)))


def broken_net(value: float, random: np.random.Generator, folder: Path) -> Outcome:
    """A weight that is no number."""
    first, last = (np.array(w) for w in net_of(random).weights)
    first[random.integers(3), random.integers(2)] = value
    found = outcome(lambda: flows(problem(), gf.nets.MLP.from_weights([first, last])))
    return found if found is Outcome.NAMED else Outcome.SILENT


def dead_units(units: int, random: np.random.Generator, folder: Path) -> Outcome:
    x = np.abs(X)
    net = dead(random, units)
    if units == 3:
        return stays(lambda n: flows(problem(x), n), net)
    return outcome(lambda: flows(problem(x), net))


def nothing_to_learn(random: np.random.Generator, folder: Path) -> Outcome:
    """Inputs that are 0."""
    return stays(lambda n: flows(problem(0 * X), n), net_of(random))


EDGES: tuple[Attempt, ...] = (
    *(
        functools.partial(of_size, size)
        for size in (0.0, 1e-310, 1e-160, 1e-20, 1e3, 1e20, 1e77, 1e160, 1e300)
    ),
    *(functools.partial(data_of_size, size) for size in (1e-160, 1e-20, 1e3, 1e20, 1e160)),
    *(functools.partial(broken_net, value) for value in (NAN, INF, -INF)),
    *(functools.partial(dead_units, units) for units in (1, 2, 3)),
    nothing_to_learn,
)


# Times


def no_time(t0: float, random: np.random.Generator, folder: Path) -> Outcome:
    return stays(lambda n: flows(problem(), n, t1=t0, t0=t0), net_of(random))


def little_time(t1: float, random: np.random.Generator, folder: Path) -> Outcome:
    return stays(lambda n: flows(problem(), n, t1=t1), net_of(random))


def much_time(t1: float, random: np.random.Generator, folder: Path) -> Outcome:
    """It comes to rest long before."""
    return outcome(lambda: flows(problem(), net_of(random), t1=t1))


def long_first_step(size: float, random: np.random.Generator, folder: Path) -> Outcome:
    """The first step is of another size than it ought to be."""
    net = net_of(random)
    end, other = (flows(problem(), net, dt0=dt0).final for dt0 in (None, size))
    near = jax.tree.map(lambda p, q: np.allclose(p, q, 1e-4, 1e-4), end, other)
    return Outcome.HARMLESS if all(jax.tree.leaves(near)) else Outcome.SILENT


TIMES: tuple[Attempt, ...] = (
    *(functools.partial(no_time, t0) for t0 in (0.0, 3.0, -1.0)),
    *(functools.partial(little_time, t1) for t1 in (5e-324, 1e-300, 1e-30)),
    *(functools.partial(much_time, t1) for t1 in (1e4, 1e30, 1e300)),
    *(functools.partial(long_first_step, size) for size in (1e-30, 1e30, 1e300)),
)


# Arguments that jit hides

GOOD: dict[str, Any] = {
    "t0": 0.0,
    "t1": END,
    "rtol": 1e-6,
    "atol": 1e-12,
    "dt0": 0.1,
    "decay": 0.01,
    "value": 1e-3,
    "ts": np.array([0.5, 1.0, 1.5]),
    "x": X,
    "y": Y,
}
HIDDEN: dict[str, tuple[Any, ...]] = {
    "t0": (NAN, INF, 5.0),
    "t1": (NAN, -1.0, INF),
    "rtol": (NAN, 0.0, -1.0, INF),
    "atol": (NAN, -1.0, INF),
    "dt0": (NAN, 0.0, -1.0, INF),
    "decay": (NAN, INF),
    "value": (NAN,),
    "ts": (
        np.array([0.5, 0.4, 1.5]),
        np.array([0.5, NAN, 1.5]),
        np.array([-1.0, 1.0, 1.5]),
        np.array([0.5, 1.0, 9.0]),
    ),
    "x": (NAN * X, INF * X),
    "y": (NAN * Y, INF * Y),
}


@functools.cache
def traced() -> Callable[..., gf.Trajectory]:
    """A solve all of whose numbers are hidden."""

    @eqx.filter_jit
    def run(net: gf.nets.MLP, given: dict[str, Any]) -> gf.Trajectory:
        flow = gf.GradientFlow(problem(given["x"], given["y"]), given["decay"])
        solver = gf.solvers.Adaptive(rtol=given["rtol"], atol=given["atol"])
        return gf.solve(
            flow,
            net,
            t1=given["t1"],
            t0=given["t0"],
            ts=given["ts"],
            dt0=given["dt0"],
            solver=solver,
            stop=gf.stopping.RiskBelow(given["value"]),
            max_steps=STEPS,
            throw=False,
        )

    return run


def hidden(name: str, value: Any, random: np.random.Generator, folder: Path) -> Outcome:
    """A result that names it; or, the end all the same, and the rows that are saved."""
    net = net_of(np.random.default_rng(3), 0.3)
    right = traced()(net, jax.tree.map(jnp.asarray, GOOD))
    assert right.result == gf.RESULTS.successful
    found = traced()(net, jax.tree.map(jnp.asarray, {**GOOD, name: value}))
    if found.result != gf.RESULTS.successful:
        return Outcome.NAMED
    same = jax.tree.map(
        lambda p, q: np.allclose(p, q, 1e-4, 1e-6),
        (found.final, found.positions, found.ts),
        (right.final, right.positions, right.ts),
    )
    return Outcome.HARMLESS if all(jax.tree.leaves(same)) else Outcome.SILENT


TRACED: tuple[Attempt, ...] = tuple(
    functools.partial(hidden, name, value)
    for name, values in HIDDEN.items()
    for value in values
)


# Lanes side by side


def lanes(solver: Any, bad: float, random: np.random.Generator, folder: Path) -> Outcome:
    """Good lanes end as they do alone, and the others have results of their own."""
    good = [net_of(random) for _ in range(3)]
    broken = jax.tree.map(lambda w: bad * w, good[1])

    def side_by_side(*nets: gf.nets.MLP) -> gf.Trajectory:
        stacked = jax.tree.map(lambda *ws: jnp.stack(ws), *nets)
        return jax.vmap(lambda n: flows(problem(), n, solver=solver))(stacked)

    together = side_by_side(good[0], broken, good[2])
    among_good = side_by_side(*good)
    for i in (0, 2):
        to_the_bit = jax.tree.map(
            lambda p, q, i=i: np.array_equal(p[i], q[i]), among_good.final, together.final
        )
        # Where kinks are not followed, rounding decides how a solve chatters.
        alone = flows(problem(), good[i], solver=solver)
        limit = 1e-10 if solver is None else 1e-2
        near = jax.tree.map(
            lambda p, q, i=i, limit=limit: np.allclose(p, q[i], limit, limit),
            alone.final,
            together.final,
        )
        # It may fail alone, too, and says so.
        succeeds = alone.result == gf.RESULTS.successful
        off = succeeds and not all(jax.tree.leaves(near))
        if off or not all(jax.tree.leaves(to_the_bit)):
            return Outcome.SILENT
    lane = jax.tree.map(lambda leaf: leaf[1], (together.result, together.final))
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(lane[1]))
    if lane[0] != gf.RESULTS.successful:
        return Outcome.NAMED
    return Outcome.HARMLESS if finite else Outcome.SILENT


LANES: tuple[Attempt, ...] = tuple(
    functools.partial(lanes, solver, bad)
    for solver in (None, gf.solvers.Adaptive())
    for bad in (NAN, INF, 1e200, 0.0)
)


# Descents


def descent(random: np.random.Generator, folder: Path, **given: Any) -> Outcome:
    options = {"optimizer": 0.1, "steps": 200, "throw": False, **given}
    return outcome(lambda: gf.descend(problem(), net_of(random), **options))


DESCENTS: tuple[Attempt, ...] = tuple(
    functools.partial(descent, **given)
    for given in (
        {"optimizer": 1e200},
        {"optimizer": 1e3},
        {"optimizer": 10.0, "momentum": 0.9},
        {"optimizer": 0.1, "weight_decay": 1e3},
        {"optimizer": 1e200, "batch_size": 2, "key": jax.random.key(0)},
        {"optimizer": lambda step: jnp.asarray(NAN)},
        {"optimizer": lambda step: jnp.where(step > 9, 1e300, 0.1)},
    )
)


def _row(fault: str, expected: str, attempts: tuple[Attempt, ...], rounds: int) -> Row:
    return Row("solver", fault, expected, attempts, rounds * len(attempts), sample=4)


_SOUND = "a trajectory that is sound, or a result that says why not"

ROWS: tuple[Row, ...] = (
    _row("nets and data of size 0 to 1e300, broken weights, dead units", _SOUND, EDGES, 3),
    _row("no time, next to none, or no end of it", _SOUND, TIMES, 3),
    _row(
        "a bad number that jit hides",
        "a result that says so, or the same trajectory all the same",
        TRACED,
        1,
    ),
    _row(
        "a lane that fails among others",
        "a result of its own; the others end as they do alone",
        LANES,
        2,
    ),
    _row("a descent that diverges", _SOUND, DESCENTS, 2),
)
