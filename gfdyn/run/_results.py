"""How a solve ended."""

from typing import Any

import diffrax as dfx
import equinox.internal as eqxi
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._tracing import is_concrete


class _Named(type(dfx.RESULTS)):
    """Puts the name of a result before its text, of which a success has none."""

    def __getitem__(cls, item: Any) -> str:
        if not isinstance(item, cls) or not is_concrete(item._value):
            return super().__getitem__(item)
        names = list(cls._name_to_item)  # pyright: ignore
        texts = cls._index_to_message  # pyright: ignore

        def describe(index: Any) -> str:
            return f"{names[index]}: {texts[index]}" if texts[index] else names[index]

        return str(np.vectorize(describe)(item._value))


class RESULTS(dfx.RESULTS, metaclass=_Named):  # pyright: ignore
    """How a solve ended: diffrax's results, and those that gradient flow adds.

    `print(traj.result)` shows its name and what helps; so does `gf.RESULTS[traj.result]`.
    """

    __module__ = "gfdyn"

    stopped = ""
    time_stalled = (
        "The step size fell below the resolution of the time, so that time stands still. "
        "Start from t0=0, integrate an EscapeFlow (its clock stays short), use float64, or "
        "loosen rtol; on a ReLU network this is also how chattering along a kink ends."
    )
    blew_up = (
        "The parameters blew up in finite time: their norm grows by a factor e within a "
        "few units of the resolution of the time. Integrate an EscapeFlow, in whose clock "
        "the blow-up is infinitely far away, or stop before with gf.stopping.RadiusAbove."
    )
    clock_ended = (
        "Physical time runs to infinity within a finite span of this clock, whose end is "
        "all but reached: as log E falls ever faster in networks of degree above two, the "
        "clock of the loss does not last. Stop before with gf.stopping.RiskBelow, or use "
        "GradientFlow(..., clock='arc'), which has no end."
    )
    nonfinite_state = (
        "The parameters, their velocity or the risk became NaN or infinite, whatever the "
        "step size. Check the scale of the data and of the initialisation; for margins "
        "beyond overflow use GradientFlow(..., clock='loss')."
    )
    projection_failed = (
        "The velocity along the kinks that slide was not found: conjugate gradients did "
        "not converge on the constraints. They are all but dependent, as on nearly "
        "duplicate samples: merge these, use float64, or loosen rtol, so that fewer gates "
        "matter."
    )
    no_regime = (
        "No regime was found in which the flow goes on: at a kink, neither what was "
        "proposed nor what gradient descent blown up there settles in was right. Perturb "
        "the initialisation or the data a little, use float64, or loosen rtol, so that "
        "fewer gates matter; gf.solvers.ExactKinks(verified=False) goes on unverified. A "
        "SignFlow ends where a neuron would slide along its kink, or signs could go on in "
        "several ways: there use sign descent, gf.descend(flow, net, rate, steps)."
    )
    crowded_kinks = (
        "More neurons are at their kinks at once than there are places for. Give the "
        "solver more, as in gf.solvers.ExactKinks(places=256); outside jax.jit and "
        "jax.vmap gf.solve does so by itself."
    )
    event_cascade = (
        "Events followed upon each other a thousand times without time passing, as where "
        "many neurons reach 0 together. Loosen rtol, so that they are crossed at once, or "
        "perturb the initialisation."
    )
    collapsed = (
        "The weights collapsed to zero, where every gradient but the decay's vanishes: "
        "their norm fell below 1e-6 of what it was. Lower weight_decay or the learning "
        "rate, or enlarge the batches."
    )
    diverged = (
        "Gradient descent diverged: its parameters or its risk became NaN or infinite. "
        "Lower the learning rate; or, if the data or the initialisation are huge, their "
        "scale."
    )
    interrupted = "The solve was interrupted from the keyboard."
    invalid_numbers = (
        "A number that jax.jit or jax.vmap hid is none to integrate with: t1 is NaN or "
        "lies before t0, save times ts do not increase from t0 to t1, or rtol is not "
        "positive and finite. Outside of jax.jit and jax.vmap gf.solve names the one."
    )


# The end reached, or a stop condition met.
SUCCESSES = ("successful", "stopped")


def is_ok(result: Any) -> bool:
    """Whether a concrete result is a success: the end reached, or a stop condition met."""
    return name_of(result) in SUCCESSES


def reason_of(result: Any) -> str:
    """What a concrete result says without its name, of a failure; empty for a success."""
    return RESULTS[result].partition(": ")[2]


def choose(condition: Bool[Array, ""], a: Any, b: Any) -> Any:
    """Result `a` where the condition holds, `b` elsewhere."""
    return RESULTS.where(condition, a, b)


def name_of(result: Any) -> str:
    """The name of a concrete result."""
    return next(name for name in NAMES if bool(result == result_named(name)))


def raise_if(failed: Bool[Array, ""], result: Any, tree: Any, advice: str) -> Any:
    """The tree, or at run time the error that `RESULTS[result]` speaks of, and advice."""
    index = jnp.argmax(jnp.stack([result == result_named(name) for name in NAMES]), axis=0)
    texts = [f"{RESULTS[result_named(name)]} ({advice})" for name in NAMES]
    return eqxi.branched_error_if(tree, failed, index, texts)


def result_named(name: str) -> Any:
    """The result of this name."""
    return getattr(RESULTS, name)


NAMES = (
    "successful",
    "stopped",
    "max_steps_reached",
    "time_stalled",
    "blew_up",
    "clock_ended",
    "nonfinite_state",
    "projection_failed",
    "no_regime",
    "crowded_kinks",
    "event_cascade",
    "collapsed",
    "diverged",
    "interrupted",
    "invalid_numbers",
)
