"""Gradient descent and SGD, on the time axis and with the records of a flow."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray

from .._keys import check_key
from .._keywords import suggest_keywords
from .._program_limit import make_room
from .._progress import progress_bar
from .._tracing import is_concrete
from ..flows import AbstractFlow
from ..nets import AbstractNet, norm
from ..problem import Problem
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
from ._arguments import Mask, check_steps, make_run, paper_decay
from ._rates import LearningRate
from ._sampling import Sampler
from ._sgd import Rows, Run, advance, begin


if TYPE_CHECKING:
    import optax


_DEFAULT_SAVES = 100
# A net whose weights have shrunk by this factor has collapsed.
_COLLAPSED = 1e-6


@suggest_keywords()
def descend(
    problem: Problem | AbstractFlow,
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
        problem: the risk; or a flow in physical time whose steps are to be taken, such as
            `gf.flows.SignFlow(problem)`, whose descent moves every parameter by the rate.
        net: where it starts; or the `checkpoint` of a trajectory, to go on from there
            bitwise as one long run (its certificate too, if that has a save there).
        optimizer: a learning rate, a schedule `step -> rate` such as `gf.SteppedRate`, a
            `gf.NormScaledRate`, or an optax optimizer. Of the latter the rate is
            measured: $\eta_k = -\langle\Delta\theta, g\rangle/\|g\|^2$, which is the
            learning rate of SGD; g is the gradient, or −dθ/dt of the flow that was given.
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
    decay = paper_decay(weight_decay, decay_convention)
    records = checked_record(record)
    check_steps(steps, save_every)
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
    if not progress:
        return state, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
    # A program that joins a hundred arrays takes seconds to compile, for each shape.
    on_host = jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)
    return state, jax.device_put(on_host)


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
        solver="descent",
    )
    trajectory = raise_unless_ok(trajectory) if throw else trajectory
    # Collapse is an end to be told apart, but no failure.
    result = choose(collapsed, RESULTS.collapsed, trajectory.result)
    return eqx.tree_at(lambda t: t.result, trajectory, result)
