"""Gradient descent and SGD, on the time axis and with the records of a flow."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray, PyTree

from .._keys import check_key
from .._keywords import suggest_keywords
from .._numbers import check_count, check_number, is_fraction, is_not_negative
from .._program_limit import make_room
from .._progress import progress_bar
from .._tracing import is_concrete
from ..flows import GradientFlow
from ..nets import AbstractNet, norm, weight_mask
from ..problem import Problem, check_problem
from ..run import (
    RESULTS,
    DescentState,
    Measure,
    Trajectory,
    announced,
    checked_record,
    choose,
    close_ledger,
    counted,
    hashable,
    measure,
    raise_unless_ok,
    with_compilations,
)
from ._rates import LearningRate, check_rate
from ._sampling import Sampler, check_sampler
from ._sgd import Rows, Rule, Run, advance, begin, is_absent


if TYPE_CHECKING:
    import optax


Mask = PyTree[bool] | Callable[[AbstractNet], PyTree[bool]]

_DEFAULT_SAVES = 100
# A net whose weights have shrunk by this factor has collapsed.
_COLLAPSED = 1e-6


@suggest_keywords()
def descend(
    problem: Problem,
    net: AbstractNet | DescentState,
    optimizer: "optax.GradientTransformation | LearningRate",
    steps: int,
    *,
    batch_size: int | None = None,
    sampler: Sampler = "epoch_shuffle",
    key: PRNGKeyArray | None = None,
    momentum: ArrayLike = 0.0,
    weight_decay: ArrayLike = 0.0,
    decay_convention: Literal["paper", "torch"] = "paper",
    decay_mask: Mask | None = None,
    save_every: int | None = None,
    record: Mapping[str, Measure] | None = None,
    throw: bool = True,
    progress: bool = False,
) -> Trajectory:
    r"""Gradient descent and SGD with heavy ball and weight decay, $\theta_{k+1} = \theta_k
    - \eta_k v_{k+1}$, $v_{k+1} = \beta v_k + \nabla R_k(\theta_k) + 2\lambda\theta_k$.

    $R_k$ is the risk of the batch of the step. The time axis is $t = \sum_k
    \eta_k/(1-\beta)$, on which it converges to the flow at first order. Rates, momentum,
    decay and seed are arrays: `jax.vmap` over them runs all settings in one program.

    Args:
        problem: the risk.
        net: where it starts; or the `checkpoint` of a trajectory, to go on from there
            bitwise as one long run (its certificate too, if that has a save there).
        optimizer: a learning rate, a schedule `step -> rate` such as `gf.SteppedRate`, a
            `gf.NormScaledRate`, or an optax optimizer. Of the latter the rate is
            measured: $\eta_k = -\langle\Delta\theta, g\rangle/\|g\|^2$, which is the
            learning rate of SGD.
        steps: how many.
        batch_size: samples a step; all of them if None.
        sampler: `"epoch_shuffle"` draws without replacement in each epoch (an incomplete
            last batch is dropped), `"iid_subset"` a uniform subset for each step.
        key: seeds the batches.
        momentum: β of the heavy ball; the decay is inside of what it averages.
        weight_decay: λ of the penalty λ‖θ‖².
        decay_convention: `"paper"` adds 2λθ to the gradient (Galanti & Poggio, eq. 2),
            `"torch"` λθ, as torch and optax do: their λ is twice the paper's.
        decay_mask: which parameters decay, a pytree of booleans or a function of the net
            that gives one; what is in `net.weights`, so no bias, if None.
        save_every: save each so many steps; about 100 saves if None.
        record: quantities to measure at the saves.
        throw: raise if the parameters become infinite or NaN.
        progress: show a progress bar.

    Returns:
        A `Trajectory` on the physical clock, with a `checkpoint`. Its certificate tells
        how far this is from a flow; with batches it looks at the saves only. Its result is
        `RESULTS.collapsed` if the weights have shrunk below 1e-6 of their initial norm.

    Raises:
        TypeError: on arguments of the wrong kind.
        ValueError: on arguments that make no sense together.
        SolveError: if the parameters become infinite or NaN and `throw` is set.
    """
    first = net.net if isinstance(net, DescentState) else net
    if key is not None:
        check_key(key)
    decay = _paper_decay(weight_decay, decay_convention)
    records = checked_record(record)
    _check_steps(steps, save_every)
    run = make_run(
        problem, first, optimizer, batch_size, sampler, momentum, decay, decay_mask
    )
    save_every = max(1, steps // _DEFAULT_SAVES) if save_every is None else save_every
    with counted() as compilations:
        with announced():
            start = _start(run, net, key)
            state, rows = _run(run, start, steps, save_every, progress)
        trajectory = to_trajectory(run, state, rows, records, throw)
    if compilations.count and is_concrete(trajectory.final_time):
        make_room()
    return with_compilations(trajectory, compilations.count)


def make_run(
    problem: Problem,
    net: AbstractNet,
    optimizer: "optax.GradientTransformation | LearningRate",
    batch_size: int | None,
    sampler: Sampler,
    momentum: ArrayLike,
    weight_decay: ArrayLike,
    decay_mask: Mask | None,
) -> Run:
    """Check the arguments and put them together; the decay is the paper's λ."""
    check_problem(problem)
    mask = None if is_absent(weight_decay) else _resolve(decay_mask, net)
    flow = GradientFlow(problem, weight_decay, decay_mask=mask)
    flow.check(net)
    num_samples = problem.data.x.shape[0]
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


def _paper_decay(weight_decay: ArrayLike, convention: str) -> ArrayLike:
    if convention not in ("paper", "torch"):
        raise ValueError(
            f"decay_convention={convention!r}; use 'paper' (2λθ) or 'torch' (λθ)."
        )
    remedy = "must be 0 or positive, and finite."
    check_number("weight_decay", weight_decay, is_not_negative, remedy)
    return weight_decay if convention == "paper" else weight_decay / 2


def _check_steps(steps: int, save_every: int | None) -> None:
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


def _start(
    run: Run, net: AbstractNet | DescentState, key: PRNGKeyArray | None
) -> DescentState:
    """The state before the first step, or that of the checkpoint."""
    if not isinstance(net, DescentState):
        if run.batch_size is not None and key is None:
            raise ValueError(
                "key is missing; batches are random, give key=jax.random.key(0)."
            )
        return begin(run, net, jr.key(0) if key is None else key)
    if key is not None:
        raise ValueError("key is given, but a checkpoint carries its own; leave it out.")
    shapes = [leaf.shape for leaf in jax.tree.leaves(run.rule.state_like(net.net))]
    if shapes != [leaf.shape for leaf in net.optimizer_state]:
        raise ValueError(
            "the checkpoint is of another optimizer; give that again, with its momentum."
        )
    return net


def _run(
    run: Run, state: DescentState, steps: int, save_every: int, progress: bool
) -> tuple[DescentState, Rows]:
    """Advance from save to save: in one program, or in as many as the bar has stops."""
    portions = [min(save_every, steps - done) for done in range(0, steps, save_every)]
    stops = [[p] for p in portions] if progress else [portions]
    rows = [jax.tree.map(lambda leaf: leaf[None], (state.time, state.net))]
    with progress_bar(total=steps, unit=" steps", disable=not progress) as bar:
        for portion in stops:
            state, saved = advance(run, state, jnp.asarray(portion, jnp.int32))
            rows.append(saved)
            if progress:
                bar.update(sum(portion))
                bar.set_postfix_str(f"risk={float(state.ledger.risk):.4g}")
    return state, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)


def to_trajectory(
    run: Run,
    state: DescentState,
    rows: Rows,
    record: Mapping[str, Measure],
    throw: bool,
) -> Trajectory:
    """The trajectory of a finished descent, with its records."""
    ts, nets = rows
    finite = jnp.isfinite(state.ledger.risk) & jnp.isfinite(state.ledger.largest_log_norm)
    collapsed = finite & (norm(state.net.weights) < _COLLAPSED * state.initial_norm)
    none = jnp.zeros_like(state.step)
    trajectory = Trajectory(
        flow=run.flow,
        ts=ts,
        positions=nets,
        log_time=jnp.log(ts),
        log_interval=jnp.log(jnp.diff(ts)),
        records={
            name: measure(hashable(function), run.flow, nets)
            for name, function in record.items()
        },
        initial_risk=state.ledger.initial_risk,
        final_risk=state.ledger.risk,
        final_time=state.time,
        final_log_time=jnp.log(state.time),
        final_position=state.net,
        stats={
            "num_steps": state.step,
            "num_rejected": none,
            "num_field_evaluations": state.step,
            "num_crossings": none,
            "num_slides": none,
            "num_releases": none,
        },
        result=choose(finite, RESULTS.successful, RESULTS.diverged),
        stop_index=none - 1,
        certificate=close_ledger(state.ledger, state.dissipated),
        stop_names=(),
        checkpoint=state,
        initial_time=ts[0],
    )
    trajectory = raise_unless_ok(trajectory) if throw else trajectory
    # Collapse is an end to be told apart, but no failure.
    result = choose(collapsed, RESULTS.collapsed, trajectory.result)
    return eqx.tree_at(lambda t: t.result, trajectory, result)
