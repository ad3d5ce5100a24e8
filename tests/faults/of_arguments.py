"""Faults of arguments: numbers out of range, of another kind or shape, data and nets that
are none. Each is refused before anything is compiled.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from table import Attempt, Outcome, Row

import gfdyn as gf


# Called with what they refuse.
free: Any = gf
NAN, INF = float("nan"), float("inf")
WORD = "word"


@functools.cache
def setting() -> tuple[gf.GradientFlow, gf.nets.MLP]:
    """A flow and a net that are in order."""
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    return gf.GradientFlow(problem), gf.nets.MLP([2, 3, 1], key=jax.random.key(0))


def solve(**options: Any) -> Any:
    """A solve, with options."""
    flow, net = setting()
    return free.solve(options.pop("flow", flow), options.pop("net", net), **options)


def descend(**options: Any) -> Any:
    """A descent of two steps, with options."""
    flow, net = setting()
    options = {"optimizer": 0.1, "steps": 2, "key": jax.random.key(0), **options}
    return free.descend(options.pop("problem", flow.problem), net, **options)


def refused(argument: str, value: Any, call: Callable[[Any], Any]) -> Outcome:
    """What comes of a value: one sentence that has the name and the value."""
    try:
        call(value)
    except (ValueError, TypeError) as error:
        said = str(error)
        named = argument in said and any(text in said for text in texts_of(value))
        return Outcome.NAMED if named and "\n" not in said else Outcome.BARE
    except Exception:
        return Outcome.BARE
    return Outcome.SILENT


def texts_of(value: Any) -> Iterator[str]:
    """How a sentence may name it."""
    yield repr(value)
    yield f"got {type(value).__name__}"
    if isinstance(value, float):
        yield f"{value:g}"
    if isinstance(value, np.ndarray | list | float):
        yield f"shape {np.shape(value)}"
        yield from (f"has {size}" for size in np.shape(value))
    if isinstance(value, list):
        yield str(tuple(value))
        yield from (f" = {entry}:" for entry in value)
        yield from (f"({entry})" for entry in value)
        yield from (f"from {a:g} to" for a in value[:1] if isinstance(a, float))
    if isinstance(value, np.ndarray) and value.ndim:
        yield from (f"({entry})" for entry in value.ravel() if not np.isfinite(entry))
        yield from map(str, value)


TWO = np.ones(2)
# The argument, how it is given, and values that are none of it.
NUMBERS: tuple[tuple[str, Callable[[Any], Any], tuple[Any, ...]], ...] = (
    ("t1", lambda v: solve(t1=v), (NAN, -1.0, -INF, INF, WORD, TWO)),
    ("t0", lambda v: solve(t1=1.0, t0=v), (NAN, 2.0, INF, WORD, TWO)),
    ("dt0", lambda v: solve(t1=1.0, dt0=v), (NAN, INF, 0.0, -1.0, WORD, TWO)),
    ("max_steps", lambda v: solve(t1=1.0, max_steps=v), (0, -1, 1.5, NAN, WORD)),
    ("kinks", lambda v: solve(t1=1.0, kinks=v), (-1, 1.5, NAN, WORD)),
    (
        "ts",
        lambda v: solve(t1=1.0, ts=v),
        ([], [NAN, 1.0], [1.0, 0.5], [0.5, 0.5], [0.0, 2.0], [-1.0, 0.5], 0.5, WORD),
    ),
    ("rtol", lambda v: gf.solvers.ExactKinks(rtol=v), (0.0, -1.0, NAN, INF, WORD, TWO)),
    ("atol", lambda v: gf.solvers.ExactKinks(atol=v), (-1.0, NAN, INF, WORD, TWO)),
    ("places", lambda v: gf.solvers.ExactKinks(places=v), (0, -1, 1.5, NAN, WORD)),
    ("rtol", lambda v: gf.solvers.Adaptive(rtol=v), (0.0, -1.0, NAN, INF, WORD, TWO)),
    ("atol", lambda v: gf.solvers.Adaptive(atol=v), (-1.0, NAN, INF, WORD, TWO)),
    ("pcoeff", lambda v: gf.solvers.Adaptive(pcoeff=v), (NAN, INF, -1.0, WORD, TWO)),
    ("icoeff", lambda v: gf.solvers.Adaptive(icoeff=v), (NAN, INF, -1.0, WORD, TWO)),
    ("max_size", lambda v: gf.solvers.Adaptive(max_size=v), (0.0, NAN, -1.0, WORD, TWO)),
    ("rtol", lambda v: gf.solvers.SignSwitches(rtol=v), (0.0, -1.0, NAN, WORD)),
    (
        "weight_decay",
        lambda v: free.GradientFlow(setting()[0].problem, v),
        (-1.0, NAN, INF, WORD, TWO),
    ),
    (
        "friction",
        lambda v: free.flows.MomentumFlow(setting()[0].problem, v),
        (0.0, -1.0, NAN, INF, WORD, TWO),
    ),
    ("value", lambda v: gf.stopping.RiskBelow(v), (NAN, WORD, TWO)),
    ("value", lambda v: gf.stopping.RadiusAbove(v), (NAN, -1.0, INF, WORD, TWO)),
    ("fraction", lambda v: gf.stopping.GradientBelow(v), (NAN, -1.0, INF, WORD, TWO)),
    ("fraction", lambda v: gf.stopping.NextPlateau(v), (NAN, -1.0, INF, WORD, TWO)),
    (
        "departure",
        lambda v: gf.stopping.NextPlateau(departure=v),
        (NAN, -1.0, 1.0, INF, WORD, TWO),
    ),
    ("capacity", lambda v: free.AcceptedSteps(v), (0, -2, 7, 4.5, NAN, WORD)),
    ("optimizer", lambda v: descend(optimizer=v), (0.0, -1.0, NAN, INF, WORD, TWO)),
    ("steps", lambda v: descend(steps=v), (0, -1, 1.5, NAN, WORD)),
    ("save_every", lambda v: descend(save_every=v), (0, -1, 3, 1.5, NAN, WORD)),
    ("batch_size", lambda v: descend(batch_size=v), (0, -1, 5, 1.5, NAN, WORD)),
    ("momentum", lambda v: descend(momentum=v), (-1.0, 1.0, NAN, INF, WORD, TWO)),
    ("weight_decay", lambda v: descend(weight_decay=v), (-1.0, NAN, INF, WORD, TWO)),
    ("c", lambda v: free.NormScaledRate(v), (0.0, -1.0, NAN, INF, WORD, TWO)),
    ("rate", lambda v: free.SteppedRate(v, 10), (0.0, -1.0, NAN, INF, WORD, TWO)),
    (
        "factor",
        lambda v: free.SteppedRate(1.0, 10, factor=v),
        (0.0, -1.0, NAN, INF, WORD, TWO),
    ),
    ("at", lambda v: free.SteppedRate(1.0, 10, at=v), ([2.0], [NAN], [-1.0], [WORD])),
    (
        "scale",
        lambda v: free.nets.MLP([2, 3, 1], key=jax.random.key(0), scale=v),
        (NAN, INF, WORD, TWO),
    ),
)
OBJECTS: tuple[tuple[str, Callable[[Any], Any], tuple[Any, ...]], ...] = (
    ("flow", lambda v: solve(flow=v, t1=1.0), (WORD, 3, None)),
    ("net", lambda v: solve(net=v, t1=1.0), (WORD, 3, None, TWO)),
    ("solver", lambda v: solve(t1=1.0, solver=v), (WORD, 3)),
    ("stop", lambda v: solve(t1=1.0, stop=v), (WORD, 3)),
    ("record", lambda v: solve(t1=1.0, record=v), (WORD, 3, [WORD])),
    ("derivatives", lambda v: solve(t1=1.0, derivatives=v), (WORD, 3)),
    ("clock", lambda v: free.GradientFlow(setting()[0].problem, clock=v), (WORD, 3)),
    ("data", lambda v: free.Problem(v, gf.losses.squared), (WORD, 3, TWO)),
    ("loss", lambda v: free.Problem(gf.data.xor(), v), (WORD, 3)),
    (
        "reduction",
        lambda v: free.Problem(gf.data.xor(), gf.losses.squared, v),
        (WORD, 3),
    ),
    ("method", lambda v: free.solvers.ExactKinks(method=v), (WORD, 3)),
    ("problem", lambda v: descend(problem=v), (WORD, 3, None)),
    ("sampler", lambda v: descend(sampler=v), (WORD, 3)),
    ("key", lambda v: descend(key=v, batch_size=2), (WORD, 3)),
    ("problem", lambda v: free.GradientFlow(v), (WORD, 3, None)),
    ("problem", lambda v: free.EscapeFlow(v), (WORD, 3, None)),
    (
        "widths",
        lambda v: free.nets.MLP(v, key=jax.random.key(0)),
        ([2], [2, 0, 1], [2, 1.5, 1], WORD, 3),
    ),
    (
        "activation",
        lambda v: free.nets.MLP([2, 3, 1], key=jax.random.key(0), activation=v),
        (WORD, 3),
    ),
)
ONES = np.ones((2, 2))
HOLE = np.array([[1.0, NAN], [0.0, 1.0]])
PEAK = np.array([[1.0, INF], [0.0, 1.0]])
DATA: tuple[tuple[str, Callable[[Any], Any], tuple[Any, ...]], ...] = (
    (
        "x",
        lambda v: free.Dataset(v, TWO),
        (HOLE, PEAK, -PEAK, np.ones((0, 2)), np.ones((2, 0)), np.ones(2), 3.0, WORD),
    ),
    (
        "y",
        lambda v: free.Dataset(ONES, v),
        (HOLE, PEAK, np.ones((0, 1)), np.ones((2, 0)), np.ones((2, 1, 1)), WORD),
    ),
    (
        "net",
        lambda v: solve(net=gf.nets.MLP.from_weights([v]), t1=1.0),
        (np.ones((1, 3)), np.ones((2, 2))),
    ),
    (
        "y",
        lambda v: free.Problem(free.Dataset(ONES, v), gf.losses.logistic),
        ([0.0, 1.0], [0.5, 1.0], [2.0, 1.0]),
    ),
    (
        "labels",
        lambda v: free.Problem(free.Dataset(ONES, v), gf.losses.cross_entropy),
        ([0, -1],),
    ),
    (
        "y",
        lambda v: free.Problem(free.Dataset(ONES, v), gf.losses.cross_entropy),
        (np.array([[0.5, 0.6], [1.0, 0.0]]),),
    ),
)


def attempts(table: Any) -> tuple[Attempt, ...]:
    """One for each value of each argument."""

    def attempt(
        argument: str, value: Any, call: Any, random: np.random.Generator, folder: Path
    ) -> Outcome:
        del random, folder
        return refused(argument, value, call)

    return tuple(
        functools.partial(attempt, argument, value, call)
        for argument, call, values in table
        for value in values
    )


def _row(fault: str, table: Any) -> Row:
    # With a stride that meets all kinds early, so that a sample has some of each.
    cases = attempts(table)
    return Row("solver", fault, _ONE_SENTENCE, cases, trials=len(cases), sample=len(cases))


_ONE_SENTENCE = "an error of one sentence that names the argument and the value"

ROWS: tuple[Row, ...] = (
    _row("a number that is negative, NaN, infinite, a word or two", NUMBERS),
    _row("an object of another kind", OBJECTS),
    _row("data or weights with NaN or infinity, empty or of another shape", DATA),
)
