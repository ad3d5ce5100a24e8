"""Gradient descent and SGD, on the time axis and with the records of a flow."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray
from tqdm import tqdm

from ._certificate import Ledger, close_ledger, open_ledger, update_ledger
from ._problem import Problem
from ._results import RESULTS, choose
from ._tracing import is_concrete
from ._trajectory import (
    Measure,
    Trajectory,
    hashable,
    measure,
    raise_unless_ok,
)
from .data import Dataset
from .flows import GradientFlow
from .flows._base import dot
from .nets import AbstractNet, norm


Scalar = Float[Array, ""]
Count = Int[Array, ""]
LearningRate = ArrayLike | Callable[[Count], ArrayLike]

_DEFAULT_SAVES = 100


class NormScaledRate(eqx.Module):
    r"""The learning rate $c/\|\theta\|^{L-2}$: equal steps of the escape clock.

    Bantzis et al., Appendix B. One step is $\Delta\tau = c\,L^{1-L/2}$.
    """

    c: Float[Array, ""] | float

    def __call__(self, net: AbstractNet) -> Scalar:
        """The rate at this net.

        Raises:
            ValueError: for a net without a degree.
        """
        if net.degree is None:
            raise ValueError(
                f"net is a {type(net).__name__} without a degree L of homogeneity; "
                "c/‖θ‖^(L−2) is not defined."
            )
        return self.c / norm(net) ** (net.degree - 2)


def descend(
    problem: Problem,
    net: AbstractNet,
    optimizer: optax.GradientTransformation | LearningRate | NormScaledRate,
    steps: int,
    *,
    batch_size: int | None = None,
    key: PRNGKeyArray | None = None,
    weight_decay: ArrayLike = 0.0,
    save_every: int | None = None,
    record: Mapping[str, Measure] | None = None,
    throw: bool = True,
    progress: bool = False,
) -> Trajectory:
    r"""Gradient descent on the risk, $\theta_{k+1} = \theta_k - \eta_k \nabla E(\theta_k)$.

    The time axis is $t = \sum_k \eta_k$, on which it converges to the flow at first order.

    Args:
        problem: the risk.
        net: where it starts.
        optimizer: a learning rate, a schedule `step -> rate`, a `NormScaledRate`, or an
            optax optimizer. Of the latter the rate is measured: $\eta_k =
            -\langle\Delta\theta, g\rangle/\|g\|^2$, which is the learning rate of SGD.
        steps: how many.
        batch_size: samples a step, drawn without replacement in each epoch (an incomplete
            last batch is dropped); all of them if None.
        key: seeds the batches.
        weight_decay: λ of the penalty λ‖θ‖², inside the gradient (2λθ).
        save_every: save each so many steps; about 100 saves if None.
        record: quantities to measure at the saves.
        throw: raise if the parameters become infinite or NaN.
        progress: show a progress bar.

    Returns:
        A `Trajectory` on the physical clock. Its certificate tells how far this is from a
        flow; with batches it looks at the saves only.

    Raises:
        ValueError: on arguments that make no sense together.
        SolveError: if the parameters become infinite or NaN and `throw` is set.
    """
    flow = GradientFlow(problem, weight_decay)
    flow.check(net)
    num_samples = problem.data.x.shape[0]
    if steps < 1:
        raise ValueError(f"steps={steps} must be 1 or more.")
    if batch_size is not None and not 1 <= batch_size <= num_samples:
        raise ValueError(
            f"batch_size={batch_size} must lie between 1 and the {num_samples} samples."
        )
    if batch_size not in (None, num_samples) and key is None:
        raise ValueError("key is missing; batches are random, give key=jax.random.key(0).")
    save_every = max(1, steps // _DEFAULT_SAVES) if save_every is None else save_every
    if not 1 <= save_every <= steps:
        raise ValueError(f"save_every={save_every} must lie between 1 and steps={steps}.")
    run = _Run(flow, _as_rule(optimizer), batch_size, save_every)
    key = jr.key(0) if key is None else key
    state, rows = _run(run, _start(run, net, key), steps, progress)
    return _collect(run, state, rows, record or {}, throw)


class _Rule(eqx.Module):
    """An optax optimizer, and the learning rate that multiplies its updates."""

    transform: optax.GradientTransformation
    rate: Any
    measured: bool = eqx.field(static=True)


class _Run(eqx.Module):
    """What stays constant during the descent."""

    flow: GradientFlow
    rule: _Rule
    batch_size: int | None = eqx.field(static=True)
    save_every: int = eqx.field(static=True)

    @property
    def is_stochastic(self) -> bool:
        """Whether a step sees some of the samples only."""
        return self.batch_size not in (None, self.flow.problem.data.x.shape[0])


class _State(eqx.Module):
    """What evolves during the descent."""

    net: AbstractNet
    optimizer_state: Any
    step: Count
    time: Scalar
    dissipated: Scalar
    ledger: Ledger
    # The order of the samples in this epoch, and the key of the next.
    order: Int[Array, " samples"]
    key: PRNGKeyArray


def _as_rule(optimizer: Any) -> _Rule:
    if isinstance(optimizer, optax.GradientTransformation):
        return _Rule(optimizer, 1.0, measured=True)
    if isinstance(optimizer, NormScaledRate) or callable(optimizer):
        return _Rule(optax.sgd(1.0), optimizer, measured=False)
    rate = jnp.asarray(optimizer)
    if is_concrete(rate) and not (rate.ndim == 0 and rate > 0):
        raise ValueError(
            f"optimizer={optimizer!r} is no learning rate; give a positive number, a "
            "schedule, gf.NormScaledRate(c) or an optax optimizer."
        )
    return _Rule(optax.sgd(1.0), rate, measured=False)


@eqx.filter_jit
def _start(run: _Run, net: AbstractNet, key: PRNGKeyArray) -> _State:
    dtype = net.weights[0].dtype
    zero = jnp.zeros((), dtype)
    return _State(
        net=net,
        optimizer_state=run.rule.transform.init(net),  # pyright: ignore[reportArgumentType]
        step=jnp.asarray(0, jnp.int32),
        time=zero,
        dissipated=zero,
        ledger=open_ledger(run.flow, net),
        order=jnp.arange(run.flow.problem.data.x.shape[0]),
        key=key,
    )


def _run(
    run: _Run, state: _State, steps: int, progress: bool
) -> tuple[_State, list[tuple[Scalar, AbstractNet]]]:
    """Advance from save to save."""
    rows = [(state.time, state.net)]
    with tqdm(total=steps, unit=" steps", disable=not progress) as bar:
        for done in range(0, steps, run.save_every):
            portion = min(run.save_every, steps - done)
            state = _advance(run, state, jnp.asarray(portion, jnp.int32))
            rows.append((state.time, state.net))
            if progress:
                bar.update(portion)
                bar.set_postfix_str(f"risk={float(state.ledger.risk):.4g}")
    return state, rows


@eqx.filter_jit
def _advance(run: _Run, state: _State, steps: Count) -> _State:
    with jax.default_matmul_precision("highest"):
        end = jax.lax.fori_loop(0, steps, lambda _, s: _step(run, s), state)
    if not run.is_stochastic:
        return end
    # The risk of all samples costs as much as many batches: only at the saves.
    ledger = update_ledger(end.ledger, run.flow, end.net, jnp.log(end.time))
    return eqx.tree_at(lambda s: s.ledger, end, ledger)


def _step(run: _Run, s: _State) -> _State:
    batch, order, key = _next_batch(run, s)
    flow = eqx.tree_at(lambda f: f.problem.data, run.flow, batch)
    minus_gradient = flow.velocity(s.net).position
    gradient = jax.tree.map(jnp.negative, minus_gradient)
    updates, optimizer_state = run.rule.transform.update(
        gradient,
        s.optimizer_state,
        s.net,  # pyright: ignore[reportArgumentType]
    )
    square = dot(gradient, gradient)
    if run.rule.measured:
        along = -dot(updates, gradient)  # pyright: ignore[reportArgumentType]
        rate = along / jnp.where(square > 0, square, 1.0)
        net = optax.apply_updates(s.net, updates)  # pyright: ignore[reportArgumentType]
    else:
        rate = _rate(run.rule.rate, s).astype(s.time.dtype)
        net = jax.tree.map(lambda w, u: w + rate * u, s.net, updates)
    time = s.time + rate
    ledger = s.ledger
    if not run.is_stochastic:
        ledger = update_ledger(ledger, run.flow, net, jnp.log(time))
    return _State(
        net=net,  # pyright: ignore[reportArgumentType]
        optimizer_state=optimizer_state,
        step=s.step + 1,
        time=time,
        dissipated=s.dissipated + rate * square,
        ledger=ledger,
        order=order,
        key=key,
    )


def _rate(rate: Any, s: _State) -> Array:
    if isinstance(rate, NormScaledRate):
        return jnp.asarray(rate(s.net))
    return jnp.asarray(rate(s.step) if callable(rate) else rate)


def _next_batch(run: _Run, s: _State) -> tuple[Dataset, Array, PRNGKeyArray]:
    """The batch of this step; a new epoch starts with a new order."""
    data = run.flow.problem.data
    if not run.is_stochastic:
        return data, s.order, s.key
    assert run.batch_size is not None
    position = s.step % (data.x.shape[0] // run.batch_size)

    def shuffle() -> tuple[Array, PRNGKeyArray]:
        key, use = jr.split(s.key)
        return jr.permutation(use, s.order), key

    order, key = jax.lax.cond(position == 0, shuffle, lambda: (s.order, s.key))
    start = position * run.batch_size
    rows = jax.lax.dynamic_slice(order, (start,), (run.batch_size,))
    return jax.tree.map(lambda a: a[rows], data), order, key


def _collect(
    run: _Run,
    state: _State,
    rows: list[tuple[Scalar, AbstractNet]],
    record: Mapping[str, Measure],
    throw: bool,
) -> Trajectory:
    ts = jnp.stack([time for time, _ in rows])
    nets = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[net for _, net in rows])
    finite = jnp.isfinite(state.ledger.risk) & jnp.isfinite(state.ledger.largest_log_norm)
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
        result=choose(finite, RESULTS.successful, RESULTS.nonfinite_state),
        stop_index=none - 1,
        certificate=close_ledger(state.ledger, state.dissipated),
        stop_names=(),
    )
    return raise_unless_ok(trajectory) if throw else trajectory
