"""Steps of SGD: a gradient of a batch, its decay, a heavy ball or another optimizer."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._trees import dot
from .._types import Count, Scalar
from ..flows import GradientFlow, SignFlow, State
from ..nets import AbstractNet, norm
from ..run import DescentState, open_ledger, tracing, update_ledger
from ._rates import rate_at
from ._sampling import Batches, draw_epoch, on_batch


if TYPE_CHECKING:
    import optax


Rows = tuple[Float[Array, " saves"], AbstractNet]


class Rule(eqx.Module):
    """How a gradient, with its decay, becomes a step: an optax optimizer of the user's; or
    a rate, with a heavy ball or without."""

    optimizer: "optax.GradientTransformation | None"
    rate: Any
    momentum: Scalar | None

    @property
    def transform(self) -> "optax.GradientTransformation":
        """The optax transformation whose updates are multiplied by the rate.

        Made where it is used, as its functions hold β: they would not compare equal.
        """
        import optax

        if self.optimizer is not None:
            return self.optimizer
        heavy_ball = [] if self.momentum is None else [optax.trace(self.momentum)]
        return optax.chain(*heavy_ball, optax.scale(-1.0))

    def state_like(self, net: AbstractNet) -> Any:
        """The shapes of what the optimizer carries for such a net."""
        return eqx.filter_eval_shape(self.transform.init, net)

    def update(
        self, gradient: AbstractNet, state: tuple[Array, ...], net: AbstractNet
    ) -> tuple[AbstractNet, tuple[Array, ...]]:
        """The updates, and what the optimizer carries on."""
        structure = jax.tree.structure(self.state_like(net))
        updates, after = self.transform.update(
            gradient,  # pyright: ignore[reportArgumentType]
            jax.tree.unflatten(structure, state),
            net,  # pyright: ignore[reportArgumentType]
        )
        return updates, tuple(jax.tree.leaves(after))  # pyright: ignore


class Run(eqx.Module):
    """What stays constant during the descent."""

    flow: GradientFlow | SignFlow
    rule: Rule
    batch_size: int | None = eqx.field(static=True)
    sampler: str = eqx.field(static=True)

    def velocity(self, net: AbstractNet, rows: Int[Array, " size"] | None) -> State:
        """Of the flow of the risk of these samples, all if None."""
        flow = self.flow
        if rows is not None:
            batch = on_batch(flow.problem, rows)
            flow = eqx.tree_at(lambda f: f.problem, flow, batch)
        return flow.velocity(net)

    def batches(self, key: PRNGKeyArray, step: Count) -> Batches:
        """Those of the epoch of a step."""
        samples = self.flow.problem.data.x.shape[0]
        assert self.batch_size is not None
        epoch = step // (samples // self.batch_size)
        return draw_epoch(self.sampler, key, epoch, samples, self.batch_size)


@eqx.filter_jit
def begin(run: Run, net: AbstractNet, key: PRNGKeyArray) -> DescentState:
    """The state before the first step."""
    tracing()
    zero = jnp.zeros((), net.weights[0].dtype)
    carried = run.rule.transform.init(net)  # pyright: ignore[reportArgumentType]
    return DescentState(
        net=net,
        optimizer_state=tuple(jnp.asarray(leaf) for leaf in jax.tree.leaves(carried)),
        step=jnp.asarray(0, jnp.int32),
        time=zero,
        dissipated=zero,
        ledger=open_ledger(run.flow, net),
        initial_norm=norm(net.weights),
        key_data=jr.key_data(key),
        key_kind=str(jr.key_impl(key)),
    )


@eqx.filter_jit
def advance(
    run: Run, state: DescentState, portions: Int[Array, " saves"]
) -> tuple[DescentState, Rows]:
    """Portions of steps, one after the other, saving at the end of each."""
    tracing()
    batches = None if run.batch_size is None else run.batches(state.key, state.step)

    def portion(carry: Any, steps: Count) -> tuple[Any, Any]:
        carry = jax.lax.fori_loop(0, steps, lambda _, c: _step(run, *c), carry)
        end, batches = carry
        if run.batch_size is not None:
            # The risk of all samples costs as much as many batches: only at the saves.
            ledger = update_ledger(end.ledger, run.flow, end.net, jnp.log(end.time))
            end = eqx.tree_at(lambda s: s.ledger, end, ledger)
        return (end, batches), (end.time, end.net)

    with jax.default_matmul_precision("highest"):
        (end, _), rows = jax.lax.scan(portion, (state, batches), portions)
    return end, rows


def _step(
    run: Run, s: DescentState, batches: Batches | None
) -> tuple[DescentState, Batches | None]:
    rows = None
    if batches is not None:
        batches, rows = _next_batch(run, s, batches)
    velocity = run.velocity(s.net, rows)
    gradient = jax.tree.map(jnp.negative, velocity.position)
    updates, optimizer_state = run.rule.update(gradient, s.optimizer_state, s.net)
    net, rate = _moved(run.rule, s, gradient, updates)
    time = s.time + rate
    ledger = s.ledger
    if batches is None:
        ledger = update_ledger(ledger, run.flow, net, jnp.log(time))
    state = DescentState(
        net=net,
        optimizer_state=optimizer_state,
        step=s.step + 1,
        time=time,
        dissipated=s.dissipated + rate * velocity.dissipated,
        ledger=ledger,
        initial_norm=s.initial_norm,
        key_data=s.key_data,
        key_kind=s.key_kind,
    )
    return state, batches


def _next_batch(
    run: Run, s: DescentState, batches: Batches
) -> tuple[Batches, Int[Array, " size"]]:
    """The batches of this epoch, drawn at its first step, and the one of this step."""
    position = s.step % batches.shape[0]
    batches = jax.lax.cond(
        position == 0, lambda: run.batches(s.key, s.step), lambda: batches
    )
    return batches, batches[position]


def _moved(
    rule: Rule, s: DescentState, gradient: AbstractNet, updates: Any
) -> tuple[AbstractNet, Scalar]:
    """The net after the updates, and how long that took."""
    if rule.optimizer is not None:
        import optax

        square = dot(gradient, gradient)
        rate = -dot(updates, gradient) / jnp.where(square > 0, square, 1.0)
        return optax.apply_updates(s.net, updates), rate  # pyright: ignore
    rate = rate_at(rule.rate, s.step, s.net).astype(s.time.dtype)
    net = jax.tree.map(lambda w, u: w + rate * u, s.net, updates)
    # Along a constant gradient the heavy ball comes to 1/(1−β) rates a step.
    return net, rate if rule.momentum is None else rate / (1 - rule.momentum)


def is_absent(value: Any) -> bool:
    """Whether it is a plain 0, for which nothing is computed."""
    return isinstance(value, int | float) and value == 0
