"""How often a small start ends where: a heuristic, which its numbers bear out roughly."""

from fractions import Fraction
from itertools import product

from ._cones import CONES


def heuristic_neuron_probabilities() -> dict[str, Fraction]:
    r"""How often a neuron comes to see none, one, or both of two orthogonal points.

    A heuristic, not a theorem: for Y = I and balanced vanishing starts, each $p = w\cdot
    x_j$ and $q = v\cdot y_j$ follow the linear flow $\dot p = q,\ \dot q = p$ while p > 0;
    the neuron stays on the point if p > 0 and p + q > 0 at the start. With independent
    uniform directions of w and v that is both points in 1/8 of the cases, a given one alone
    in 1/4, none in 3/8. From V = 0 all four have 1/4.
    """
    return {
        "N": Fraction(3, 8),
        "1": Fraction(1, 4),
        "2": Fraction(1, 4),
        "B": Fraction(1, 8),
    }


def heuristic_type_probabilities() -> dict[str, Fraction]:
    """How often a net of two such neurons has which type: "12" for (1,2) or (2,1).

    A heuristic, see `heuristic_neuron_probabilities`. Measured in Fig. 1 (20 000 runs): BB
    does not last, and neurons that see both points drop to one now and then.
    """
    each = heuristic_neuron_probabilities()
    types = dict.fromkeys(
        (a + b for i, a in enumerate(CONES) for b in CONES[i:]), Fraction(0)
    )
    for a, b in product(CONES, repeat=2):
        first, second = sorted((a, b), key=CONES.index)
        types[first + second] += each[a] * each[b]
    return types


def heuristic_fit_probability() -> Fraction:
    """17/64, how often both points are fitted: each by a neuron that sees it.

    A heuristic, see `heuristic_neuron_probabilities`. Fig. 1 of Timor et al. has 79 of 288
    runs; 0.2619 ± 0.0031 is measured at its φ = 90.6°.
    """
    fitting = ("12", "1B", "2B", "BB")
    types = heuristic_type_probabilities()
    return sum((types[name] for name in fitting), Fraction(0))
