"""Data sets whose networks of least norm are known, as far as searches can tell."""

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np

import gfdyn as gf
from gfdyn.theory.timor import Optimum, maximum_margin, minimum_norm


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem, and least values read off the numbers of a search.

    Attributes:
        square_norm: least ‖θ‖² by depth, from depth 3 on.
        mean_ratio: the mean of ‖W_l‖_2/‖W_l‖_F there; None where optima differ.
    """

    name: str
    title: str
    problem: gf.Problem
    square_norm: Callable[[int], float]
    mean_ratio: Callable[[int], float] | None

    @property
    def is_margin(self) -> bool:
        """Whether margin 1 is asked for, not interpolation."""
        return not isinstance(self.problem.loss, gf.losses.Squared)

    @property
    def theorem(self) -> str:
        """The one about it."""
        return "Thm 5" if self.is_margin else "Thm 4"

    def optimum(self, depth: int, width: int, starts: int, **options) -> Optimum:
        """The best network of this shape."""
        program = maximum_margin if self.is_margin else minimum_norm
        widths = [self.problem.data.dim, *[width] * (depth - 1), 1]
        options = {"key": jax.random.key(0), **options}
        return program(self.problem, widths, starts, **options)


def cases() -> tuple[Case, ...]:
    """T4-a, b, c (interpolation) and T5-a, b (margin)."""
    squared, exponential = gf.losses.squared, gf.losses.exponential
    ends, signs = np.array([[1.0], [-1.0]]), np.array([1, -1])

    def case(name, title, x, y, loss, square_norm, mean_ratio):
        problem = gf.Problem(gf.Dataset(x, y), loss, reduction="sum")
        return Case(name, title, problem, square_norm, mean_ratio)

    return (
        case(
            "T4-a",
            "f(±1) = 1",
            ends,
            np.array([1.0, 1.0]),
            squared,
            lambda k: k * 2 ** (2 / k),
            lambda k: 1.0,
        ),
        case(
            "T4-b",
            "f(1) = 1, f(−1) = 2",
            ends,
            np.array([1.0, 2.0]),
            squared,
            lambda k: k * 3 ** (2 / k),
            lambda k: 1.0,
        ),
        case(
            "T4-c",
            "f = 1 at three points",
            circle(3),
            np.ones(3),
            squared,
            lambda k: k * 3 ** (2 / k),
            None,
        ),
        case(
            "T5-a",
            "±1 told apart",
            ends,
            signs,
            exponential,
            lambda k: 2.0 * k,
            lambda k: (2 + (k - 2) * math.sqrt(0.5)) / k,
        ),
        case(
            "T5-b",
            "XOR",
            circle(4),
            np.tile(signs, 2),
            exponential,
            lambda k: k * 2 ** ((k + 2) / k),
            lambda k: (1 + (k - 1) * math.sqrt(0.5)) / k,
        ),
    )


def circle(n: int) -> np.ndarray:
    """n points round the unit circle, from 180°/n on."""
    angle = np.pi * (2 * np.arange(n) + 1) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)
