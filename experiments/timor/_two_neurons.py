"""What the experiments on two neurons of Timor et al. share: types, statistics, checks."""

import math
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import numpy as np

import gfdyn as gf
from experiments._common.claims import Claim, near, violations
from gfdyn.theory import Check, timor


@eqx.filter_jit
def on_each(function: Callable, problem: gf.Problem, *nets: gf.nets.MLP):
    """`function(problem, net, ...)` of each net of a stack."""
    return jax.vmap(partial(function, problem))(*nets)


def losses(problem: gf.Problem, nets: gf.nets.MLP) -> np.ndarray:
    """Their losses, a sum over both points."""
    return np.asarray(on_each(gf.diagnostics.risk, problem, nets))


def stable_ranks(problem: gf.Problem, nets: gf.nets.MLP) -> np.ndarray:
    """Of W and V, (run, layer)."""
    return np.asarray(on_each(gf.diagnostics.stable_rank, problem, nets))


def types(cones: np.ndarray) -> np.ndarray:
    """The types of nets, "12" for (1,2) and (2,1), from the cones of their neurons."""
    codes = np.sort(cones, axis=1)
    return np.array([timor.CONES[a] + timor.CONES[b] for a, b in codes])


def standard_error(probability: float, number: int) -> float:
    """Of the frequency of an event of this probability in so many runs."""
    return math.sqrt(probability * (1 - probability) / number)


def frequent(
    statement: str, source: str, hits: np.ndarray, probability: float, errors: float = 3.0
) -> Claim:
    """The claim that a frequency is a probability, within so many standard errors."""
    if not len(hits):
        return near(statement, source, None, probability, 1.0)
    tolerance = errors * standard_error(probability, len(hits))
    return near(statement, source, float(np.mean(hits)), probability, tolerance)


def failures(check: Check) -> tuple[int, int]:
    """How many entries of a check fail where it applies, and where it applies."""
    return int(violations(check)), int(np.sum(check.applies))
