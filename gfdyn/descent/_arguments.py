"""What a descent is asked for, checked and put together."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from .._numbers import check_count, check_number, is_fraction, is_not_negative
from ..flows import AbstractFlow, GradientFlow, MomentumFlow, SignFlow
from ..nets import AbstractNet, weight_mask
from ..problem import Problem, check_problem
from ._rates import LearningRate, check_rate
from ._sampling import Sampler, check_sampler
from ._sgd import Rule, Run, is_absent


if TYPE_CHECKING:
    import optax


Mask = PyTree[bool] | Callable[[AbstractNet], PyTree[bool]]


def make_run(
    problem: Problem | AbstractFlow,
    net: AbstractNet,
    optimizer: "optax.GradientTransformation | LearningRate",
    batch_size: int | None,
    sampler: Sampler,
    momentum: ArrayLike,
    weight_decay: ArrayLike,
    decay_mask: Mask | None,
) -> Run:
    """Check the arguments and put them together; the decay is the paper's λ."""
    if isinstance(problem, AbstractFlow):
        flow = _checked_flow(problem, weight_decay, decay_mask)
    else:
        check_problem(problem)
        mask = None if is_absent(weight_decay) else _resolve(decay_mask, net)
        flow = GradientFlow(problem, weight_decay, decay_mask=mask)
    flow.check(net)
    num_samples = flow.problem.data.x.shape[0]
    if batch_size is not None:
        remedy = f"must lie between 1 and the {num_samples} samples."
        check_count("batch_size", batch_size, 1, remedy)
        if batch_size > num_samples:
            raise ValueError(f"batch_size={batch_size} {remedy}")
    check_sampler(sampler)
    return Run(
        flow=flow,
        rule=_as_rule(optimizer, momentum, net.weights[0].dtype),
        batch_size=None if batch_size == num_samples else batch_size,
        sampler=sampler,
    )


def _checked_flow(
    flow: AbstractFlow, weight_decay: ArrayLike, decay_mask: Any
) -> GradientFlow | SignFlow:
    """The flow; raise unless a descent takes its steps, and it holds the decay itself."""
    in_time = not isinstance(flow, GradientFlow) or flow.clock == "physical"
    if not (isinstance(flow, GradientFlow | SignFlow) and in_time):
        if isinstance(flow, MomentumFlow):
            instead = (
                "rate, momentum = flow.heavy_ball(h), then gf.descend(problem, net, rate, "
                "steps, momentum=momentum)"
            )
        elif isinstance(flow, GradientFlow):
            instead = "leave clock out, for gf.descend counts physical time"
        else:
            instead = (
                "gf.descend(problem, net, gf.NormScaledRate(c), steps) takes equal steps "
                "of the escape clock"
            )
        raise ValueError(
            f"problem={flow.description}: a descent takes steps of gf.GradientFlow and "
            f"gf.flows.SignFlow; {instead}."
        )
    if not is_absent(weight_decay) or decay_mask is not None:
        raise ValueError(
            f"weight_decay={weight_decay} beside a flow; give it to that, as in "
            "gf.GradientFlow(problem, weight_decay, decay_mask=mask)."
        )
    return flow


def paper_decay(weight_decay: ArrayLike, convention: str) -> ArrayLike:
    """The paper's λ of a decay by its convention."""
    if convention not in ("paper", "torch"):
        raise ValueError(
            f"decay_convention={convention!r}; use 'paper' (2λθ) or 'torch' (λθ)."
        )
    remedy = "must be 0 or positive, and finite."
    check_number("weight_decay", weight_decay, is_not_negative, remedy)
    return weight_decay if convention == "paper" else weight_decay / 2


def check_steps(steps: int, save_every: int | None) -> None:
    """Raise unless they are numbers of steps."""
    for name, number in (("steps", steps), ("save_every", save_every)):
        if not isinstance(number, int | np.integer | None):
            raise TypeError(f"{name}={number!r} must be a whole number, such as 100.")
    if steps < 1:
        raise ValueError(f"steps={steps} must be 1 or more.")
    if save_every is not None and not 1 <= save_every <= steps:
        raise ValueError(f"save_every={save_every} must lie between 1 and steps={steps}.")


def _as_rule(optimizer: Any, momentum: ArrayLike, dtype: Any) -> Rule:
    import optax

    check_number("momentum", momentum, is_fraction, "must lie in [0, 1).")
    if isinstance(optimizer, optax.GradientTransformation):
        if not is_absent(momentum):
            raise ValueError(
                f"momentum={momentum} beside an optax optimizer; give it there, as in "
                "optax.sgd(rate, momentum), or a learning rate here."
            )
        return Rule(optimizer, None, None)
    check_rate(optimizer)
    rate = optimizer if callable(optimizer) else jnp.asarray(optimizer, dtype)
    beta = None if is_absent(momentum) else jnp.asarray(momentum, dtype)
    return Rule(None, rate, beta)


def _resolve(mask: Mask | None, net: AbstractNet) -> Any:
    """Which leaves decay, as a pytree of booleans."""
    if mask is None:
        return weight_mask(net)
    return mask(net) if callable(mask) and not isinstance(mask, AbstractNet) else mask
